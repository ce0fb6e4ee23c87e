//! Sends arbitrary requests to the whole server in this process. The server must not panic, return an internal error,
//! or use more memory than its limits allow.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod request;
mod vocabulary;

use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use request::{TestRequest, any_request};
use serde_json::Value;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{Api, Body, Options};
use wharf_apiserver::store::{self, Store};

struct Server {
    api: Api,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(dir.path(), store::Options { sync: false, ..store::Options::default() }).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), Options::default());
        runtime.block_on(api.prepare()).unwrap();
        Self { api, runtime, _dir: dir }
    }

    /// Sends a request, and reads the response unless it is a watch.
    fn send(&self, sent: &TestRequest) -> Option<(u16, Bytes)> {
        let mut request = Request::builder().method(sent.method).uri(&sent.path);
        for (name, value) in &sent.headers {
            request = request.header(*name, value);
        }
        // Skip requests that no client can send.
        let request = request.body(Full::new(Bytes::from(sent.body.clone()))).ok()?;
        let user = match sent.user {
            0 => User::node("n1"),
            1 => User::sidecar(),
            _ => User::admin(),
        };
        self.runtime.block_on(async {
            let response: Response<Body> = self.api.serve(request, user).await;
            let code = response.status().as_u16();
            if sent.path.contains("watch") && code == 200 {
                return Some((code, Bytes::new()));
            }
            Some((code, response.into_body().collect().await.unwrap().to_bytes()))
        })
    }
}

/// Whether a response is an internal error. Upstream also returns 500 for some patches, and for the creation of objects
/// with a resourceVersion: these errors have no reason.
fn is_internal_error(code: u16, body: &[u8]) -> bool {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    code >= 500 && code != 501 && (status["reason"] == "InternalError" || status["code"] != code)
}

#[test]
fn arbitrary_requests_cause_no_internal_errors() {
    let server = Server::start();
    let mut runner = TestRunner::new(Config { cases: 6_000, failure_persistence: None, ..Config::default() });
    let counts_by_class = std::cell::Cell::new([0_usize; 6]);
    runner
        .run(&any_request(), |request| {
            let Some((code, body)) = server.send(&request) else { return Ok(()) };
            let mut counts = counts_by_class.get();
            counts[usize::from(code / 100)] += 1;
            counts_by_class.set(counts);
            if is_internal_error(code, &body) {
                let message = String::from_utf8_lossy(&body).into_owned();
                return Err(TestCaseError::fail(format!("{code}: {message}")));
            }
            Ok(())
        })
        .unwrap();
    // Only errors, or only successes, would prove little.
    let [.., good, _, bad, _] = counts_by_class.get();
    assert!(good > 200 && bad > 200, "responses by status class: {:?}", counts_by_class.get());
    // The server still works.
    let after = TestRequest {
        user: 2,
        method: "GET",
        path: "/api/v1/pods".into(),
        headers: Vec::new(),
        body: Vec::new(),
    };
    assert_eq!(server.send(&after).unwrap().0, 200);
}

/// Serializes the tests that measure the memory of the process.
static MEMORY_TEST: Mutex<()> = Mutex::new(());

/// Resets the peak, and returns the current memory in KiB.
fn reset_peak_memory() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak_memory()
}

/// The peak memory in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Bodies of maximum size with as many values of one type as possible, in the fields where they use the most memory.
#[test]
fn json_bodies_stay_within_memory_limit() {
    const LIMIT: usize = 3 << 20;
    let _guard = MEMORY_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start();
    let before = reset_peak_memory();
    let fill = |text: &str| vec![text; (LIMIT - 600) / (text.len() + 1)].join(",");
    let list = |text: &str| format!("[{}]", fill(text));
    let members = |value: &str| {
        let mut text = String::from("{");
        for key in 0.. {
            let member = format!("\"{key:x}\":{value},");
            if text.len() + member.len() > LIMIT - 600 {
                break;
            }
            text.push_str(&member);
        }
        text.pop();
        text.push('}');
        text
    };
    let fillings = [
        list("{}"),
        list("[]"),
        list("null"),
        list("0"),
        list("\"\""),
        list("{\"name\":\"\"}"),
        list("{\"controller\":true}"),
        members("{}"),
        members("null"),
        members("\"\""),
        format!("{:?}", "x".repeat(LIMIT - 600)),
        format!("{}{}", "[".repeat(LIMIT / 2 - 300), "]".repeat(LIMIT / 2 - 300)),
    ];
    let wrappings: &[(&str, &str, &str)] = &[
        ("/api/v1/namespaces/default/pods", "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"containers\":", "}}"),
        (
            "/api/v1/namespaces/default/pods",
            "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\",\"env\":",
            "}]}}",
        ),
        (
            "/api/v1/namespaces/default/pods",
            "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"tolerations\":",
            "}}",
        ),
        ("/api/v1/namespaces/default/pods", "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"volumes\":", "}}"),
        ("/api/v1/namespaces/default/configmaps", "{\"metadata\":{\"name\":\"a\",\"ownerReferences\":", "}}"),
        ("/api/v1/namespaces/default/configmaps", "{\"metadata\":{\"name\":\"a\",\"finalizers\":", "}}"),
        ("/api/v1/namespaces/default/configmaps", "{\"metadata\":{\"name\":\"a\",\"labels\":", "}}"),
        ("/api/v1/namespaces/default/configmaps", "{\"metadata\":{\"name\":\"a\"},\"data\":", "}"),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            "{\"metadata\":{\"name\":\"a\"},\"provisioner\":\"d\",\"allowedTopologies\":",
            "}",
        ),
        ("/apis/storage.k8s.io/v1/csinodes", "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"drivers\":", "}}"),
        ("/api/v1/nodes", "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"taints\":", "}}"),
        ("/api/v1/nodes", "{\"metadata\":{\"name\":\"a\"},\"unknown\":{\"field\":", "}}"),
    ];
    for (path, head, tail) in wrappings {
        for filling in &fillings {
            let body = format!("{head}{filling}{tail}").into_bytes();
            assert!(body.len() <= LIMIT, "{}", body.len());
            for (method, media) in [
                ("POST", "application/json"),
                ("PATCH", "application/merge-patch+json"),
                ("PATCH", "application/strategic-merge-patch+json"),
            ] {
                let path = if method == "POST" { (*path).to_owned() } else { format!("{path}/a") };
                let headers = vec![("content-type", media.to_owned())];
                let request = TestRequest { user: 2, method, path, headers, body: body.clone() };
                let (code, response) = server.send(&request).unwrap();
                assert!(!is_internal_error(code, &response), "{}", String::from_utf8_lossy(&response));
                // The response is at most a few times the size of the request.
                assert!(response.len() <= 4 * LIMIT, "{head}{}: {}", &filling[..20], response.len());
            }
        }
    }
    let grown = (peak_memory() - before) >> 10;
    assert!(grown <= 300, "requests of {} MiB used {grown} MiB of memory", LIMIT >> 20);
}

/// Encodes a protobuf message within another.
fn field(number: u8, inner: &[u8]) -> Vec<u8> {
    let (mut field, mut length) = (vec![number << 3 | 2], inner.len());
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(inner);
    field
}

/// Other request bodies (JSON patches, protobuf) and URLs of maximum size.
#[test]
fn patches_protobuf_and_urls_stay_within_memory_limit() {
    const LIMIT: usize = 3 << 20;
    /// The maximum length of a URL.
    const MAX_URL: usize = 60_000;
    let _guard = MEMORY_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start();
    let maps = "/api/v1/namespaces/default/configmaps";
    let send = |method: &'static str, path: &str, media: &str, body: Vec<u8>| {
        assert!(body.len() <= LIMIT, "{}", body.len());
        let headers = vec![("content-type", media.to_owned())];
        let request = TestRequest { user: 2, method, path: path.to_owned(), headers, body };
        let (code, response) = server.send(&request).unwrap();
        assert!(!is_internal_error(code, &response), "{}", String::from_utf8_lossy(&response));
        assert!(response.len() <= 4 * LIMIT, "{method} {}: {}", &path[..path.len().min(80)], response.len());
        code
    };
    let object = format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":{{\"a\":{:?}}}}}", "x".repeat(100_000));
    assert_eq!(send("POST", maps, "application/json", object.into_bytes()), 201);
    let before = reset_peak_memory();
    let fill = |text: &str| format!("[{}]", vec![text; (LIMIT - 2) / (text.len() + 1)].join(","));
    let operations = [
        // Each copy at least doubles the object.
        "{\"op\":\"copy\",\"from\":\"\",\"path\":\"/data/b\"}",
        "{\"op\":\"copy\",\"from\":\"/data\",\"path\":\"/data/b\"}",
        "{\"op\":\"copy\",\"from\":\"/data/a\",\"path\":\"/metadata/finalizers/-\"}",
        "{\"op\":\"add\",\"path\":\"/metadata/finalizers\",\"value\":[]},{\"op\":\"copy\",\"from\":\"/metadata\",\"path\":\"/metadata/finalizers/-\"}",
        "{\"op\":\"add\",\"path\":\"/data/b\",\"value\":{}}",
        "{\"op\":\"move\",\"from\":\"/data/a\",\"path\":\"/data/a\"}",
        "{\"op\":\"test\",\"path\":\"/data\",\"value\":[]}",
        "{\"op\":\"replace\",\"path\":\"\",\"value\":{}}",
        "{}",
    ];
    let patches = operations.iter().map(|operation| fill(operation));
    let deep = format!("[{{\"op\":\"add\",\"path\":{:?},\"value\":0}}]", "/a".repeat(LIMIT / 2 - 40));
    for patch in patches.chain([deep]) {
        send("PATCH", &format!("{maps}/a"), "application/json-patch+json", patch.into_bytes());
    }
    let nested = |number: u8, most: usize| {
        let mut inner = Vec::new();
        while inner.len() < most {
            inner = field(number, &inner);
        }
        inner
    };
    let many = |number: u8, inner: &[u8]| {
        let one = field(number, inner);
        one.repeat((LIMIT - 64) / one.len())
    };
    let text = vec![b'x'; LIMIT - 64];
    for (kind, path) in [("ConfigMap", maps), ("Pod", "/api/v1/namespaces/default/pods")] {
        let kind = field(1, &[field(1, b"v1"), field(2, kind.as_bytes())].concat());
        let raws = (1..=4).flat_map(|number| {
            // Many empty messages, many messages with one field, and deeply nested messages.
            [
                many(number, &[]),
                many(number, &field(1, b"a")),
                many(number, &field(2, &[])),
                nested(number, 4096),
            ]
        });
        let raws = raws.chain([field(2, &many(2, &[])[..LIMIT - 128]), field(1, &text[..LIMIT - 128])]);
        for raw in raws {
            let body = [&b"k8s\0"[..], &kind, &field(2, &raw[..raw.len().min(LIMIT - 64)])].concat();
            send("POST", path, "application/vnd.kubernetes.protobuf", body);
        }
    }
    let repeated = |text: &str| text.repeat(MAX_URL / text.len());
    let token = BASE64
        .encode(format!("{{\"v\":\"meta.k8s.io/v1\",\"rv\":-1,\"start\":\"{}\"}}", "a/".repeat(20_000)));
    for (parameter, value) in [
        ("labelSelector", repeated("a,")),
        ("labelSelector", repeated("!a,")),
        ("labelSelector", format!("a%20in%20({})", repeated("b,"))),
        ("labelSelector", repeated("(")),
        ("labelSelector", repeated("a%3Db,")),
        ("fieldSelector", repeated("metadata.name%3Da,")),
        ("fieldSelector", repeated("%5C")),
        ("continue", repeated("e")),
        ("continue", token),
        ("continue", BASE64.encode(repeated("[").split_at(40_000).0)),
    ] {
        for method in ["GET", "DELETE"] {
            // dryRun: nothing is deleted.
            send(
                method,
                &format!("{maps}?limit=1&dryRun=All&{parameter}={value}"),
                "application/json",
                Vec::new(),
            );
        }
    }
    let grown = (peak_memory() - before) >> 10;
    assert!(grown <= 300, "requests of {} MiB used {grown} MiB of memory", LIMIT >> 20);
}
