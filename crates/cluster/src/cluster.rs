//! Access to the API server: requests on single objects, and the shared watches.
//!
//! Guarantees: a kind is watched once, however many callers use it. A caller that needs a selection of its objects shares
//! the watch of all of them, if there is one; otherwise there is one watch per selection. Every object in a response is
//! added to the stores it belongs to before the caller receives it.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use wharf_model::patch::Patch;
use wharf_model::{ApiResource, Key, Kind, View};

use crate::error::{Status, Subject};
use crate::lease::Freshness;
use crate::limit::Limit;
use crate::store::{Absorb, Filter};
use crate::transport::{Call, Transport};
use crate::watch;
use crate::watch::decode::{self, Page, Undecodable};
use crate::work::restart;
use crate::{ApiError, Leadership, Metrics, Store, WatchOptions};

const JSON: &str = "application/json";

/// How to reach the cluster.
#[derive(Debug, Clone, Default)]
pub struct ConnectOptions {
    /// A kubeconfig file. Without it, the pod's service account is used, or else the default kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// The server's address; overrides the one that belongs to the credentials.
    pub server: Option<String>,
    /// Requests per second. `None` sets no limit and relies on the server's priority and fairness.
    pub qps: Option<f32>,
    /// Requests allowed at once before `qps` applies; default twice `qps`.
    pub burst: Option<u32>,
}

/// Why no client could be set up. The server is not contacted: it may start later.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig file cannot be used.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error("found neither a kubeconfig nor a pod's service account: {0}; set --kubeconfig")]
    NoConfig(Box<dyn std::error::Error + Send + Sync>),
    /// The server's address is invalid.
    #[error("{address:?} is not a valid API server address: {source}")]
    Server {
        /// The address.
        address: String,
        /// What is wrong with it.
        source: http::uri::InvalidUri,
    },
    /// TLS or credentials cannot be used.
    #[error("failed to create a client from the configuration: {0}")]
    Client(Box<dyn std::error::Error + Send + Sync>),
}

/// Preconditions of a deletion.
#[derive(Debug, Clone, Default)]
pub struct Preconditions {
    /// The object has this UID: it is not another one of the same name.
    pub uid: Option<String>,
    /// The object has this resource version.
    pub resource_version: Option<String>,
}

/// The objects of a list that could be decoded, and the keys of those that could not: an object that is missing from
/// `items` may still exist.
#[derive(Debug)]
pub struct ObjectList<K> {
    /// The decoded objects.
    pub items: Vec<K>,
    /// The keys of existing objects that could not be decoded; `None` if not even the name could be read.
    pub undecodable: Vec<Option<Key>>,
}

/// The server's list of API groups.
#[derive(Deserialize)]
struct ApiGroups {
    groups: Vec<ApiGroup>,
}

#[derive(Deserialize)]
struct ApiGroup {
    name: String,
}

/// The first page of a list: one request, whatever the number of objects.
#[derive(Debug)]
pub struct FirstPage<K> {
    /// The objects of the page.
    pub list: ObjectList<K>,
    /// The version of the list: the newest one when the server answered.
    pub version: String,
    /// Whether the page is the whole list.
    pub is_complete: bool,
}

/// A client of one cluster; cheap to clone. Its watches stop when the last clone is dropped.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
    /// The least that stores hold of an object.
    min_view: View,
    /// Of the role's lease: its stores are listed again when the lease is acquired.
    freshness: Option<Arc<Freshness>>,
}

struct Inner {
    transport: Transport,
    watches: Arc<Watches>,
}

/// The shared watches of a process, and the stores that they fill.
struct Watches {
    transport: Transport,
    /// Ordered, so that a response is always added to them in the same order.
    stores: Mutex<BTreeMap<(TypeId, WatchOptions), Entry>>,
    stop: CancellationToken,
    _stop_with_me: DropGuard,
}

struct Entry {
    api: ApiResource,
    store: Box<dyn Any + Send + Sync>,
    absorb: Arc<dyn Absorb>,
}

impl Cluster {
    /// Sets up a client. No request is sent yet.
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
        // kube must not retry requests on its own: a retried create could have an effect twice.
        config.default_retry = false;
        let agent = concat!("wharf/", env!("CARGO_PKG_VERSION"));
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
        let client = kube::Client::try_from(config).map_err(|error| ConnectError::Client(error.into()))?;
        let limit = options
            .qps
            .and_then(|qps| Limit::new(qps, options.burst.unwrap_or((qps as u32).saturating_mul(2))));
        Ok(Self::new(client, limit))
    }

    /// Uses an existing client, which may call a service inside this process.
    pub fn with_client(client: kube::Client) -> Self {
        Self::new(client, None)
    }

    fn new(client: kube::Client, limit: Option<Limit>) -> Self {
        let transport = Transport::new(client, limit, Metrics::default());
        let stop = CancellationToken::new();
        let watches = Watches {
            transport: transport.clone(),
            stores: Mutex::default(),
            _stop_with_me: stop.clone().drop_guard(),
            stop,
        };
        let inner = Arc::new(Inner { transport, watches: Arc::new(watches) });
        Self { inner, min_view: View::Full, freshness: None }
    }

    /// For a process that does not need full views of Pods and Nodes: its stores hold slim views where the caller asks
    /// for them. Otherwise a store always holds full views, so that all callers share one watch.
    #[must_use]
    pub fn with_slim_views(self) -> Self {
        Self { min_view: View::Slim, ..self }
    }

    /// Sends requests with another client, such as that of a user with fewer permissions. Watches and stores stay those
    /// of this cluster: the caller must be allowed to see all that it selects.
    #[must_use]
    pub fn with_user(&self, client: kube::Client) -> Self {
        self.with_transport(Transport::new(client, None, Metrics::default()))
    }

    /// For one role: its writes go out only while it holds the lease, and are cancelled when it loses it, wherever in a
    /// step they are. Reads, watches and stores are those of this cluster.
    #[must_use]
    pub fn fenced(&self, leadership: Option<&Leadership>) -> Self {
        let Some(leadership) = leadership else { return self.clone() };
        let fenced = self.with_transport(self.inner.transport.fenced(leadership.fence().clone()));
        Self { freshness: Some(Arc::clone(leadership.freshness())), ..fenced }
    }

    /// With a limit of its own instead of the shared one, for writes that may wait and must not be many. Reads, watches
    /// and stores are those of this cluster. A rate that is not positive is no limit.
    #[must_use]
    pub fn limited(&self, qps: f32, burst: u32) -> Self {
        self.with_transport(self.inner.transport.limited(Limit::new(qps, burst)))
    }

    /// With the watches and stores of this cluster.
    fn with_transport(&self, transport: Transport) -> Self {
        let watches = Arc::clone(&self.inner.watches);
        let inner = Arc::new(Inner { transport, watches });
        Self { inner, min_view: self.min_view, freshness: self.freshness.clone() }
    }

    /// The client's metrics.
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

    /// The shared store of a kind, or of a selection of its objects. A call that no existing watch covers starts one,
    /// and must be made within a tokio runtime.
    pub fn store<K: Kind>(&self, options: WatchOptions) -> Store<K> {
        let options = WatchOptions { view: options.view.max(self.min_view), ..options };
        let watches = &self.inner.watches;
        let mut stores = watches.stores.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = find_store(&stores, &options);
        let is_new = found.is_none();
        let store = found.unwrap_or_else(|| Store::<K>::new(options.clone()));
        if let Some(freshness) = &self.freshness {
            freshness.add(Arc::new(store.clone()));
        }
        if !is_new {
            return store;
        }
        let freshness = self.freshness.clone();
        let (transport, watch_options, watched, stop) =
            (watches.transport.clone(), options.clone(), store.clone(), watches.stop.clone());
        tokio::spawn(async move {
            if let Some(freshness) = freshness {
                freshness.wait_attempted().await;
            }
            // After a panic it lists all objects again.
            let run = || watch::run(transport.clone(), watch_options.clone(), watched.clone(), stop.clone());
            restart("watch", K::API.plural, None, run).await;
        });
        let entry = Entry { api: K::API, store: Box::new(store.clone()), absorb: Arc::new(store.clone()) };
        stores.insert((TypeId::of::<K>(), options), entry);
        store
    }

    /// The server's version, such as `v1.34.2`. Other servers than kube-apiserver add to it.
    pub async fn server_version(&self) -> Result<String, ApiError> {
        let version: Value = self.send(Call::version()).await?;
        Ok(text(&version, "/gitVersion").unwrap_or_default().to_owned())
    }

    /// Reads one object from the server. `None` only if the server reported that this object does not exist.
    pub async fn get<K: Kind>(&self, key: &Key) -> Result<Option<K>, ApiError> {
        let Some(bytes) = self.fetch(&K::API, key).await? else { return Ok(None) };
        let subject = Call::object("GET", &K::API, key).subject;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| undecodable(subject, &error))
    }

    /// Reads one object as raw JSON: to edit and send back, or for kinds without a view.
    pub async fn get_raw(&self, api: &ApiResource, key: &Key) -> Result<Option<Value>, ApiError> {
        let Some(bytes) = self.fetch(api, key).await? else { return Ok(None) };
        let subject = Call::object("GET", api, key).subject;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| undecodable(subject, &error))
    }

    async fn fetch(&self, api: &ApiResource, key: &Key) -> Result<Option<Vec<u8>>, ApiError> {
        match self.inner.transport.send(Call::object("GET", api, key)).await {
            Ok(bytes) => {
                self.absorb(api, &bytes);
                Ok(Some(bytes))
            }
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists from the server, in pages. For one-off queries; use a store for repeated ones.
    pub async fn list<K: Kind>(&self, options: &WatchOptions) -> Result<ObjectList<K>, ApiError> {
        let mut listed = ObjectList { items: Vec::new(), undecodable: Vec::new() };
        let mut next = None;
        loop {
            let page = self.page(options, next).await?;
            self.add_page(&mut listed, page.items);
            match page.next {
                Some(token) => next = Some(token),
                None => return Ok(listed),
            }
        }
    }

    /// Reads the first page of a list from the server.
    pub async fn list_first_page<K: Kind>(&self, options: &WatchOptions) -> Result<FirstPage<K>, ApiError> {
        let page = self.page(options, None).await?;
        let mut list = ObjectList { items: Vec::new(), undecodable: Vec::new() };
        self.add_page(&mut list, page.items);
        Ok(FirstPage { list, version: page.version, is_complete: page.next.is_none() })
    }

    async fn page<K: Kind>(&self, options: &WatchOptions, next: Option<String>) -> Result<Page<K>, ApiError> {
        let call = watch::page_call::<K>(options, next, false);
        let subject = call.subject;
        let bytes = self.inner.transport.send(call).await?;
        decode::page::<K>(&bytes, options.view).map_err(|error| ApiError::Other {
            refusal: subject.refusal(format!("failed to decode list: {error}")),
            status: 200,
        })
    }

    fn add_page<K: Kind>(&self, listed: &mut ObjectList<K>, items: Vec<Result<K, Undecodable>>) {
        for item in items {
            match item {
                Ok(object) => listed.items.push(object),
                Err(bad) => {
                    self.metrics().undecodable(K::API.plural);
                    listed.undecodable.push(bad.key);
                }
            }
        }
    }

    /// Whether the server serves an API group, in any version. `false` only if its list of API groups lacks it.
    pub async fn serves_api_group(&self, group: &str) -> Result<bool, ApiError> {
        let list: ApiGroups = self.send(Call::api_groups()).await?;
        Ok(list.groups.iter().any(|listed| listed.name == group))
    }

    /// Sends a request whose response updates no store.
    async fn send<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, ApiError> {
        let subject = call.subject;
        let bytes = self.inner.transport.send(call).await?;
        serde_json::from_slice(&bytes).map_err(|error| undecodable(subject, &error))
    }

    /// Creates an object and returns it as stored by the server.
    pub async fn create(
        &self,
        api: &ApiResource,
        namespace: Option<&str>,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let name = body.pointer("/metadata/name").and_then(Value::as_str);
        let call = Call::collection("POST", api, namespace).creating(name);
        self.write(call.body(JSON, body.to_string().into_bytes())).await
    }

    /// Creates a subresource of an object, such as a pod's binding or a service account's token. The response is not
    /// an object of the kind, so it is added to no store.
    pub async fn create_subresource(
        &self,
        api: &ApiResource,
        key: &Key,
        subresource: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let call = Call::object("POST", api, key).subresource(Some(subresource));
        self.send(call.body(JSON, body.to_string().into_bytes())).await
    }

    /// Replaces an object, or one of its subresources. The body's metadata carries the resource version it was read
    /// at.
    pub async fn update(
        &self,
        api: &ApiResource,
        key: &Key,
        subresource: Option<&str>,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let call = Call::object("PUT", api, key).subresource(subresource);
        self.write(call.body(JSON, body.to_string().into_bytes())).await
    }

    /// Patches an object, or one of its subresources.
    pub async fn patch(
        &self,
        api: &ApiResource,
        key: &Key,
        subresource: Option<&str>,
        patch: Patch,
    ) -> Result<Value, ApiError> {
        let call = Call::object("PATCH", api, key).subresource(subresource);
        self.write(call.body(patch.content_type(), patch.body().to_string().into_bytes())).await
    }

    /// Deletes an object. Success means that it is gone, or waits for its finalizers or grace period.
    pub async fn delete(
        &self,
        api: &ApiResource,
        key: &Key,
        preconditions: Preconditions,
    ) -> Result<(), ApiError> {
        self.delete_within(api, key, preconditions, None).await
    }

    /// Deletes an object with a grace period of 0: for the node that no longer runs the pod.
    pub async fn delete_without_grace(
        &self,
        api: &ApiResource,
        key: &Key,
        preconditions: Preconditions,
    ) -> Result<(), ApiError> {
        self.delete_within(api, key, preconditions, Some(0)).await
    }

    async fn delete_within(
        &self,
        api: &ApiResource,
        key: &Key,
        preconditions: Preconditions,
        grace_seconds: Option<u32>,
    ) -> Result<(), ApiError> {
        let Preconditions { uid, resource_version } = preconditions;
        let mut required = serde_json::Map::new();
        for (name, value) in [("uid", &uid), ("resourceVersion", &resource_version)] {
            if let Some(value) = value {
                required.insert(name.to_owned(), json!(value));
            }
        }
        let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": required});
        if let Some(seconds) = grace_seconds {
            body["gracePeriodSeconds"] = seconds.into();
        }
        let call = Call::object("DELETE", api, key).body(JSON, body.to_string().into_bytes());
        let bytes = self.inner.transport.send(call).await?;
        match parse_delete_response(&bytes) {
            Deleted::Terminating => self.absorb(api, &bytes),
            Deleted::Gone { uid: deleted } => {
                if let Some(uid) = deleted.or(uid) {
                    self.for_stores(api, |store| store.mark_deleted(key, &uid));
                }
            }
        }
        Ok(())
    }

    async fn write(&self, call: Call<'_>) -> Result<Value, ApiError> {
        let Subject { api, .. } = call.subject;
        let subject = call.subject;
        let bytes = self.inner.transport.send(call).await?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| undecodable(subject, &error))?;
        match deleted_by_write(&value) {
            Some((key, uid)) => self.for_stores(api, |store| store.mark_deleted(&key, &uid)),
            None => self.for_stores(api, |store| store.absorb(&bytes, &value)),
        }
        Ok(value)
    }

    /// Adds an object from a response to the stores of its kind.
    fn absorb(&self, api: &ApiResource, bytes: &[u8]) {
        let mut parsed: Option<Value> = None;
        self.for_stores(api, |store| {
            // Only selectors need the parsed object, and parsing is the most expensive part.
            let value = match store.selects() {
                true => &*parsed.get_or_insert_with(|| serde_json::from_slice(bytes).unwrap_or(Value::Null)),
                false => &Value::Null,
            };
            store.absorb(bytes, value);
        });
    }

    fn for_stores(&self, api: &ApiResource, mut each: impl FnMut(&dyn Absorb)) {
        let stores: Vec<Arc<dyn Absorb>> = {
            let stores = self.inner.watches.stores.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let same = |entry: &&Entry| entry.api.group == api.group && entry.api.plural == api.plural;
            stores.values().filter(same).map(|entry| Arc::clone(&entry.absorb)).collect()
        };
        for store in stores {
            each(&*store);
        }
    }
}

/// A store that holds what the options select, or a handle to that part of one that holds all objects.
fn find_store<K: Kind>(
    stores: &BTreeMap<(TypeId, WatchOptions), Entry>,
    options: &WatchOptions,
) -> Option<Store<K>> {
    let find = |options: WatchOptions| {
        let entry = stores.get(&(TypeId::of::<K>(), options))?;
        entry.store.downcast_ref::<Store<K>>()
    };
    let views = [options.view, View::Full];
    if let Some(same) = views.into_iter().find_map(|view| find(WatchOptions { view, ..options.clone() })) {
        return Some(same.clone());
    }
    let all = views.into_iter().find_map(|view| find(WatchOptions { view, ..WatchOptions::default() }))?;
    Some(all.filtered(Filter::new(options)?))
}

async fn from_file(path: &PathBuf) -> Result<kube::Config, Box<dyn std::error::Error + Send + Sync>> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

/// A successful response that cannot be decoded. It is not quoted: it may be a Secret.
fn undecodable(subject: Subject<'_>, error: &serde_json::Error) -> ApiError {
    let message = format!("failed to decode the response at line {} column {}", error.line(), error.column());
    ApiError::Other { refusal: subject.refusal(message), status: 200 }
}

#[derive(Debug, PartialEq, Eq)]
enum Deleted {
    /// It still exists, with a deletion timestamp.
    Terminating,
    /// It no longer exists.
    Gone { uid: Option<String> },
}

/// Parses the response to a DELETE. The server responds either with a Status, if the object is gone, or with the
/// object: in its present state if it waits for finalizers or its grace period, or in its last state.
fn parse_delete_response(bytes: &[u8]) -> Deleted {
    let value: Value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
    if value.get("kind").and_then(Value::as_str) == Some("Status") {
        let status: Status = serde_json::from_value(value).unwrap_or_default();
        return Deleted::Gone { uid: Some(status.details.uid).filter(|uid| !uid.is_empty()) };
    }
    if is_deleting(&value) && has_blockers(&value) {
        Deleted::Terminating
    } else {
        Deleted::Gone { uid: text(&value, "/metadata/uid").map(str::to_owned) }
    }
}

/// A write that removes the last finalizer of an object in deletion deletes it: the response shows its last state.
fn deleted_by_write(value: &Value) -> Option<(Key, String)> {
    if !is_deleting(value) || has_blockers(value) {
        return None;
    }
    let namespace = text(value, "/metadata/namespace").map(str::to_owned);
    let key = Key { namespace, name: text(value, "/metadata/name")?.to_owned() };
    Some((key, text(value, "/metadata/uid")?.to_owned()))
}

fn is_deleting(value: &Value) -> bool {
    text(value, "/metadata/deletionTimestamp").is_some()
}

/// Whether finalizers or a grace period delay an object's deletion.
fn has_blockers(value: &Value) -> bool {
    let finalizers = value.pointer("/metadata/finalizers").and_then(Value::as_array);
    let grace = value.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
    finalizers.is_some_and(|finalizers| !finalizers.is_empty()) || grace.is_some_and(|grace| grace > 0)
}

fn text<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
    value.pointer(path).and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
