//! The response body of a log: chunks arrive as the container writes them. A followed log does not end on its own; over
//! a socket it ends with the server, like a watch.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use crate::rest::{Body, BoxError};

/// The HTTP response with this log as its body.
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
