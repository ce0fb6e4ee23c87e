//! URLs of lists, watches and deletions: paths, query options, selectors and continue tokens.
//!
//! Promise: the server never panics and has no internal error. A list with a continue token can be continued. A dry run
//! deletes nothing.

#![no_main]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use wharf_fuzz::api::{JSON, Server};

thread_local!(static SERVER: Server = Server::with_objects());

const PODS: &str = "/api/v1/namespaces/default/pods";

fn send(method: &str, uri: &str, body: &[u8]) -> Option<(u16, Value)> {
    SERVER.with(|server| server.send(method, uri, JSON, body))
}

fn continue_list(list: &Value, query: &str) {
    let Some(token) = list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) else { return };
    let (code, next) =
        send("GET", &format!("/api/v1/configmaps?continue={token}&{query}"), b"").expect("a request");
    assert_eq!(code, 200, "{query}: {list} {next}");
}

fuzz_target!(|data: &[u8]| {
    let [choice, data @ ..] = data else { return };
    let text = String::from_utf8_lossy(data);
    // A list can have any of these options but the one for the next page.
    let query: String = text
        .split('&')
        .filter(|option| option.starts_with("limit=") || option.contains("Selector="))
        .collect::<Vec<_>>()
        .join("&");
    match choice % 6 {
        0 => drop(send("GET", &text, b"")),
        1 => drop(send("GET", &format!("/api/v1/configmaps?{text}"), b"")),
        2 => drop(send("GET", &format!("{PODS}?watch=1&{text}"), b"")),
        3 => drop(send("GET", &format!("{PODS}?continue={}", BASE64.encode(data)), b"")),
        4 => match send("GET", &format!("/api/v1/configmaps?{query}"), b"") {
            Some((200, list)) => continue_list(&list, &query),
            _ => {}
        },
        _ => {
            send("DELETE", &format!("/api/v1/namespaces/default/configmaps?dryRun=All&{text}"), b"");
            send("DELETE", &format!("{PODS}/absent"), data);
            let (_, list) = send("GET", "/api/v1/namespaces/default/configmaps", b"").expect("a request");
            assert_eq!(
                list["items"].as_array().map(Vec::len),
                Some(3),
                "a dry run of {text:?} deleted objects"
            );
        }
    }
});
