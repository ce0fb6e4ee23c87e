//! The REST API: routing, verbs and responses.
//!
//! ```text
//! route (what, where) → authorize → options, body → verb → response in the requested format
//! ```
//!
//! [`Api::serve`] is the whole server without sockets and without authentication: its caller passes the user. What a
//! request means ([`route`], [`options`], [`negotiate`]), how an object is deleted ([`deletion`]) and which events a
//! watcher receives ([`watch`]) are rules over plain data. The verbs around them read the store once and write once.

mod body;
mod continue_token;
mod create;
mod delete;
mod deletion;
mod dispatch;
mod encode;
mod list;
mod list_budget;
mod lookup;
mod meta;
mod negotiate;
mod open_watches;
mod options;
mod patch;
mod pods;
mod pods_by_node;
mod query;
pub(crate) mod random;
mod response;
mod route;
mod select;
mod streams;
mod update;
mod watch;

use std::convert::Infallible;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::RwLock;
use wharf_model::Time;
use wharf_model::panics::catch;

use crate::access::{Access, Attributes, User};
use crate::kinds::{self, Kind};
use crate::memory_budget::MemoryBudget;
use crate::status::StatusError;
use crate::store::{Store, WriteError};
pub use lookup::Objects;
use open_watches::OpenWatches;
use pods_by_node::PodsByNode;
use query::Query;
pub(crate) use route::Target;
pub use streams::{Command, LogOptions, PodStreams, Session, Size, Stream, StreamFuture};

pub(crate) use deletion::{FOREGROUND, ORPHAN};
pub(crate) use encode::{decode, key, prefix};
pub(crate) use options::{DeleteOptions, Propagation, WriteOptions};
pub(crate) use route::Verb;

/// An error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The component of requests in the log and in the metric of panics.
pub(crate) const PANIC_COMPONENT: &str = "apiserver";

/// Options of the API server.
#[derive(Clone)]
pub struct Options {
    /// Serves logs and exec; without it these requests are rejected.
    pub streams: Option<Arc<dyn PodStreams>>,
    /// The maximum number of concurrent watches. Each watch holds a connection. The default is far above what clients
    /// need.
    pub max_watches: usize,
    /// The maximum total size in bytes of all list responses in progress. A larger list is served alone.
    pub max_list_bytes: usize,
    /// The URL of the server, for clients that verify its tokens: `https://127.0.0.1:6443`.
    pub base_url: String,
    /// The CA certificate in PEM with which pods verify the server, published in each namespace as the ConfigMap
    /// `kube-root-ca.crt`. Empty if there is none.
    pub ca_certificate: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: None,
            max_watches: 4096,
            max_list_bytes: 128 << 20,
            base_url: "https://127.0.0.1:6443".into(),
            ca_certificate: String::new(),
        }
    }
}

/// A handle to the API of one store. Clones share it.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

struct Inner {
    store: Store,
    access: Access,
    pods_by_node: Arc<PodsByNode>,
    options: Options,
    watches: OpenWatches,
    list_budget: MemoryBudget,
    /// Held for reading while an object is created in a namespace, and for writing while the deletion of a namespace
    /// starts, so that no object is created in a terminating namespace.
    namespace_deletion: Arc<RwLock<()>>,
    ready: AtomicBool,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "API of {:?}", self.0.store)
    }
}

impl Api {
    /// Creates the API of a store.
    pub fn new(store: Store, access: Access, options: Options) -> Self {
        let watches = OpenWatches::new(options.max_watches);
        let list_budget = MemoryBudget::new(options.max_list_bytes);
        let ready = AtomicBool::new(false);
        let (pods_by_node, namespace_deletion) = (Arc::default(), Arc::default());
        Self(Arc::new(Inner {
            store,
            access,
            pods_by_node,
            options,
            watches,
            list_budget,
            namespace_deletion,
            ready,
        }))
    }

    /// The current objects, for access rules.
    pub fn objects(&self) -> Objects {
        Objects { store: self.0.store.clone(), pods_by_node: self.0.pods_by_node.clone() }
    }

    /// The authenticator of requests, which also signs tokens.
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Creates the objects that must exist before the first request: the namespaces that every cluster has.
    pub async fn prepare(&self) -> Result<(), StatusError> {
        crate::namespaces::create_initial(self).await?;
        self.0.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Runs the garbage collector and the namespace controller. Ends when it is dropped or when the store closes.
    pub async fn run(&self) {
        tokio::join!(crate::garbage::run(self), crate::namespaces::run(self));
    }

    /// Serves a request of an authenticated user. A panic is answered with status 500.
    pub fn serve<B>(
        &self,
        request: Request<B>,
        user: User,
    ) -> impl Future<Output = Response<Body>> + Send + use<B>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let api = self.clone();
        let (parts, body) = request.into_parts();
        let body = body.map_err(Into::into).boxed_unsync();
        async move {
            let key = format!("{} {}", parts.method, parts.uri.path());
            let serving = async {
                let query = Query::parse(parts.uri.query().unwrap_or(""));
                let pretty = negotiate::pretty(&parts.headers, &query);
                match api.dispatch(parts, body, &query, pretty, &user).await {
                    Ok(response) => response,
                    Err(status_error) => response::error(&status_error, pretty),
                }
            };
            catch(PANIC_COMPONENT, key, serving)
                .await
                .unwrap_or_else(|_| response::error(&StatusError::panicked(), false))
        }
    }

    /// An in-process client that sends all requests as `user`.
    pub fn service<B>(&self, user: User) -> Client<B>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Client { api: self.clone(), user, _body: PhantomData }
    }

    pub(crate) fn ca_certificate(&self) -> &str {
        &self.0.options.ca_certificate
    }

    pub(crate) fn now(&self) -> Time {
        wharf_model::system::now()
    }

    fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire)
    }

    fn options(&self) -> &Options {
        &self.0.options
    }

    fn watches(&self) -> &OpenWatches {
        &self.0.watches
    }

    fn list_budget(&self) -> &MemoryBudget {
        &self.0.list_budget
    }

    fn namespace_deletion_lock(&self) -> &Arc<RwLock<()>> {
        &self.0.namespace_deletion
    }
}

/// An in-process client that sends all requests as one user.
pub struct Client<B> {
    api: Api,
    user: User,
    _body: PhantomData<fn(B)>,
}

impl<B> Clone for Client<B> {
    fn clone(&self) -> Self {
        Self { api: self.api.clone(), user: self.user.clone(), _body: PhantomData }
    }
}

impl<B> tower::Service<Request<B>> for Client<B>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let response = self.api.serve(request, self.user.clone());
        Box::pin(async move { Ok(response.await) })
    }
}

/// A kind of the core group that must exist.
pub(crate) fn core_kind(plural: &str) -> Result<&'static Kind, StatusError> {
    kinds::find("", "v1", plural).ok_or_else(|| {
        StatusError::new(
            500,
            "InternalError",
            format!("Internal error occurred: the kind {plural} is not registered"),
        )
    })
}

/// The target of an internal request.
pub(crate) fn target(verb: Verb, kind: &'static Kind, namespace: &str, name: &str) -> Target {
    Target { verb, kind, namespace: namespace.into(), name: name.into(), subresource: String::new() }
}

/// The attributes for authorization.
fn attributes<'a>(target: &'a Target, fields: &'a str) -> Attributes<'a> {
    Attributes {
        verb: target.verb.as_str(),
        group: target.kind.group,
        version: target.kind.version,
        resource: target.kind.plural,
        subresource: &target.subresource,
        namespace: &target.namespace,
        name: &target.name,
        fields,
        path: "",
    }
}

/// The API error for a failed write.
fn write_status_error(kind: &Kind, name: &str, error: WriteError) -> StatusError {
    match error {
        WriteError::AlreadyExists(_) => StatusError::already_exists(kind.resource(), name),
        WriteError::Conflict(_) => StatusError::conflict(kind.resource(), name, update::CONFLICT),
        WriteError::NotFound => StatusError::not_found(kind.resource(), name),
        WriteError::Failed(failure) => {
            StatusError::new(500, "InternalError", format!("Internal error occurred: {failure}"))
        }
    }
}

#[cfg(test)]
mod tests;
