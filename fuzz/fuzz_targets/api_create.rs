//! Bodies of create requests, in JSON and in protobuf, for every kind that is stored: decoded, defaulted, admitted, validated.
//!
//! Promise: the server never panics and has no internal error. An accepted object stays valid: the stored object, sent
//! back unchanged, is accepted and changes nothing. A dry run has the same result as the create.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::api::{JSON, PROTOBUF, Server, collection, encoded, kind, protobuf};

thread_local!(static SERVER: Server = Server::default());

fuzz_target!(|data: &[u8]| {
    let [choice, body @ ..] = data else { return };
    let (kind, is_protobuf) = (kind(choice & 0x7f), choice & 0x80 != 0);
    let (media, body) = if is_protobuf { (PROTOBUF, protobuf(kind, body)) } else { (JSON, body.to_vec()) };
    let path = collection(kind);
    let uri = format!("{path}?dryRun=All");
    let Some((201, _)) = SERVER.with(|server| server.send("POST", &uri, media, &body)) else { return };

    let server = Server::default();
    let (code, created) = server.send("POST", &path, media, &body).expect("a request");
    assert_eq!(code, 201, "accepted as a dry run only: {created}");
    let uri = format!("{path}/{}", encoded(created["metadata"]["name"].as_str().expect("a name")));
    let (code, updated) = server.send("PUT", &uri, JSON, created.to_string().as_bytes()).expect("a request");
    assert_eq!(code, 200, "accepted, but not again: {created}\n{updated}");
    assert_eq!(updated, created, "accepted again, but changed");
});
