//! A minimal API client for tests with many requests: untyped objects, one request at a time, no watches. It
//! replaces kubectl where a process for each request would dominate the test's duration.

use std::path::Path;

use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Short name, kind, path of the API group, plural, whether the kind is namespaced.
const KINDS: [(&str, &str, &str, &str, bool); 20] = [
    ("ns", "Namespace", "/api/v1", "namespaces", false),
    ("pvc", "PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims", true),
    ("pv", "PersistentVolume", "/api/v1", "persistentvolumes", false),
    ("pod", "Pod", "/api/v1", "pods", true),
    ("secret", "Secret", "/api/v1", "secrets", true),
    ("node", "Node", "/api/v1", "nodes", false),
    ("csinode", "CSINode", "/apis/storage.k8s.io/v1", "csinodes", false),
    ("csidriver", "CSIDriver", "/apis/storage.k8s.io/v1", "csidrivers", false),
    ("sc", "StorageClass", "/apis/storage.k8s.io/v1", "storageclasses", false),
    ("va", "VolumeAttachment", "/apis/storage.k8s.io/v1", "volumeattachments", false),
    ("csc", "CSIStorageCapacity", "/apis/storage.k8s.io/v1", "csistoragecapacities", true),
    ("vac", "VolumeAttributesClass", "/apis/storage.k8s.io/v1", "volumeattributesclasses", false),
    ("vs", "VolumeSnapshot", "/apis/snapshot.storage.k8s.io/v1", "volumesnapshots", true),
    ("vsc", "VolumeSnapshotContent", "/apis/snapshot.storage.k8s.io/v1", "volumesnapshotcontents", false),
    ("vsclass", "VolumeSnapshotClass", "/apis/snapshot.storage.k8s.io/v1", "volumesnapshotclasses", false),
    ("vgs", "VolumeGroupSnapshot", "/apis/groupsnapshot.storage.k8s.io/v1", "volumegroupsnapshots", true),
    (
        "vgsc",
        "VolumeGroupSnapshotContent",
        "/apis/groupsnapshot.storage.k8s.io/v1",
        "volumegroupsnapshotcontents",
        false,
    ),
    (
        "vgsclass",
        "VolumeGroupSnapshotClass",
        "/apis/groupsnapshot.storage.k8s.io/v1",
        "volumegroupsnapshotclasses",
        false,
    ),
    ("lease", "Lease", "/apis/coordination.k8s.io/v1", "leases", true),
    ("crd", "CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", false),
];

/// A client with the credentials of a kubeconfig. Sends no request yet.
pub async fn connect(kubeconfig: &Path) -> Result<kube::Client, String> {
    let file = Kubeconfig::read_from(kubeconfig).map_err(|error| error.to_string())?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| error.to_string())?;
    kube::Client::try_from(config).map_err(|error| error.to_string())
}

/// An API client for one thread.
pub struct ApiClient {
    client: kube::Client,
    runtime: Runtime,
}

impl ApiClient {
    /// Wraps a client. `make` runs inside the runtime that the client needs.
    pub fn from_client(make: impl FnOnce() -> kube::Client) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let client = runtime.block_on(async { make() });
        Ok(Self { client, runtime })
    }

    /// A client with the credentials of a kubeconfig. Sends no request yet.
    pub fn connect(kubeconfig: &Path) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let client = runtime.block_on(connect(kubeconfig))?;
        Ok(Self { client, runtime })
    }

    /// Creates an object, in this namespace if its kind is namespaced, and returns the stored object.
    pub fn create(&self, namespace: &str, object: &Value) -> Result<Value, String> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let short = short(kind).ok_or_else(|| format!("the harness does not know the kind {kind:?}"))?;
        let path = path(namespace, short, "")?;
        let created = self.send(Method::POST, &path, "application/json", object.to_string())?;
        created.ok_or_else(|| format!("{path} is not served"))
    }

    /// An object by short kind and name; `None` if it does not exist.
    pub fn get(&self, namespace: &str, object: &str) -> Result<Option<Value>, String> {
        let (kind, name) = split(object)?;
        self.send(Method::GET, &path(namespace, kind, &format!("/{name}"))?, "", String::new())
    }

    /// All objects of a short kind that match a label selector, in this namespace if the kind is namespaced.
    pub fn list(&self, namespace: &str, kind: &str, selector: &str) -> Result<Vec<Value>, String> {
        let path = path(namespace, kind, &format!("?labelSelector={selector}"))?;
        self.send(Method::GET, &path, "", String::new())?
            .map(items)
            .ok_or_else(|| format!("{path} is not served"))
    }

    /// A page that is not an object, such as `/metrics`.
    pub fn text(&self, path: &str) -> Result<String, String> {
        let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        self.runtime.block_on(self.client.request_text(request)).map_err(|error| error.to_string())
    }

    /// The events of a namespace that match a field selector.
    pub fn events(&self, namespace: &str, selector: &str) -> Result<Vec<Value>, String> {
        let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector={selector}");
        Ok(self.send(Method::GET, &path, "", String::new())?.map_or_else(Vec::new, items))
    }

    /// Applies a merge patch to an object or to its status.
    pub fn patch(&self, namespace: &str, object: &str, status: bool, patch: &Value) -> Result<(), String> {
        let (kind, name) = split(object)?;
        let part = if status { "/status" } else { "" };
        let path = path(namespace, kind, &format!("/{name}{part}"))?;
        let patched = self.send(Method::PATCH, &path, "application/merge-patch+json", patch.to_string())?;
        patched.map(drop).ok_or_else(|| format!("cannot patch {object}: it does not exist"))
    }

    /// Deletes an object.
    pub fn delete(&self, namespace: &str, object: &str) -> Result<(), String> {
        let (kind, name) = split(object)?;
        let path = path(namespace, kind, &format!("/{name}"))?;
        let deleted = self.send(Method::DELETE, &path, "", String::new())?;
        deleted.map(drop).ok_or_else(|| format!("cannot delete {object}: it does not exist"))
    }

    /// `None` if the server responds 404.
    fn send(&self, method: Method, path: &str, kind: &str, body: String) -> Result<Option<Value>, String> {
        let what = format!("{method} {path}");
        let mut request = Request::builder().method(method).uri(path);
        if !kind.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, kind);
        }
        let request = request.body(body.into_bytes()).map_err(|error| format!("{what}: {error}"))?;
        match self.runtime.block_on(self.client.request::<Value>(request)) {
            Ok(response) => Ok(Some(response)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(format!("{what}: {error}")),
        }
    }
}

/// The short name of a kind.
pub(crate) fn short(kind: &str) -> Option<&'static str> {
    KINDS.iter().find(|known| known.1 == kind).map(|known| known.0)
}

fn path(namespace: &str, short: &str, rest: &str) -> Result<String, String> {
    let known = KINDS.iter().find(|known| known.0 == short);
    let (.., group, plural, namespaced) =
        known.ok_or_else(|| format!("{short:?} is not a known short kind"))?;
    let within = if *namespaced { format!("/namespaces/{namespace}") } else { String::new() };
    Ok(format!("{group}{within}/{plural}{rest}"))
}

fn split(object: &str) -> Result<(&str, &str), String> {
    object.split_once('/').ok_or_else(|| format!("{object:?} is not kind/name"))
}

fn items(mut list: Value) -> Vec<Value> {
    match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}
