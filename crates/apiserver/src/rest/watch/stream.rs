//! A watch as the body of a response.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::super::{Body, BoxError};
use super::{BOOKMARKS, Lines, error_line};
use crate::status::Refusal;
use crate::store::{Entry, Revision, Seen, Watch, WatchEnd};

/// How much goes out in one piece when there is much to say.
const PIECE: usize = 64 << 10;

/// What is yet to be told, and from where.
pub(crate) struct Stream {
    watch: Watch,
    lines: Lines,
    initial: VecDeque<Entry>,
    /// A bookmark is due at the end of the objects that are there from the beginning.
    marked: bool,
    bookmarks: bool,
    /// All up to here is told.
    told: Revision,
    /// And of that, the client knows this.
    known: Revision,
    bookmark_at: Instant,
    until: Instant,
    over: bool,
    _turn: OwnedSemaphorePermit,
}

impl Stream {
    #[allow(clippy::too_many_arguments, reason = "one caller, and each is named there")]
    pub(crate) fn new(
        watch: Watch,
        lines: Lines,
        from: Revision,
        initial: Vec<Entry>,
        bookmarks: bool,
        marked: bool,
        until: Instant,
        turn: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            watch,
            lines,
            initial: initial.into(),
            marked,
            bookmarks,
            told: from,
            known: from,
            bookmark_at: Instant::now() + BOOKMARKS,
            until,
            over: false,
            _turn: turn,
        }
    }

    /// With this as its body.
    pub(crate) fn response(self) -> Response<Body> {
        respond(Streaming::Idle(Box::new(self)).boxed_unsync())
    }

    /// The next piece; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let mut out = Vec::new();
        match self.fill(&mut out).await {
            Ok(()) => {}
            Err(refusal) => {
                self.over = true;
                out.extend_from_slice(&error_line(&refusal));
            }
        }
        (!out.is_empty()).then(|| out.into())
    }

    /// Adds what there is to say; nothing at the end.
    async fn fill(&mut self, out: &mut Vec<u8>) -> Result<(), Refusal> {
        while let Some(entry) = self.initial.pop_front() {
            self.lines.initial(&entry.value, out)?;
            if out.len() >= PIECE {
                return Ok(());
            }
        }
        if std::mem::take(&mut self.marked) {
            self.lines.bookmark(self.told, true, out);
        }
        while out.len() < PIECE {
            let next = if out.is_empty() {
                timeout_at(self.until.min(self.bookmark_at), self.watch.next()).await
            } else {
                // Something is to be said already: only what is there goes with it.
                tokio::select! {
                    biased;
                    next = self.watch.next() => Ok(next),
                    () = std::future::ready(()) => return Ok(()),
                }
            };
            match next {
                Ok(Ok(Seen::Event(event))) => {
                    self.told = event.revision;
                    let before = out.len();
                    self.lines.event(&event, out)?;
                    if out.len() > before {
                        self.known = self.told;
                    }
                }
                Ok(Ok(Seen::UpTo(revision))) => self.told = revision,
                Ok(Err(WatchEnd::Compacted)) => {
                    return Err(Refusal::expired(format!("too old resource version: {}", self.told)));
                }
                Ok(Err(WatchEnd::Closed)) => {
                    self.over = true;
                    return Ok(());
                }
                Err(_) => {
                    let now = Instant::now();
                    self.bookmark_at = now + BOOKMARKS;
                    // Before the end too: who comes again need not hear again what we know was told.
                    if self.bookmarks && self.told > self.known {
                        self.known = self.told;
                        self.lines.bookmark(self.told, false, out);
                    }
                    if now >= self.until {
                        self.over = true;
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

type Filling = Pin<Box<dyn Future<Output = (Box<Stream>, Option<Bytes>)> + Send>>;

/// A stream that is waiting for what is next, or is not.
enum Streaming {
    Idle(Box<Stream>),
    Busy(Filling),
    Over,
}

impl http_body::Body for Streaming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Self::Idle(_) = this
            && let Self::Idle(mut stream) = std::mem::replace(this, Self::Over)
        {
            *this = Self::Busy(Box::pin(async move {
                let piece = stream.next().await;
                (stream, piece)
            }));
        }
        let Self::Busy(filling) = this else { return Poll::Ready(None) };
        match filling.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready((stream, Some(piece))) => {
                *this = Self::Idle(stream);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Poll::Ready((_, None)) => {
                *this = Self::Over;
                Poll::Ready(None)
            }
        }
    }
}

/// A stream of one line.
pub(crate) fn one(line: &[u8]) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(line));
    respond(body.map_err(|never| match never {}).boxed_unsync())
}

fn respond(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}
