//! OpenAPI, made of the tables when somebody asks: what `kubectl explain` prints, by what `kubectl apply` merges, and
//! where clients see that the server checks fields itself.
//!
//! Documents are not kept: clients do that, by the hash in the index. Of version 2 there are the definitions alone;
//! clients of today ask for version 3 first.

mod components;
mod paths;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use components::{Components, Version};

use crate::kinds::{KINDS, Kind};

/// Where the documents are: `apis/storage.k8s.io/v1` to an address with the document's hash.
pub fn openapi_v3_index() -> Value {
    static INDEX: OnceLock<Value> = OnceLock::new();
    let index = || {
        let all: BTreeSet<String> = KINDS.iter().map(|kind| root(kind)).collect();
        let paths: Map<String, Value> = all
            .into_iter()
            .filter_map(|path| {
                let hash = Sha512::digest(openapi_v3(&path)?);
                let hash: String = hash.iter().map(|byte| format!("{byte:02X}")).collect();
                let address = format!("/openapi/v3/{path}?hash={hash}");
                Some((path, json!({"serverRelativeURL": address})))
            })
            .collect();
        json!({"paths": paths})
    };
    INDEX.get_or_init(index).clone()
}

/// The document of one group and version: `api/v1`, `apis/storage.k8s.io/v1`.
pub fn openapi_v3(path: &str) -> Option<Bytes> {
    let kinds: Vec<&'static Kind> = KINDS.iter().copied().filter(|kind| root(kind) == path).collect();
    if kinds.is_empty() {
        return None;
    }
    let mut components = Components::new(Version::Three);
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

/// The definitions of all kinds, in version 2.
pub fn openapi_v2() -> Bytes {
    let mut components = Components::new(Version::Two);
    for schema in KINDS.iter().filter_map(|kind| super::of(kind.group, kind.kind)) {
        components.add(schema);
    }
    json!({"swagger": "2.0", "info": info(), "paths": {}, "definitions": components.finish()})
        .to_string()
        .into()
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "v1.34.2"})
}

/// `api/v1`, `apis/storage.k8s.io/v1`.
fn root(kind: &Kind) -> String {
    match kind.group {
        "" => format!("api/{}", kind.version),
        group => format!("apis/{group}/{}", kind.version),
    }
}
