//! An API server inside the test: a function from requests to responses that kube's client calls.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use wharf_model::{ApiResource, Kind, Meta, Scope};

use crate::Cluster;

/// A small namespaced kind.
#[derive(Debug, Clone, Deserialize, PartialEq)]
pub(crate) struct Thing {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) color: String,
}

impl Kind for Thing {
    const API: ApiResource = ApiResource {
        group: "t.dev",
        version: "v1",
        kind: "Thing",
        plural: "things",
        scope: Scope::Namespaced,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A thing as the server would return it; its UID is derived from its name.
pub(crate) fn thing(name: &str, version: u64, color: &str) -> Value {
    json!({
        "apiVersion": "t.dev/v1", "kind": "Thing", "color": color,
        "metadata": {"namespace": "ns", "name": name, "uid": format!("u-{name}"), "resourceVersion": version.to_string()},
    })
}

pub(crate) fn decoded(value: Value) -> Thing {
    serde_json::from_value(value).unwrap()
}

/// A request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) body: Value,
}

impl ReceivedRequest {
    pub(crate) fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }
}

/// The server's response.
pub(crate) enum Reply {
    Json(u16, Value),
    Text(u16, &'static str),
    /// A stream of lines; ends when the sender is dropped.
    Stream(mpsc::UnboundedReceiver<Vec<u8>>),
    Never,
}

pub(crate) fn list(version: u64, next: &str, items: Vec<Value>) -> Reply {
    Reply::Json(
        200,
        json!({"metadata": {"resourceVersion": version.to_string(), "continue": next}, "items": items}),
    )
}

pub(crate) fn status(code: u16, reason: &str, name: &str) -> Reply {
    let message = format!("{reason} of {name}");
    Reply::Json(
        code,
        json!({"kind": "Status", "code": code, "reason": reason, "message": message, "details": {"name": name}}),
    )
}

pub(crate) fn line(kind: &str, object: Value) -> Vec<u8> {
    format!("{}\n", json!({"type": kind, "object": object})).into_bytes()
}

/// A cluster whose server is this function.
pub(crate) fn cluster(respond: impl FnMut(ReceivedRequest) -> Reply + Send + 'static) -> Cluster {
    Cluster::with_client(client(respond))
}

/// A client of a server that is this function.
fn client(respond: impl FnMut(ReceivedRequest) -> Reply + Send + 'static) -> kube::Client {
    let respond = Arc::new(Mutex::new(respond));
    let service = tower::service_fn(move |request: Request<Body>| {
        let respond = Arc::clone(&respond);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let query = parts.uri.query().unwrap_or("");
            let query = query.split('&').filter_map(|pair| pair.split_once('='));
            let received = ReceivedRequest {
                method: parts.method.to_string(),
                path: parts.uri.path().to_owned(),
                query: query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
                body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            };
            let reply = (respond.lock().unwrap())(received);
            let (status, body) = match reply {
                Reply::Json(status, body) => (status, FakeBody::whole(body.to_string().into_bytes())),
                Reply::Text(status, text) => (status, FakeBody::whole(text.as_bytes().to_vec())),
                Reply::Stream(receiver) => (200, FakeBody { first: None, rest: Some(receiver) }),
                Reply::Never => std::future::pending().await,
            };
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    kube::Client::new(service, "default")
}

/// A cluster whose server sends these responses in order and then none, and the requests that it received.
pub(crate) fn scripted(replies: Vec<Reply>) -> (Cluster, Arc<Mutex<Vec<ReceivedRequest>>>) {
    let (client, requests) = scripted_client(replies);
    (Cluster::with_client(client), requests)
}

/// Like [`scripted`], but only the client.
pub(crate) fn scripted_client(replies: Vec<Reply>) -> (kube::Client, Arc<Mutex<Vec<ReceivedRequest>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let mut replies = VecDeque::from(replies);
    let log = Arc::clone(&requests);
    let client = client(move |request| {
        log.lock().unwrap().push(request);
        replies.pop_front().unwrap_or(Reply::Never)
    });
    (client, requests)
}

/// A stream that stays open, and its sender.
pub(crate) fn stream() -> (mpsc::UnboundedSender<Vec<u8>>, Reply) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Reply::Stream(receiver))
}

struct FakeBody {
    first: Option<Vec<u8>>,
    rest: Option<mpsc::UnboundedReceiver<Vec<u8>>>,
}

impl FakeBody {
    fn whole(bytes: Vec<u8>) -> Self {
        Self { first: Some(bytes), rest: None }
    }
}

impl hyper::body::Body for FakeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first.into()))));
        }
        match &mut self.rest {
            Some(rest) => rest.poll_recv(context).map(|part| part.map(|bytes| Ok(Frame::data(bytes.into())))),
            None => Poll::Ready(None),
        }
    }
}

/// Objects by path with optimistic locking, for leases and events.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) by_path: BTreeMap<String, Value>,
    version: u64,
    watchers: Vec<mpsc::UnboundedSender<Vec<u8>>>,
}

impl Objects {
    pub(crate) fn respond(&mut self, request: &ReceivedRequest) -> Reply {
        let name = request.path.rsplit('/').next().unwrap_or("").to_owned();
        let present = self.by_path.get(&request.path).cloned();
        match (request.method.as_str(), present) {
            ("GET", _) if request.is_watch() => {
                let (sender, reply) = stream();
                self.watchers.push(sender);
                reply
            }
            ("GET", Some(object)) => Reply::Json(200, object),
            // Collections have a plural as their last segment.
            ("GET", None) if name.ends_with('s') => {
                list(self.version, "", self.by_path.values().cloned().collect())
            }
            ("POST", _) => {
                let name = request.body["metadata"]["name"].as_str().unwrap().to_owned();
                let path = format!("{}/{name}", request.path);
                if self.by_path.contains_key(&path) {
                    return status(409, "AlreadyExists", &name);
                }
                self.store(path, request.body.clone(), "ADDED")
            }
            (_, None) => status(404, "NotFound", &name),
            ("PUT", Some(object)) => {
                if request.body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return status(409, "Conflict", &name);
                }
                self.store(request.path.clone(), request.body.clone(), "MODIFIED")
            }
            ("PATCH", Some(mut object)) => {
                for (field, value) in request.body.as_object().unwrap() {
                    object[field] = value.clone();
                }
                self.store(request.path.clone(), object, "MODIFIED")
            }
            (other, Some(_)) => panic!("the fake server does not support {other}"),
        }
    }

    fn store(&mut self, path: String, mut object: Value, kind: &str) -> Reply {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.watchers.retain(|watcher| watcher.send(line(kind, object.clone())).is_ok());
        self.by_path.insert(path, object.clone());
        Reply::Json(200, object)
    }
}
