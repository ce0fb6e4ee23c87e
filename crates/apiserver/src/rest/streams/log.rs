//! A log on its way out: a body whose pieces come as the container writes them. One that is followed has no end of its
//! own; over a socket, it ends with the server like every answer of that sort.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use crate::rest::{Body, BoxError};

/// The response.
pub(super) fn response(lines: mpsc::Receiver<Bytes>) -> Response<Body> {
    let mut response = Response::new(Log(lines).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

struct Log(mpsc::Receiver<Bytes>);

impl http_body::Body for Log {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
