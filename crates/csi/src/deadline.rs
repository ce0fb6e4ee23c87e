//! The deadline of a call. It is sent to the server and also enforced here, from waiting for a connection until the
//! last byte of the response: a driver that hangs cannot make its caller hang.

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
use crate::in_process::InProcessService;

/// How calls reach a driver.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    /// Calls are sent over the driver's socket.
    Socket(Channel),
    /// The driver runs in this process; calls are function calls.
    InProcess(InProcessService),
}

/// The channel of a [`crate::Client`], with a deadline for each call.
#[derive(Debug, Clone)]
pub struct DeadlineChannel {
    transport: Transport,
    endpoint: Endpoint,
    deadline: Duration,
}

impl DeadlineChannel {
    pub(crate) fn new(transport: Transport, endpoint: Endpoint, deadline: Duration) -> Self {
        Self { transport, endpoint, deadline }
    }
}

impl Service<Request<Body>> for DeadlineChannel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

    /// Always ready: waiting for the connection is part of the call and counts against its deadline.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Self { transport, endpoint, deadline } = self.clone();
        request.headers_mut().insert("grpc-timeout", grpc_timeout(deadline));
        Box::pin(async move {
            let mut expires = Box::pin(tokio::time::sleep(deadline));
            let no_response = |error: tonic::transport::Error| {
                Status::unavailable(format!(
                    "no response from the driver at {endpoint}: {}",
                    root_cause(&error)
                ))
            };
            let response = async {
                match transport {
                    Transport::Socket(mut channel) => {
                        channel.ready().await.map_err(&no_response)?.call(request).await.map_err(&no_response)
                    }
                    Transport::InProcess(service) => service.call(request).await,
                }
            };
            tokio::select! {
                // Our timer first: the channel enforces the same deadline, but returns another code.
                biased;
                () = &mut expires => Err(deadline_exceeded()),
                response = response => Ok(response?.map(|body| Body::new(TimedBody { body, expires }))),
            }
        })
    }
}

/// A response body that must be complete before the deadline.
struct TimedBody {
    body: Body,
    expires: Pin<Box<Sleep>>,
}

impl hyper::body::Body for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(interrupted)));
        }
        self.expires.as_mut().poll(context).map(|()| Some(Err(deadline_exceeded())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the driver did not respond in time; the operation may still be running")
}

/// A connection that broke in the middle of a response counts as no response, whatever code the HTTP/2 library reports:
/// the driver's own codes arrive in trailers. INTERNAL, for example, would mean that the operation has ended.
fn interrupted(status: Status) -> Status {
    Status::unavailable(format!(
        "the connection to the driver broke during the response: {}",
        status.message()
    ))
}

/// The innermost cause is the useful one: the outer ones only say "transport error".
fn root_cause(error: &tonic::transport::Error) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause.and_then(|cause| cause.source()) {
        cause = Some(inner);
    }
    cause.map_or_else(|| error.to_string(), |cause| cause.to_string())
}

/// The `grpc-timeout` header: at most eight digits and a unit. Rounded up, so the server's deadline is never
/// shorter than ours.
fn grpc_timeout(deadline: Duration) -> HeaderValue {
    const MAX_VALUE: u128 = 99_999_999;
    let micros = deadline.as_nanos().div_ceil(1_000);
    let (value, unit) = match (micros, micros.div_ceil(1_000), micros.div_ceil(1_000_000)) {
        (micros, ..) if micros <= MAX_VALUE => (micros, 'u'),
        (_, millis, _) if millis <= MAX_VALUE => (millis, 'm'),
        (.., seconds) => (seconds.min(MAX_VALUE), 'S'),
    };
    // Digits and a letter are always a valid header value.
    HeaderValue::try_from(format!("{value}{unit}")).unwrap_or_else(|_| HeaderValue::from_static("99999999S"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation that may still be running must not count as ended.
    #[test]
    fn interrupted_response_is_unavailable() {
        for status in [Status::unknown("reset"), Status::internal("h2"), Status::resource_exhausted("calm")] {
            assert_eq!(interrupted(status).code(), tonic::Code::Unavailable);
        }
    }

    #[test]
    fn grpc_timeout_has_at_most_eight_digits() {
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
