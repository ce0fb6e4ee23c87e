//! The verbs: what is asked of the API, done.
//!
//! ```text
//! route (what, where) → authorize → options, body → verb → answer in the shape that was asked for
//! ```
//!
//! [`Api::serve`] is the whole server, without a socket and without asking who is there: that is said by its caller.
//! What a request means ([`route`], [`options`], [`negotiate`]), what becomes of an object ([`delete`]) and what a
//! watcher is told ([`watch`]) are rules over plain data; the verbs around them read the store once and write once.

mod answer;
mod body;
mod create;
mod delete;
mod dispatch;
mod encode;
mod list;
mod lookup;
mod meta;
mod negotiate;
mod options;
mod page;
mod patch;
mod placement;
mod pods;
mod query;
pub(crate) mod random;
mod remove;
mod room;
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
use tokio::sync::{RwLock, Semaphore};
use wharf_model::Time;

use crate::access::{Access, Attributes, User};
use crate::kinds::{self, Kind};
use crate::status::Refusal;
use crate::store::{Store, WriteError};
pub use lookup::Objects;
use placement::Placement;
use query::Query;
use room::Room;
pub(crate) use route::Target;
pub use streams::{Command, LogOptions, PodStreams, Promised, Session, Size, Stream};

pub(crate) use delete::{FOREGROUND, ORPHAN};
pub(crate) use encode::{decode, key, prefix};
pub(crate) use options::{DeleteOptions, Propagation, WriteOptions};
pub(crate) use route::Verb;

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// How the API is served.
#[derive(Clone)]
pub struct Options {
    /// Who serves logs and commands; without, these are refused.
    pub streams: Option<Arc<dyn PodStreams>>,
    /// Watches at a time. Each is a connection, so this is far above what clients need.
    pub watches: usize,
    /// Bytes that all lists have together which are being answered. A larger one is answered, alone.
    pub lists: usize,
    /// Where the server is, for those who check its tokens: `https://127.0.0.1:6443`.
    pub base: String,
    /// The certificate by which pods know the server, in PEM; each namespace has it as `kube-root-ca.crt`. Empty: none.
    pub authority: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: None,
            watches: 4096,
            lists: 128 << 20,
            base: "https://127.0.0.1:6443".into(),
            authority: String::new(),
        }
    }
}

/// The API of one store. Clones are handles of one.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

struct Inner {
    store: Store,
    access: Access,
    placement: Arc<Placement>,
    options: Options,
    watches: Arc<Semaphore>,
    room: Room,
    /// Held for reading while something is made in a namespace, for writing while the end of one begins: so what
    /// is in a namespace that ends is known.
    ends: RwLock<()>,
    ready: AtomicBool,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "API of {:?}", self.0.store)
    }
}

impl Api {
    /// Of a store.
    pub fn new(store: Store, access: Access, options: Options) -> Self {
        let watches = Arc::new(Semaphore::new(options.watches));
        let room = Room::new(options.lists);
        let ready = AtomicBool::new(false);
        let (placement, ends) = (Arc::default(), RwLock::new(()));
        Self(Arc::new(Inner { store, access, placement, options, watches, room, ends, ready }))
    }

    /// All objects as they are, for those who must know of them to say who asks.
    pub fn objects(&self) -> Objects {
        Objects { store: self.0.store.clone(), placement: self.0.placement.clone() }
    }

    /// Who asks is known to it.
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// What is stored.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// What must be there before the first request: the namespaces that every cluster has.
    pub async fn prepare(&self) -> Result<(), Refusal> {
        crate::namespaces::make_first(self).await?;
        self.0.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// What goes on beside requests: owners' dependents and ending namespaces are cleared away. Ends when it is dropped,
    /// and when the store closes.
    pub async fn run(&self) {
        tokio::join!(crate::garbage::run(self), crate::namespaces::run(self));
    }

    /// Answers a request of somebody who is known.
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
            let query = Query::parse(parts.uri.query().unwrap_or(""));
            let pretty = negotiate::pretty(&parts.headers, &query);
            match api.dispatch(parts, body, &query, pretty, &user).await {
                Ok(response) => response,
                Err(refusal) => answer::refusal(&refusal, pretty),
            }
        }
    }

    /// The same for a client in this process, who is always this user.
    pub fn service<B>(&self, user: User) -> Client<B>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Client { api: self.clone(), user, _of: PhantomData }
    }

    pub(crate) fn authority(&self) -> &str {
        &self.0.options.authority
    }

    pub(crate) fn now(&self) -> Time {
        wharf_model::chance::now()
    }

    fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire)
    }

    fn options(&self) -> &Options {
        &self.0.options
    }

    fn watches(&self) -> Arc<Semaphore> {
        self.0.watches.clone()
    }

    fn room(&self) -> &Room {
        &self.0.room
    }

    fn ends_of_namespaces(&self) -> &RwLock<()> {
        &self.0.ends
    }
}

/// A client in this process: what it sends is asked by its user.
pub struct Client<B> {
    api: Api,
    user: User,
    _of: PhantomData<fn(B)>,
}

impl<B> Clone for Client<B> {
    fn clone(&self) -> Self {
        Self { api: self.api.clone(), user: self.user.clone(), _of: PhantomData }
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
        let answer = self.api.serve(request, self.user.clone());
        Box::pin(async move { Ok(answer.await) })
    }
}

/// A kind of the core group that has to be there.
pub(crate) fn core_kind(plural: &str) -> Result<&'static Kind, Refusal> {
    kinds::find("", "v1", plural).ok_or_else(|| {
        Refusal::new(500, "InternalError", format!("Internal error occurred: there are no {plural}"))
    })
}

/// An object that something is to be done with from within.
pub(crate) fn target(verb: Verb, kind: &'static Kind, namespace: &str, name: &str) -> Target {
    Target { verb, kind, namespace: namespace.into(), name: name.into(), subresource: String::new() }
}

/// What access decides on.
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

/// Why a write was not done.
fn write_refusal(kind: &Kind, name: &str, error: WriteError) -> Refusal {
    match error {
        WriteError::Exists(_) => Refusal::already_exists(kind.resource(), name),
        WriteError::Changed(_) => Refusal::conflict(kind.resource(), name, update::CONFLICT),
        WriteError::Missing => Refusal::not_found(kind.resource(), name),
        WriteError::Failed(failure) => {
            Refusal::new(500, "InternalError", format!("Internal error occurred: {failure}"))
        }
    }
}

#[cfg(test)]
mod tests;
