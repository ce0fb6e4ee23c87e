//! What every request passes before it is served: authentication, and reading its body with a size limit, a timeout and
//! a limit on the memory of all bodies together.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use wharf_model::Time;
use wharf_model::panics::catch_sync;

use super::Service;
use crate::memory_budget::{MemoryBudget, MemoryShare};
use crate::rest::{Body, BoxError, PANIC_COMPONENT};
use crate::status::StatusError;

/// The limit of kube-apiserver.
const MAX_BODY: usize = 3 << 20;
/// The limit on the bodies of all requests in flight.
const MAX_BODIES_IN_FLIGHT: usize = 64 << 20;
const BUSY: &str = "Too many requests, please try again later.";
/// How long to wait for the body, and for memory for it.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Gate<S> {
    service: S,
    body_budget: MemoryBudget,
    stop: CancellationToken,
}

impl<S: Service> Gate<S> {
    pub(super) fn new(service: S, stop: CancellationToken) -> Self {
        Self { service, body_budget: MemoryBudget::new(MAX_BODIES_IN_FLIGHT), stop }
    }

    /// Serves one request. `peer` is the client's certificate.
    pub(super) async fn handle<B>(&self, request: Request<B>, peer: Option<&[u8]>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let now = Time(jiff::Timestamp::now().as_millisecond());
        let path = parts.uri.path();
        // The service catches its own panics.
        let authenticated = catch_sync(PANIC_COMPONENT, path, || {
            self.service.access().authenticate(&parts.headers, peer, path, &self.service.objects(), now)
        });
        let user = match authenticated.unwrap_or_else(|_| Err(StatusError::panicked())) {
            Ok(user) => user,
            Err(status_error) => return error_response(&status_error),
        };
        let (_share, body) = match self.read(body).await {
            Ok(read) => read,
            Err(status_error) => return error_response(&status_error),
        };
        let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
        let response = self.service.serve(Request::from_parts(parts, body), user).await;
        // A body of known size ends on its own.
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        response.map(|body| self.until_stop(body))
    }

    async fn read<B>(&self, body: B) -> Result<(Option<MemoryShare>, Bytes), StatusError>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let sizes = body.size_hint();
        if sizes.exact() == Some(0) {
            return Ok((None, Bytes::new()));
        }
        let largest = sizes.upper().and_then(|size| usize::try_from(size).ok()).unwrap_or(MAX_BODY);
        if usize::try_from(sizes.lower()).map_or(true, |size| size > MAX_BODY) {
            return Err(too_large());
        }
        let share = self.body_budget.acquire_within(BODY_TIMEOUT, largest.min(MAX_BODY)).await;
        let share = share.ok_or_else(|| StatusError::too_many_requests(BUSY))?;
        match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
            Ok(Ok(body)) => Ok((Some(share), body.to_bytes())),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(error)) => {
                Err(StatusError::bad_request(format!("failed to read the request body: {error}")))
            }
            Err(_) => Err(StatusError::new(408, "Timeout", "timed out reading the request body")),
        }
    }

    /// Watches and followed logs do not end on their own. They end with the server; clients resume as after a timeout.
    fn until_stop(&self, body: Body) -> Body {
        UntilStop { body, stop: Box::pin(self.stop.clone().cancelled_owned()) }.boxed_unsync()
    }
}

fn too_large() -> StatusError {
    StatusError::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {MAX_BODY}"))
}

fn error_response(status_error: &StatusError) -> Response<Body> {
    let text = Full::new(Bytes::from(status_error.to_json().to_string()));
    let mut response = Response::new(text.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() =
        StatusCode::from_u16(status_error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = status_error.details.retry_after_seconds {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

struct UntilStop {
    body: Body,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl http_body::Body for UntilStop {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }
}
