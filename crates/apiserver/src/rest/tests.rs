//! The API over a store on disk, asked as a client asks it.

mod access;
mod bounds;
mod life;
mod reading;
mod writing;

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::store;

/// A server with what it keeps, and what goes on beside requests.
struct Server {
    api: Api,
    beside: JoinHandle<()>,
    _dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.beside.abort();
    }
}

/// An answer that is there as a whole.
#[derive(Debug)]
struct Answered {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

impl Answered {
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
        let api = Api::new(store, Access::generate().unwrap(), options);
        api.prepare().await.unwrap();
        let beside = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        Self { api, beside, _dir: dir }
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

    async fn ask(&self, method: &str, path: &str, media: &str, body: Value) -> Answered {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let response = self.raw(&User::admin(), method, path, &[("content-type", media)], &body).await;
        answered(response).await
    }

    async fn get(&self, path: &str) -> Answered {
        self.ask("GET", path, JSON, Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Answered {
        self.ask("POST", path, JSON, body).await
    }

    async fn put(&self, path: &str, body: Value) -> Answered {
        self.ask("PUT", path, JSON, body).await
    }

    async fn delete(&self, path: &str) -> Answered {
        self.ask("DELETE", path, JSON, Value::Null).await
    }

    /// Makes it, and it is made.
    async fn make(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.body
    }

    /// Waits until the object at the path is gone.
    async fn gone(&self, path: &str) {
        for _ in 0..500 {
            if self.get(path).await.code == 404 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{path} is still there: {}", self.get(path).await.body);
    }

    /// Waits until the object at the path is like this.
    async fn until(&self, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..500 {
            let answer = self.get(path).await;
            if answer.code == 200 && is(&answer.body) {
                return answer.body;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{path} never came to it: {}", self.get(path).await.body);
    }

    async fn watch(&self, path: &str) -> Watching {
        let response = self.raw(&User::admin(), "GET", path, &[], "").await;
        assert_eq!(response.status().as_u16(), 200);
        Watching { body: response.into_body(), rest: Vec::new() }
    }
}

async fn answered(response: Response<Body>) -> Answered {
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
    Answered { code, warnings, body }
}

/// A watch that is read line by line.
struct Watching {
    body: Body,
    rest: Vec<u8>,
}

impl Watching {
    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(std::time::Duration::from_secs(20), self.body.frame());
            let frame = frame.await.expect("nothing came")?.unwrap();
            self.rest.extend_from_slice(frame.data_ref().unwrap());
        }
    }

    /// What it is, and of which object.
    async fn told(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch ended");
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

fn told(kind: &str, name: &str) -> (String, String) {
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
