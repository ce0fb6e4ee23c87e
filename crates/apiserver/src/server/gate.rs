//! What every request goes through before it is served: who asks, and its body, of which there may be so much, in so
//! much time, and in all requests together so much.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use wharf_model::Time;

use super::Service;
use crate::rest::{Body, BoxError};
use crate::status::Refusal;

/// As upstream's.
const LARGEST: usize = 3 << 20;
/// In all requests that are being served.
const TOGETHER: usize = 64 << 20;
/// Shares of it are given out in this measure.
const SHARE: usize = 1 << 10;
const BUSY: &str = "Too many requests, please try again later.";
/// For the body to come, or for room for it.
const BODY: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Gate<S> {
    service: S,
    room: Arc<Semaphore>,
    stop: CancellationToken,
}

impl<S: Service> Gate<S> {
    pub(super) fn new(service: S, stop: CancellationToken) -> Self {
        Self { service, room: Arc::new(Semaphore::new(TOGETHER / SHARE)), stop }
    }

    /// Serves one request. `peer` is the client's certificate.
    pub(super) async fn pass<B>(&self, request: Request<B>, peer: Option<&[u8]>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let now = Time(jiff::Timestamp::now().as_millisecond());
        let path = parts.uri.path();
        let known =
            self.service.access().authenticate(&parts.headers, peer, path, &self.service.objects(), now);
        let user = match known {
            Ok(user) => user,
            Err(refusal) => return refused(&refusal),
        };
        let (_room, body) = match self.read(body).await {
            Ok(read) => read,
            Err(refusal) => return refused(&refusal),
        };
        let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
        let response = self.service.serve(Request::from_parts(parts, body), user).await;
        // What has an end of its own is sent to its end.
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        response.map(|body| self.until_stop(body))
    }

    async fn read<B>(&self, body: B) -> Result<(Option<OwnedSemaphorePermit>, Bytes), Refusal>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let sizes = body.size_hint();
        if sizes.exact() == Some(0) {
            return Ok((None, Bytes::new()));
        }
        let largest = sizes.upper().and_then(|size| usize::try_from(size).ok()).unwrap_or(LARGEST);
        if usize::try_from(sizes.lower()).map_or(true, |size| size > LARGEST) {
            return Err(too_large());
        }
        let shares = u32::try_from(largest.min(LARGEST).div_ceil(SHARE)).unwrap_or(u32::MAX);
        let room = timeout(BODY, self.room.clone().acquire_many_owned(shares)).await;
        let room = room.ok().and_then(Result::ok).ok_or_else(|| Refusal::too_many(BUSY))?;
        match timeout(BODY, Limited::new(body, LARGEST).collect()).await {
            Ok(Ok(body)) => Ok((Some(room), body.to_bytes())),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(error)) => Err(Refusal::bad_request(format!("the body broke off: {error}"))),
            Err(_) => Err(Refusal::new(408, "Timeout", "the body did not come in time")),
        }
    }

    /// A watch, or a log that is followed, has no end of its own; that of the server is as good as any to who resumes it.
    fn until_stop(&self, body: Body) -> Body {
        UntilStop { body, stop: Box::pin(self.stop.clone().cancelled_owned()) }.boxed_unsync()
    }
}

fn too_large() -> Refusal {
    Refusal::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {LARGEST}"))
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let text = Full::new(Bytes::from(refusal.to_json().to_string()));
    let mut response = Response::new(text.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = refusal.details.retry_after_seconds {
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
