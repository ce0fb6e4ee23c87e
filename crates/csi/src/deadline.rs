//! The deadline of a call: told to the server, and kept here too, from waiting for a connection until the
//! last byte of the answer. A driver that hangs cannot make its caller hang.

use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::{Service, ServiceExt as _};

use crate::Endpoint;
use crate::here::Here;

/// How calls reach a driver.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// Over its socket.
    Socket(Channel),
    /// It is in this process.
    Here(Here),
}

/// The calls of a [`crate::Client`]: a channel with a deadline for each call.
#[derive(Debug, Clone)]
pub struct Calls {
    way: Way,
    endpoint: Endpoint,
    deadline: Duration,
}

impl Calls {
    pub(crate) fn new(way: Way, endpoint: Endpoint, deadline: Duration) -> Self {
        Self { way, endpoint, deadline }
    }
}

impl Service<Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

    /// Always ready: waiting for the connection is part of the call, and under its deadline.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Self { way, endpoint, deadline } = self.clone();
        request.headers_mut().insert("grpc-timeout", grpc_timeout(deadline));
        Box::pin(async move {
            let mut ends = Box::pin(tokio::time::sleep(deadline));
            let unreachable = |error: tonic::transport::Error| {
                Status::unavailable(format!(
                    "no answer from the driver at {endpoint}: {}",
                    root_cause(&error)
                ))
            };
            let answer = async {
                match way {
                    Way::Socket(mut channel) => {
                        channel.ready().await.map_err(&unreachable)?.call(request).await.map_err(&unreachable)
                    }
                    Way::Here(service) => service.call(request).await,
                }
            };
            tokio::select! {
                // Ours first: the channel keeps the same deadline, and calls it by another name.
                biased;
                () = &mut ends => Err(exceeded()),
                answer = answer => Ok(answer?.map(|body| Body::new(TimedBody { body, ends }))),
            }
        })
    }
}

/// The body of an answer that must have come whole when the deadline ends.
struct TimedBody {
    body: Body,
    ends: Pin<Box<Sleep>>,
}

impl hyper::body::Body for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(broken_off)));
        }
        self.ends.as_mut().poll(context).map(|()| Some(Err(exceeded())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn exceeded() -> Status {
    Status::deadline_exceeded("the driver did not answer in time; the operation may still be running")
}

/// A connection that broke in the middle of an answer is no answer, whatever code that comes with: the driver's own
/// codes come in trailers. INTERNAL, for one, would say that the operation has ended.
fn broken_off(status: Status) -> Status {
    Status::unavailable(format!("the driver broke off its answer: {}", status.message()))
}

/// The innermost cause is the one that says something: the outer ones only say "transport error".
fn root_cause(error: &tonic::transport::Error) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause.and_then(|cause| cause.source()) {
        cause = Some(inner);
    }
    cause.map_or_else(|| error.to_string(), |cause| cause.to_string())
}

/// At most eight digits and a unit, by the gRPC protocol. Rounded up, so that it is never shorter than ours.
fn grpc_timeout(deadline: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let micros = deadline.as_nanos().div_ceil(1_000);
    let (value, unit) = match (micros, micros.div_ceil(1_000), micros.div_ceil(1_000_000)) {
        (micros, ..) if micros <= MOST => (micros, 'u'),
        (_, millis, _) if millis <= MOST => (millis, 'm'),
        (.., seconds) => (seconds.min(MOST), 'S'),
    };
    // Digits and a letter are always a valid header value.
    HeaderValue::try_from(format!("{value}{unit}")).unwrap_or_else(|_| HeaderValue::from_static("99999999S"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What may still be running must not be taken for what has ended.
    #[test]
    fn half_an_answer_is_none() {
        for status in [Status::unknown("reset"), Status::internal("h2"), Status::resource_exhausted("calm")] {
            assert_eq!(broken_off(status).code(), tonic::Code::Unavailable);
        }
    }

    #[test]
    fn timeouts_on_the_wire() {
        for (deadline, header) in [
            (Duration::ZERO, "0u"),
            (Duration::from_nanos(1), "1u"),
            (Duration::from_millis(1500), "1500000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(grpc_timeout(deadline), header, "{deadline:?}");
        }
    }
}
