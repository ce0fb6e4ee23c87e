//! Decodes lists and watch events object by object: an object that cannot be decoded does not affect the others.

use serde::Deserialize;
use serde_json::value::RawValue;
use wharf_model::{Key, Kind, View};

use crate::error::Status;

/// A watch event.
#[derive(Debug)]
pub(crate) enum Event<K> {
    Put(K),
    Deleted { key: Key, uid: String, version: String },
    Bookmark { version: String },
    Error(Status),
    Undecodable(Undecodable),
}

/// An object that cannot be decoded. Its key and resource version are known unless its metadata is invalid too.
#[derive(Debug)]
pub(crate) struct Undecodable {
    pub(crate) key: Option<Key>,
    pub(crate) version: String,
    pub(crate) error: String,
}

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page<K> {
    pub(crate) items: Vec<Result<K, Undecodable>>,
    pub(crate) version: String,
    pub(crate) next: Option<String>,
}

#[derive(Deserialize)]
struct RawPage<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Identity {
    metadata: IdentityMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct IdentityMeta {
    name: String,
    namespace: Option<String>,
    uid: String,
    resource_version: String,
}

/// Decodes a page; fails only if it is not a list.
pub(crate) fn page<K: Kind>(bytes: &[u8], view: View) -> Result<Page<K>, String> {
    let raw: RawPage<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let items = raw.items.unwrap_or_default().into_iter().map(|raw| object(raw, view)).collect();
    let next = Some(raw.metadata.next).filter(|next| !next.is_empty());
    Ok(Page { items, version: raw.metadata.resource_version, next })
}

/// Decodes one watch event, which is one line of the response.
pub(crate) fn event<K: Kind>(line: &[u8], view: View) -> Event<K> {
    let undecodable =
        |error: String| Event::Undecodable(Undecodable { key: None, version: String::new(), error });
    let raw: RawEvent<'_> = match serde_json::from_slice(line) {
        Ok(raw) => raw,
        Err(error) => return undecodable(error.to_string()),
    };
    match raw.kind {
        "ADDED" | "MODIFIED" => match object(raw.object, view) {
            Ok(object) => Event::Put(object),
            Err(error) => Event::Undecodable(error),
        },
        // Only the metadata is decoded: it suffices to remove the object from the store.
        "DELETED" => match identity(raw.object) {
            Ok(meta) => {
                let key = Key { namespace: meta.namespace, name: meta.name };
                Event::Deleted { key, uid: meta.uid, version: meta.resource_version }
            }
            Err(error) => undecodable(error.to_string()),
        },
        "BOOKMARK" => match identity(raw.object) {
            Ok(meta) => Event::Bookmark { version: meta.resource_version },
            Err(error) => undecodable(error.to_string()),
        },
        "ERROR" => match serde_json::from_str(raw.object.get()) {
            Ok(status) => Event::Error(status),
            Err(error) => undecodable(error.to_string()),
        },
        other => undecodable(format!("unknown event type {other}")),
    }
}

fn object<K: Kind>(raw: &RawValue, view: View) -> Result<K, Undecodable> {
    let error = match K::decode(raw, view) {
        Ok(object) if object.meta().name.is_empty() => "metadata.name is missing".to_owned(),
        Ok(object) => return Ok(object),
        Err(error) => error.to_string(),
    };
    let meta = identity(raw).unwrap_or_default();
    let key = Some(Key { namespace: meta.namespace, name: meta.name }).filter(|key| !key.name.is_empty());
    Err(Undecodable { key, version: meta.resource_version, error })
}

fn identity(raw: &RawValue) -> Result<IdentityMeta, serde_json::Error> {
    serde_json::from_str::<Identity>(raw.get()).map(|identity| identity.metadata)
}
