//! The API over a store on disk, used as a client does.

mod access;
mod bounds;
mod extremes;
mod lifecycle;
mod reading;
mod writing;

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::store;

/// A server with its store and its controllers.
struct Server {
    api: Api,
    controllers: JoinHandle<()>,
    _dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.controllers.abort();
    }
}

/// A complete response.
#[derive(Debug)]
struct TestResponse {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

impl TestResponse {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or("")
    }

    fn version(&self) -> u64 {
        self.body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

impl Server {
    async fn start() -> Self {
        Self::with(store::Options { sync: false, ..store::Options::default() }, Options::default()).await
    }

    async fn with(store: store::Options, options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), store).unwrap();
        Self::of(store, dir, options).await
    }

    /// A store in memory, for tests with a paused clock.
    async fn in_memory(options: Options) -> Self {
        let store = Store::in_memory(store::Options::default());
        Self::of(store, tempfile::tempdir().unwrap(), options).await
    }

    async fn of(store: Store, dir: TempDir, options: Options) -> Self {
        let api = Api::new(store, Access::generate().unwrap(), options);
        api.prepare().await.unwrap();
        let controllers = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        Self { api, controllers, _dir: dir }
    }

    async fn raw(
        &self,
        user: &User,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Body> {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(bytes::Bytes::from(body.to_owned()))).unwrap();
        self.api.serve(request, user.clone()).await
    }

    async fn request(&self, method: &str, path: &str, media: &str, body: Value) -> TestResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let response = self.raw(&User::admin(), method, path, &[("content-type", media)], &body).await;
        read_response(response).await
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.request("GET", path, JSON, Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> TestResponse {
        self.request("POST", path, JSON, body).await
    }

    async fn put(&self, path: &str, body: Value) -> TestResponse {
        self.request("PUT", path, JSON, body).await
    }

    async fn delete(&self, path: &str) -> TestResponse {
        self.request("DELETE", path, JSON, Value::Null).await
    }

    /// Creates the object and asserts success.
    async fn create(&self, path: &str, body: Value) -> Value {
        let response = self.post(path, body).await;
        assert_eq!(response.code, 201, "{}", response.body);
        response.body
    }

    /// Waits until the object at the path is deleted.
    async fn wait_deleted(&self, path: &str) {
        for _ in 0..500 {
            if self.get(path).await.code == 404 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{path} still exists: {}", self.get(path).await.body);
    }

    /// Waits until the object at the path satisfies the condition.
    async fn wait_until(&self, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..500 {
            let response = self.get(path).await;
            if response.code == 200 && is(&response.body) {
                return response.body;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{path} never satisfied the condition: {}", self.get(path).await.body);
    }

    async fn watch(&self, path: &str) -> TestWatch {
        let response = self.raw(&User::admin(), "GET", path, &[], "").await;
        assert_eq!(response.status().as_u16(), 200);
        TestWatch { body: response.into_body(), rest: Vec::new() }
    }
}

async fn read_response(response: Response<Body>) -> TestResponse {
    let code = response.status().as_u16();
    let warnings = response
        .headers()
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap().to_owned())
        .collect();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into());
    TestResponse { code, warnings, body }
}

/// A watch that is read event by event.
struct TestWatch {
    body: Body,
    rest: Vec<u8>,
}

impl TestWatch {
    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(std::time::Duration::from_secs(20), self.body.frame());
            let frame = frame.await.expect("no event arrived")?.unwrap();
            self.rest.extend_from_slice(frame.data_ref().unwrap());
        }
    }

    /// The type and the object name of the next event.
    async fn next_summary(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch ended");
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

fn summary(kind: &str, name: &str) -> (String, String) {
    (kind.into(), name.into())
}

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CONFIGS: &str = "/api/v1/namespaces/default/configmaps";

fn claim(name: &str) -> Value {
    json!({
        "kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn config(name: &str, color: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "labels": {"color": color}},
        "data": {"a": "b"},
    })
}

/// A request body that panics when it is read.
struct PanickingBody;

impl http_body::Body for PanickingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        panic!("on purpose")
    }
}

#[tokio::test]
async fn panic_in_a_request_is_answered_with_status_500() {
    let server = Server::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let request = Request::builder().method("POST").uri(path).header("content-type", JSON);
    let response = server.api.serve(request.body(PanickingBody).unwrap(), User::admin()).await;
    let response = read_response(response).await;
    assert_eq!((response.code, &response.body["reason"]), (500, &json!("InternalError")), "{response:?}");
    assert!(response.message().contains("caused a panic"), "{response:?}");
    assert!(!response.message().contains("on purpose"), "the message stays in the log");
    server.create(path, json!({"metadata": {"name": "next"}})).await;
}
