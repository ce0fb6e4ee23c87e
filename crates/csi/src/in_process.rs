//! Calls to a driver in this process, without a socket. Bodies, trailers and deadlines behave as over a socket.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

/// A gRPC service in this process. An `Err` is not the driver's response: it means that the transport failed.
#[derive(Clone)]
pub struct InProcessService(Arc<dyn Fn(Request<Body>) -> ResponseFuture + Send + Sync>);

impl InProcessService {
    /// A service that passes every request to `serve`.
    pub fn new<F>(serve: impl Fn(Request<Body>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Body>, Status>> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(serve(request))))
    }

    pub(crate) fn call(&self, request: Request<Body>) -> ResponseFuture {
        (self.0)(request)
    }
}

impl fmt::Debug for InProcessService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a driver in this process")
    }
}
