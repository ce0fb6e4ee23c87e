//! The embedded API server with its store in memory.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::kinds::{KINDS, Kind};
use wharf_apiserver::rest::{Api, Options};
use wharf_apiserver::store::{self, Store};

pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An API server and the runtime that it runs on.
pub struct Server {
    api: Api,
    runtime: Runtime,
}

impl Default for Server {
    /// Has the namespace `default` with its service account, which pods need.
    fn default() -> Self {
        let runtime = runtime();
        let access = Access::generate().expect("a key");
        let api = Api::new(Store::in_memory(store::Options::default()), access, Options::default());
        runtime.block_on(api.prepare()).expect("initial objects");
        let server = Self { api, runtime };
        let account = json!({"metadata": {"name": "default"}}).to_string();
        server.send("POST", "/api/v1/namespaces/default/serviceaccounts", JSON, account.as_bytes());
        server
    }
}

/// A runtime of one thread, on which nothing is random.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

impl Server {
    /// Sends a request. Returns the status and the body; the body of a watch is not read. `None`: no HTTP client can send
    /// it. Fails if the server has an internal error.
    pub fn send(&self, method: &str, uri: &str, media: &str, body: &[u8]) -> Option<(u16, Value)> {
        let request = Request::builder().method(method).uri(uri).header("content-type", media);
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).ok()?;
        self.runtime.block_on(async {
            let response = self.api.serve(request, User::admin()).await;
            let code = response.status().as_u16();
            let body = tokio::time::timeout(Duration::ZERO, response.into_body().collect()).await;
            let body = body.ok().map(|body| body.expect("a body").to_bytes()).unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            assert_ne!(body["reason"], "InternalError", "{method} {uri}: {body}");
            Some((code, body))
        })
    }
}

/// One of the kinds whose objects are stored.
pub fn kind(index: u8) -> &'static Kind {
    let stored: Vec<&Kind> = KINDS.iter().copied().filter(|kind| kind.is_stored()).collect();
    stored[index as usize % stored.len()]
}

/// The path of a kind's collection.
pub fn collection(kind: &Kind) -> String {
    let version = kind.api_version();
    let group = if kind.group.is_empty() { "/api" } else { "/apis" };
    let namespace = if kind.namespaced { "/namespaces/default" } else { "" };
    format!("{group}/{version}{namespace}/{}", kind.plural)
}

/// A name as a segment of a path: names of some kinds can contain any character but a few.
pub fn encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A body in protobuf: the envelope with the kind, and the message. (Lengths below 128 take one byte.)
pub fn protobuf(kind: &Kind, message: &[u8]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let (mut length, mut out) = (bytes.len(), vec![number << 3 | 2]);
        while length > 127 {
            out.push(length as u8 | 128);
            length >>= 7;
        }
        out.push(length as u8);
        [out, bytes.to_vec()].concat()
    };
    let type_meta = [field(1, kind.api_version().as_bytes()), field(2, kind.kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, message)].concat()
}

/// Paths of objects and the objects themselves, one of each kind that has rules for updates.
pub fn stored_objects() -> Vec<(String, Value)> {
    let objects = serde_json::from_str::<Vec<Value>>(include_str!("objects.json")).expect("JSON");
    let path = |object: &Value| {
        let text = |field: &str| object[field].as_str().expect("a text");
        let kind =
            KINDS.iter().find(|kind| kind.api_version() == text("apiVersion") && kind.kind == text("kind"));
        let name = object["metadata"]["name"].as_str().expect("a name");
        format!("{}/{name}", collection(kind.expect("a kind")))
    };
    objects.into_iter().map(|object| (path(&object), object)).collect()
}

impl Server {
    /// A server with the objects in `objects.json`.
    pub fn with_objects() -> Self {
        let server = Self::default();
        for (path, object) in stored_objects() {
            let (collection, _) = path.rsplit_once('/').expect("a path");
            let (code, response) =
                server.send("POST", collection, JSON, object.to_string().as_bytes()).expect("a request");
            assert_eq!(code, 201, "{response}");
        }
        server
    }
}
