//! A log on its way out: a body whose pieces come as the container writes them.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::rest::{Body, BoxError};
use crate::server::Lasting;

/// The response. A log that is followed has no end of its own; that of the server will do.
pub(super) fn response(lines: mpsc::Receiver<Bytes>, lasting: Option<Lasting>) -> Response<Body> {
    let stop = lasting.map(|lasting| Box::pin(lasting.stop.cancelled_owned()));
    let mut response = Response::new(Log { lines, stop }.boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

struct Log {
    lines: mpsc::Receiver<Bytes>,
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl http_body::Body for Log {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.stop.as_mut().is_some_and(|stop| stop.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(None);
        }
        self.lines.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
