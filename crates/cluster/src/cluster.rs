//! The way to the API server: requests on single objects, and the shared watches.
//!
//! Promise: one watch per kind and options, however many ask for it; every answer that is an object enters the
//! stores it belongs to before the caller sees it.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use wharf_model::patch::Patch;
use wharf_model::{Api, Key, Kind};

use crate::error::{Status, Subject};
use crate::limit::Limit;
use crate::store::Absorb;
use crate::transport::{Call, Transport};
use crate::watch::{self, decode};
use crate::{ApiError, Metrics, Store, WatchOptions};

const JSON: &str = "application/json";

/// How to reach the cluster.
#[derive(Debug, Clone, Default)]
pub struct ConnectOptions {
    /// A kubeconfig file; without it the service account of the pod we run in, or else the usual kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// The server's address instead of the one that goes with the credentials.
    pub server: Option<String>,
    /// Requests a second; `None` for no limit, which leaves it to the server's priority and fairness.
    pub qps: Option<f32>,
    /// Requests at once before `qps` holds; without it, twice as many as in a second.
    pub burst: Option<u32>,
}

/// Why no connection could be set up. The server itself is not asked: it may come up later.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig file does not work.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error("no kubeconfig and not in a pod: {0}; name one with --kubeconfig")]
    NoConfig(Box<dyn std::error::Error + Send + Sync>),
    /// The server's address is none.
    #[error("{address:?} is not the address of an API server: {source}")]
    Server {
        /// What was given.
        address: String,
        /// What is wrong with it.
        source: http::uri::InvalidUri,
    },
    /// TLS or credentials cannot be used.
    #[error("cannot make a client of the configuration: {0}")]
    Client(Box<dyn std::error::Error + Send + Sync>),
}

/// What must hold for a deletion.
#[derive(Debug, Clone, Default)]
pub struct Preconditions {
    /// This very object, not another of its name.
    pub uid: Option<String>,
    /// Unchanged since this version.
    pub resource_version: Option<String>,
}

/// All objects of a list that could be decoded, and the keys of those that could not: absence from `items` alone
/// proves nothing.
#[derive(Debug)]
pub struct Listed<K> {
    /// What was decoded.
    pub items: Vec<K>,
    /// What is there but was not; `None` where not even the name could be read.
    pub unreadable: Vec<Option<Key>>,
}

/// The cluster; cheap to clone. Its watches end with the last clone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    /// Ordered, so that an answer enters them in one order always.
    stores: Mutex<BTreeMap<(TypeId, WatchOptions), Entry>>,
    stop: CancellationToken,
    _stop_with_me: DropGuard,
}

struct Entry {
    api: Api,
    store: Box<dyn Any + Send + Sync>,
    absorb: Arc<dyn Absorb>,
}

impl Cluster {
    /// Sets up a connection. No request is sent yet.
    pub async fn connect(options: &ConnectOptions) -> Result<Self, ConnectError> {
        let mut config = match &options.kubeconfig {
            Some(path) => from_file(path)
                .await
                .map_err(|source| ConnectError::Kubeconfig { path: path.clone(), source })?,
            None => match kube::Config::incluster() {
                Ok(config) => config,
                Err(_) => {
                    kube::Config::infer().await.map_err(|error| ConnectError::NoConfig(error.into()))?
                }
            },
        };
        if let Some(address) = &options.server {
            config.cluster_url = address
                .parse()
                .map_err(|source| ConnectError::Server { address: address.clone(), source })?;
        }
        // kube would repeat requests behind our back; a repeated create is not ours to risk.
        config.default_retry = false;
        let agent = concat!("wharf/", env!("CARGO_PKG_VERSION"));
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
        let client = kube::Client::try_from(config).map_err(|error| ConnectError::Client(error.into()))?;
        let limit = options.qps.and_then(|qps| Limit::new(qps, options.burst.unwrap_or(qps as u32 * 2)));
        Ok(Self::new(client, limit))
    }

    /// Over a client that is there already; it may be a service inside this process.
    pub fn with_client(client: kube::Client) -> Self {
        Self::new(client, None)
    }

    fn new(client: kube::Client, limit: Option<Limit>) -> Self {
        let stop = CancellationToken::new();
        let inner = Inner {
            transport: Transport::new(client, limit, Metrics::default()),
            stores: Mutex::default(),
            _stop_with_me: stop.clone().drop_guard(),
            stop,
        };
        Self { inner: Arc::new(inner) }
    }

    /// What is counted here.
    pub fn metrics(&self) -> &Metrics {
        self.inner.transport.metrics()
    }

    /// The namespace of the service account or of the kubeconfig's context.
    pub fn default_namespace(&self) -> &str {
        self.inner.transport.default_namespace()
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.inner.transport
    }

    /// The shared view of a kind. The first call starts its watch; must be called within a tokio runtime.
    pub fn store<K: Kind>(&self, options: WatchOptions) -> Store<K> {
        let mut stores = self.inner.stores.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let id = (TypeId::of::<K>(), options);
        if let Some(store) = stores.get(&id).and_then(|entry| entry.store.downcast_ref::<Store<K>>()) {
            return store.clone();
        }
        let store = Store::<K>::new(id.1.clone());
        let task =
            watch::run(self.inner.transport.clone(), id.1.clone(), store.clone(), self.inner.stop.clone());
        tokio::spawn(task);
        let entry = Entry { api: K::API, store: Box::new(store.clone()), absorb: Arc::new(store.clone()) };
        stores.insert(id, entry);
        store
    }

    /// Reads one object from the server. `None` only if the server said that this object is not there.
    pub async fn get<K: Kind>(&self, key: &Key) -> Result<Option<K>, ApiError> {
        let Some(bytes) = self.fetch(&K::API, key).await? else { return Ok(None) };
        let subject = Call::object("GET", &K::API, key).subject;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| unreadable(subject, &error))
    }

    /// The same, as it is: to edit and send back, or for what has no view.
    pub async fn get_raw(&self, api: &Api, key: &Key) -> Result<Option<Value>, ApiError> {
        let Some(bytes) = self.fetch(api, key).await? else { return Ok(None) };
        let subject = Call::object("GET", api, key).subject;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| unreadable(subject, &error))
    }

    async fn fetch(&self, api: &Api, key: &Key) -> Result<Option<Vec<u8>>, ApiError> {
        match self.inner.transport.send(Call::object("GET", api, key)).await {
            Ok(bytes) => {
                self.enter(api, &bytes);
                Ok(Some(bytes))
            }
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists from the server, in pages. For what is asked once; use a store for what is asked often.
    pub async fn list<K: Kind>(&self, options: &WatchOptions) -> Result<Listed<K>, ApiError> {
        let mut listed = Listed { items: Vec::new(), unreadable: Vec::new() };
        let mut next = None;
        loop {
            let call = watch::page_call::<K>(options, next, false);
            let subject = call.subject;
            let bytes = self.inner.transport.send(call).await?;
            let page = decode::page::<K>(&bytes).map_err(|error| ApiError::Other {
                refusal: subject.refusal(format!("no list: {error}")),
                status: 200,
            })?;
            for item in page.items {
                match item {
                    Ok(object) => listed.items.push(object),
                    Err(bad) => {
                        self.metrics().undecodable(K::API.plural);
                        listed.unreadable.push(bad.key);
                    }
                }
            }
            match page.next {
                Some(token) => next = Some(token),
                None => return Ok(listed),
            }
        }
    }

    /// Creates an object and gives it back as the server made it.
    pub async fn create(&self, api: &Api, namespace: Option<&str>, body: &Value) -> Result<Value, ApiError> {
        let made = body.pointer("/metadata/name").and_then(Value::as_str);
        let call = Call::collection("POST", api, namespace).making(made);
        self.write(call.body(JSON, body.to_string().into_bytes())).await
    }

    /// Hands something to an object's subresource that only takes: the binding of a pod, the wish for a token. The
    /// answer is no object of the kind, so no store takes it.
    pub async fn hand(
        &self,
        api: &Api,
        key: &Key,
        subresource: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let call = Call::object("POST", api, key).subresource(Some(subresource));
        let subject = call.subject;
        let bytes = self.inner.transport.send(call.body(JSON, body.to_string().into_bytes())).await?;
        serde_json::from_slice(&bytes).map_err(|error| unreadable(subject, &error))
    }

    /// Replaces an object, or one of its subresources. Carries the version it was read at, in its metadata.
    pub async fn update(
        &self,
        api: &Api,
        key: &Key,
        subresource: Option<&str>,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let call = Call::object("PUT", api, key).subresource(subresource);
        self.write(call.body(JSON, body.to_string().into_bytes())).await
    }

    /// Changes part of an object, or of one of its subresources.
    pub async fn patch(
        &self,
        api: &Api,
        key: &Key,
        subresource: Option<&str>,
        patch: Patch,
    ) -> Result<Value, ApiError> {
        let call = Call::object("PATCH", api, key).subresource(subresource);
        self.write(call.body(patch.content_type(), patch.body().to_string().into_bytes())).await
    }

    /// Asks for an object's deletion. Success means that it is gone or waits for its finalizers.
    pub async fn delete(&self, api: &Api, key: &Key, preconditions: Preconditions) -> Result<(), ApiError> {
        self.delete_within(api, key, preconditions, None).await
    }

    /// The same without a grace period: for the node that no longer runs the pod.
    pub async fn delete_now(
        &self,
        api: &Api,
        key: &Key,
        preconditions: Preconditions,
    ) -> Result<(), ApiError> {
        self.delete_within(api, key, preconditions, Some(0)).await
    }

    async fn delete_within(
        &self,
        api: &Api,
        key: &Key,
        preconditions: Preconditions,
        grace_seconds: Option<u32>,
    ) -> Result<(), ApiError> {
        let Preconditions { uid, resource_version } = preconditions;
        let mut wanted = serde_json::Map::new();
        for (name, value) in [("uid", &uid), ("resourceVersion", &resource_version)] {
            if let Some(value) = value {
                wanted.insert(name.to_owned(), json!(value));
            }
        }
        let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": wanted});
        if let Some(seconds) = grace_seconds {
            body["gracePeriodSeconds"] = seconds.into();
        }
        let call = Call::object("DELETE", api, key).body(JSON, body.to_string().into_bytes());
        let bytes = self.inner.transport.send(call).await?;
        match after_delete(&bytes) {
            Deleted::Lingers => self.enter(api, &bytes),
            Deleted::Gone { uid: told } => {
                if let Some(uid) = told.or(uid) {
                    self.for_stores(api, |store| store.bury(key, &uid));
                }
            }
        }
        Ok(())
    }

    async fn write(&self, call: Call<'_>) -> Result<Value, ApiError> {
        let Subject { api, .. } = call.subject;
        let subject = call.subject;
        let bytes = self.inner.transport.send(call).await?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| unreadable(subject, &error))?;
        match ended_by_write(&value) {
            Some((key, uid)) => self.for_stores(api, |store| store.bury(&key, &uid)),
            None => self.for_stores(api, |store| store.absorb(&bytes, &value)),
        }
        Ok(value)
    }

    /// Lets an answer enter the stores of its kind.
    fn enter(&self, api: &Api, bytes: &[u8]) {
        let mut parsed: Option<Value> = None;
        self.for_stores(api, |store| {
            // The whole of it is for selectors only, and costs more than all the rest.
            let value = match store.selects() {
                true => &*parsed.get_or_insert_with(|| serde_json::from_slice(bytes).unwrap_or(Value::Null)),
                false => &Value::Null,
            };
            store.absorb(bytes, value);
        });
    }

    fn for_stores(&self, api: &Api, mut each: impl FnMut(&dyn Absorb)) {
        let stores: Vec<Arc<dyn Absorb>> = {
            let stores = self.inner.stores.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let same = |entry: &&Entry| entry.api.group == api.group && entry.api.plural == api.plural;
            stores.values().filter(same).map(|entry| Arc::clone(&entry.absorb)).collect()
        };
        for store in stores {
            each(&*store);
        }
    }
}

async fn from_file(path: &PathBuf) -> Result<kube::Config, Box<dyn std::error::Error + Send + Sync>> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

/// The answer was a success but is not what we can use. It is not quoted: it may be a Secret.
fn unreadable(subject: Subject<'_>, error: &serde_json::Error) -> ApiError {
    let message = format!("cannot decode the answer at line {} column {}", error.line(), error.column());
    ApiError::Other { refusal: subject.refusal(message), status: 200 }
}

#[derive(Debug, PartialEq, Eq)]
enum Deleted {
    /// It is still there, with a deletion timestamp.
    Lingers,
    /// It is gone.
    Gone { uid: Option<String> },
}

/// Reads the answer to a DELETE. The server answers either with a Status, when the object is gone, or with the
/// object: as it now waits for finalizers or its grace period, or as it was last.
fn after_delete(bytes: &[u8]) -> Deleted {
    let value: Value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
    if value.get("kind").and_then(Value::as_str) == Some("Status") {
        let status: Status = serde_json::from_value(value).unwrap_or_default();
        return Deleted::Gone { uid: Some(status.details.uid).filter(|uid| !uid.is_empty()) };
    }
    if is_deleting(&value) && is_held(&value) {
        Deleted::Lingers
    } else {
        Deleted::Gone { uid: text(&value, "/metadata/uid").map(str::to_owned) }
    }
}

/// A write that takes the last finalizer off an object in deletion ends it: the answer shows its last state.
fn ended_by_write(value: &Value) -> Option<(Key, String)> {
    if !is_deleting(value) || is_held(value) {
        return None;
    }
    let namespace = text(value, "/metadata/namespace").map(str::to_owned);
    let key = Key { namespace, name: text(value, "/metadata/name")?.to_owned() };
    Some((key, text(value, "/metadata/uid")?.to_owned()))
}

fn is_deleting(value: &Value) -> bool {
    text(value, "/metadata/deletionTimestamp").is_some()
}

/// Whether finalizers or a grace period keep an object in deletion.
fn is_held(value: &Value) -> bool {
    let finalizers = value.pointer("/metadata/finalizers").and_then(Value::as_array);
    let grace = value.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
    finalizers.is_some_and(|finalizers| !finalizers.is_empty()) || grace.is_some_and(|grace| grace > 0)
}

fn text<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
    value.pointer(path).and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
