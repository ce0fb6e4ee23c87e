//! A process's connection to the API, with faults: lost requests and responses, errors, delays and interrupted
//! watches.
//!
//! A request in flight arrives even if its sender is killed; a killed process sends no more requests.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower::Service;
use wharf_apiserver::access::User;
use wharf_apiserver::rest::{self, Api, BoxError};
use wharf_cluster::Cluster;

use crate::sim::Sim;

/// One run of a process, from start to kill.
#[derive(Debug)]
pub(crate) struct ProcessRun {
    pub(crate) name: String,
    dead: AtomicBool,
}

impl ProcessRun {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), dead: AtomicBool::new(false) })
    }

    pub(crate) fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

/// A client for one run of a process, with faults.
pub(crate) fn cluster(sim: &Arc<Sim>, api: &Api, process_run: &Arc<ProcessRun>) -> Cluster {
    let transport = FaultyTransport {
        sim: Arc::clone(sim),
        api: api.service(User::admin()),
        process_run: Arc::clone(process_run),
    };
    Cluster::with_client(kube::Client::new(transport, "default"))
}

/// A client without faults, for checks.
pub(crate) fn fault_free(api: &Api) -> Cluster {
    Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"))
}

#[derive(Clone)]
struct FaultyTransport {
    sim: Arc<Sim>,
    api: rest::Client<Body>,
    process_run: Arc<ProcessRun>,
}

/// The fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestFault {
    None,
    /// The request is lost; the client gets an error.
    LostRequest,
    /// The request is executed, but the response is lost.
    LostAnswer,
    /// The request is lost and the client gets no response.
    Silence,
    /// The server rejects the request without executing it.
    Refused(u16),
}

impl FaultyTransport {
    fn fault(&self, method: &Method, watch: bool) -> RequestFault {
        if !self.sim.fails() {
            return RequestFault::None;
        }
        match self.sim.below(12) {
            0..3 => RequestFault::LostRequest,
            3..7 => RequestFault::LostAnswer,
            7 => RequestFault::Refused(429),
            8 => RequestFault::Refused(500),
            9 if watch => RequestFault::Refused(410),
            9 if matches!(*method, Method::PUT | Method::PATCH) => RequestFault::Refused(409),
            9 | 10 => RequestFault::Refused(503),
            _ => RequestFault::Silence,
        }
    }

    fn delay(&self) -> Duration {
        match self.sim.below(100) {
            99 if self.sim.faults_enabled() => self.sim.duration_up_to(Duration::from_secs(4)),
            90.. => self.sim.duration_up_to(Duration::from_millis(40)),
            _ => self.sim.duration_up_to(Duration::from_millis(3)),
        }
    }
}

impl Service<Request<Body>> for FaultyTransport {
    type Response = Response<rest::Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { sim, mut api, process_run } = self.clone();
        if process_run.is_dead() {
            return Box::pin(async { Err("the process was killed".into()) });
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let writes = method != Method::GET;
        let (mut fault, delay) = (self.fault(&method, watch), self.delay());
        if sim.partitioned_until(&process_run.name).is_some() {
            fault = RequestFault::Silence;
        }
        // While faults are enabled, every watch is interrupted eventually.
        let cut = (watch && sim.faults_enabled()).then(|| sim.duration_up_to(Duration::from_secs(120)));
        let (reply, replied) = oneshot::channel();
        let (watch_sim, watching) = (Arc::clone(&sim), Arc::clone(&process_run));
        tokio::spawn(async move {
            sleep(delay).await;
            let result = match fault {
                RequestFault::None | RequestFault::LostAnswer => {
                    let response = api.call(request).await.unwrap_or_else(|never| match never {});
                    if writes {
                        let status = response.status().as_u16();
                        sim.note(format_args!("{} {method} {path} {status} {fault:?}", process_run.name));
                    }
                    match fault {
                        RequestFault::None => Ok(response),
                        _ => Err(BoxError::from("connection reset by peer")),
                    }
                }
                RequestFault::LostRequest => Err("connection refused".into()),
                RequestFault::Refused(code) => Ok(error_status(code)),
                RequestFault::Silence => return,
            };
            if writes && !matches!(fault, RequestFault::None | RequestFault::LostAnswer) {
                sim.note(format_args!("{} {method} {path} {fault:?}", process_run.name));
            }
            // The caller may have been killed.
            let _ = reply.send(result);
        });
        Box::pin(async move {
            let Ok(result) = replied.await else { return std::future::pending().await };
            let response = result?;
            let interrupted = |body, after| {
                let (after, stalled) = (Box::pin(sleep(after)), Box::pin(sleep(Duration::ZERO)));
                InterruptedWatch { body, after, stalled, sim: watch_sim, process_run: watching }
                    .boxed_unsync()
            };
            Ok(response.map(|body| match cut {
                Some(after) => interrupted(body, after),
                None => body,
            }))
        })
    }
}

/// An error response in the API server's format.
fn error_status(code: u16) -> Response<rest::Body> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        _ => "ServiceUnavailable",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "simulated fault", "reason": reason, "code": code,
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// A watch body that fails after a time, and delivers nothing while its process is partitioned.
struct InterruptedWatch {
    body: rest::Body,
    after: Pin<Box<Sleep>>,
    stalled: Pin<Box<Sleep>>,
    sim: Arc<Sim>,
    process_run: Arc<ProcessRun>,
}

impl InterruptedWatch {
    /// Whether the process is partitioned; wakes the reader when that ends.
    fn is_stalled(&mut self, context: &mut Context<'_>) -> bool {
        let until: Option<Instant> = self.sim.partitioned_until(&self.process_run.name);
        until.is_some_and(|until| {
            self.stalled.set(sleep_until(until));
            self.stalled.as_mut().poll(context).is_pending()
        })
    }
}

impl http_body::Body for InterruptedWatch {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_stalled(context) {
            return Poll::Pending;
        }
        if self.after.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("connection reset by peer".into())));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}
