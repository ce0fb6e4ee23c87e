//! Patches of any object: JSON patch, merge patch, strategic merge patch.
//!
//! Promise: no patch makes the server panic. A merge patch that was applied changes nothing when it is applied again. An object
//! that conforms to its schema conforms unchanged: `conform(conform(x)) == conform(x)`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use wharf_apiserver::patch::{Patch, apply};
use wharf_apiserver::schema;
use wharf_fuzz::api::kind;

const TYPES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];

fn conform(schema: &schema::Schema, object: Value) -> Option<Value> {
    let conformed = schema.conform(object).ok()?.object;
    let again = schema.conform(conformed.clone()).expect("it conforms");
    assert_eq!((&again.object, again.unknown.len()), (&conformed, 0));
    Some(conformed)
}

// An input is two bytes, an object, a NUL character and a patch.
fuzz_target!(|data: &[u8]| {
    let [choice, media, data @ ..] = data else { return };
    let Some(end) = data.iter().position(|&byte| byte == 0) else { return };
    let Ok(patch) = Patch::parse(TYPES[*media as usize % 3], &data[end + 1..]) else { return };
    let Ok(object) = serde_json::from_slice::<Value>(&data[..end]) else { return };
    let kind = kind(*choice);
    let schema = schema::find(kind.group, kind.kind).expect("a schema");
    let Some(object) = conform(schema, object) else { return };
    patch.resource_version();
    let Ok(patched) = apply(schema, &object, &patch) else { return };
    if let Patch::Merge(_) = patch {
        assert_eq!(apply(schema, &patched, &patch).as_ref(), Ok(&patched));
    }
    conform(schema, patched);
});
