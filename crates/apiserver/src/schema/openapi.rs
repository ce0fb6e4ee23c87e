//! OpenAPI documents, generated from the schema tables on request. `kubectl explain` prints them, `kubectl apply` reads
//! merge keys from them, and clients use them to detect that the server validates fields.
//!
//! Documents are not cached here: clients cache them by the hash in the index. The OpenAPI v2 document contains only
//! definitions, because current clients request v3 first.

mod components;
mod paths;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use components::{Components, Version};

use crate::kinds::{KINDS, Kind};

/// The index of documents: maps `apis/storage.k8s.io/v1` to a URL with the hash of the document.
pub fn openapi_v3_index() -> Value {
    static INDEX: OnceLock<Value> = OnceLock::new();
    let index = || {
        let all: BTreeSet<String> = KINDS.iter().map(|kind| root(kind)).collect();
        let paths: Map<String, Value> = all
            .into_iter()
            .filter_map(|path| {
                let hash = Sha512::digest(openapi_v3(&path)?);
                let hash = base16ct::upper::encode_string(&hash);
                let address = format!("/openapi/v3/{path}?hash={hash}");
                Some((path, json!({"serverRelativeURL": address})))
            })
            .collect();
        json!({"paths": paths})
    };
    INDEX.get_or_init(index).clone()
}

/// The document of one group version: `api/v1`, `apis/storage.k8s.io/v1`.
pub fn openapi_v3(path: &str) -> Option<Bytes> {
    let kinds: Vec<&'static Kind> = KINDS.iter().copied().filter(|kind| root(kind) == path).collect();
    if kinds.is_empty() {
        return None;
    }
    let mut components = Components::new(Version::V3);
    let mut paths = Map::new();
    for kind in kinds {
        paths::add(&mut paths, kind, &mut components);
    }
    let token = json!({"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"});
    let document = json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": {"schemas": components.finish(), "securitySchemes": {"BearerToken": token}},
    });
    Some(document.to_string().into())
}

/// The OpenAPI v2 document: the definitions of all kinds.
pub fn openapi_v2() -> Bytes {
    let mut components = Components::new(Version::V2);
    for schema in KINDS.iter().filter_map(|kind| super::find(kind.group, kind.kind)) {
        components.add(schema);
    }
    json!({"swagger": "2.0", "info": info(), "paths": {}, "definitions": components.finish()})
        .to_string()
        .into()
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "v1.34.2"})
}

/// The root path of a kind: `api/v1`, `apis/storage.k8s.io/v1`.
fn root(kind: &Kind) -> String {
    match kind.group {
        "" => format!("api/{}", kind.version),
        group => format!("apis/{group}/{}", kind.version),
    }
}
