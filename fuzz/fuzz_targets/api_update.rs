//! Bodies of updates and patches of stored objects and of their status: PUT, JSON patch, merge patch, strategic merge patch.
//!
//! Promise: the server never panics and has no internal error. The object that results from an accepted change, sent back
//! unchanged, is accepted and changes nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::api::{JSON, Server, stored_objects};

const CHANGES: [(&str, &str); 4] = [
    ("PUT", JSON),
    ("PATCH", "application/json-patch+json"),
    ("PATCH", "application/merge-patch+json"),
    ("PATCH", "application/strategic-merge-patch+json"),
];

thread_local!(static SERVER: Server = Server::with_objects());

fuzz_target!(|data: &[u8]| {
    let [choice, change, body @ ..] = data else { return };
    let (method, media) = CHANGES[(change & 3) as usize];
    let objects = stored_objects();
    let (path, _) = &objects[*choice as usize % objects.len()];
    let below = if change & 4 == 0 { path.clone() } else { format!("{path}/status") };
    let uri = format!("{below}?dryRun=All");
    let Some((200, _)) = SERVER.with(|server| server.send(method, &uri, media, body)) else { return };

    let server = Server::with_objects();
    let (code, changed) = server.send(method, &below, media, body).expect("a request");
    assert_eq!(code, 200, "accepted as a dry run only: {changed}");
    // A change can complete a deletion.
    let Some((200, _)) = server.send("GET", path, JSON, b"") else { return };
    let (code, again) = server.send("PUT", &below, JSON, changed.to_string().as_bytes()).expect("a request");
    assert_eq!(code, 200, "accepted, but not again: {changed}\n{again}");
    assert_eq!(again, changed, "accepted again, but changed");
});
