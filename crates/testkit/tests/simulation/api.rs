//! The way of a process to the API, on which requests and answers are lost, refused and held up, and watches cut off.
//!
//! A request that is on its way arrives, whatever becomes of who sent it; one of a process that is dead is not sent.

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
use tokio::time::{Sleep, sleep};
use tower::Service;
use wharf_apiserver::access::User;
use wharf_apiserver::rest::{self, Api, BoxError};
use wharf_cluster::Cluster;

use crate::sim::Sim;

/// One life of a process.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) name: String,
    dead: AtomicBool,
}

impl Life {
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

/// The API as this life sees it.
pub(crate) fn cluster(sim: &Arc<Sim>, api: &Api, life: &Arc<Life>) -> Cluster {
    let way = Way { sim: Arc::clone(sim), api: api.service(User::admin()), life: Arc::clone(life) };
    Cluster::with_client(kube::Client::new(way, "default"))
}

/// The API as those see it who look from outside: nothing is lost.
pub(crate) fn calm(api: &Api) -> Cluster {
    Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"))
}

#[derive(Clone)]
struct Way {
    sim: Arc<Sim>,
    api: rest::Client<Body>,
    life: Arc<Life>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Fine,
    /// It never arrives.
    LostRequest,
    /// It is done, and nobody hears of it.
    LostAnswer,
    /// It never arrives, and nobody says so.
    Silence,
    /// The server says no, and has done nothing.
    Refused(u16),
}

impl Way {
    fn fate(&self, method: &Method, watch: bool) -> Fate {
        if !self.sim.fails() {
            return Fate::Fine;
        }
        match self.sim.roll(12) {
            0..3 => Fate::LostRequest,
            3..7 => Fate::LostAnswer,
            7 => Fate::Refused(429),
            8 => Fate::Refused(500),
            9 if watch => Fate::Refused(410),
            9 if matches!(*method, Method::PUT | Method::PATCH) => Fate::Refused(409),
            9 | 10 => Fate::Refused(503),
            _ => Fate::Silence,
        }
    }

    fn delay(&self) -> Duration {
        match self.sim.roll(100) {
            99 if self.sim.storms() => self.sim.within(Duration::from_secs(4)),
            90.. => self.sim.within(Duration::from_millis(40)),
            _ => self.sim.within(Duration::from_millis(3)),
        }
    }
}

impl Service<Request<Body>> for Way {
    type Response = Response<rest::Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { sim, mut api, life } = self.clone();
        if life.is_dead() {
            return Box::pin(async { Err("the process is dead".into()) });
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let writes = method != Method::GET;
        let (fate, delay) = (self.fate(&method, watch), self.delay());
        // Nobody watches for ever in a storm.
        let cut = (watch && sim.storms()).then(|| sim.within(Duration::from_secs(120)));
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            sleep(delay).await;
            let told = match fate {
                Fate::Fine | Fate::LostAnswer => {
                    let response = api.call(request).await.unwrap_or_else(|never| match never {});
                    if writes {
                        let status = response.status().as_u16();
                        sim.note(format_args!("{} {method} {path} {status} {fate:?}", life.name));
                    }
                    match fate {
                        Fate::Fine => Ok(response),
                        _ => Err(BoxError::from("connection reset by peer")),
                    }
                }
                Fate::LostRequest => Err("connection refused".into()),
                Fate::Refused(code) => Ok(refusal(code)),
                Fate::Silence => return,
            };
            if writes && !matches!(fate, Fate::Fine | Fate::LostAnswer) {
                sim.note(format_args!("{} {method} {path} {fate:?}", life.name));
            }
            // Who is gone does not want to know.
            let _ = answer.send(told);
        });
        Box::pin(async move {
            let Ok(told) = answered.await else { return std::future::pending().await };
            let response = told?;
            Ok(response.map(|body| match cut {
                Some(after) => Cut { body, after: Box::pin(sleep(after)) }.boxed_unsync(),
                None => body,
            }))
        })
    }
}

/// As the server says it.
fn refusal(code: u16) -> Response<rest::Body> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        _ => "ServiceUnavailable",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the story has it so", "reason": reason, "code": code,
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// The lines of a watch until it is cut off.
struct Cut {
    body: rest::Body,
    after: Pin<Box<Sleep>>,
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.after.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("connection reset by peer".into())));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}
