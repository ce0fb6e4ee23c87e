//! A driver in this process: the way to it without a socket, for whoever has it at hand. Bodies, trailers and deadlines are
//! as over a socket.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

/// What answers calls. An error is no answer of the driver: the way to it is broken.
#[derive(Clone)]
pub struct Here(Arc<dyn Fn(Request<Body>) -> Answer + Send + Sync>);

impl Here {
    /// Answers by this.
    pub fn new<F>(serve: impl Fn(Request<Body>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Body>, Status>> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(serve(request))))
    }

    pub(crate) fn call(&self, request: Request<Body>) -> Answer {
        (self.0)(request)
    }
}

impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a driver in this process")
    }
}
