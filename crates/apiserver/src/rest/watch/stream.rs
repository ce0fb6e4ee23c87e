//! The response body of a watch.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, timeout_at};
use wharf_model::panics::catch;

use super::super::open_watches::OpenWatch;
use super::super::{Body, BoxError, PANIC_COMPONENT};
use super::{BOOKMARK_INTERVAL, EventEncoder, error_event};
use crate::status::StatusError;
use crate::store::{Entry, Revision, Watch, WatchEnd, WatchItem};

/// The maximum size of a chunk.
const CHUNK: usize = 64 << 10;

/// A running watch.
pub(crate) struct WatchStream {
    watch: Watch,
    encoder: EventEncoder,
    initial: VecDeque<Entry>,
    /// A bookmark is due at the end of the initial objects.
    initial_bookmark: bool,
    bookmarks: bool,
    /// The log was read up to this revision.
    read_up_to: Revision,
    /// The client knows that it has received everything up to this revision.
    sent_up_to: Revision,
    next_bookmark: Instant,
    deadline: Instant,
    finished: bool,
    _open: OpenWatch,
}

impl WatchStream {
    #[allow(clippy::too_many_arguments, reason = "one caller, and each argument is named there")]
    pub(crate) fn new(
        watch: Watch,
        encoder: EventEncoder,
        from: Revision,
        initial: Vec<Entry>,
        bookmarks: bool,
        initial_bookmark: bool,
        deadline: Instant,
        open: OpenWatch,
    ) -> Self {
        Self {
            watch,
            encoder,
            initial: initial.into(),
            initial_bookmark,
            bookmarks,
            read_up_to: from,
            sent_up_to: from,
            next_bookmark: Instant::now() + BOOKMARK_INTERVAL,
            deadline,
            finished: false,
            _open: open,
        }
    }

    /// The HTTP response with this watch as its body.
    pub(crate) fn response(self) -> Response<Body> {
        respond(WatchBody::Idle(Box::new(self)).boxed_unsync())
    }

    /// The next chunk; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.finished {
            return None;
        }
        let mut out = Vec::new();
        let key = format!("WATCH {}", self.encoder.kind.plural);
        let filled = catch(PANIC_COMPONENT, key, self.fill(&mut out)).await;
        match filled.unwrap_or_else(|_| Err(StatusError::panicked())) {
            Ok(()) => {}
            Err(status_error) => {
                self.finished = true;
                // The panic may have left half an event behind.
                out.truncate(out.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
                out.extend_from_slice(&error_event(&status_error));
            }
        }
        (!out.is_empty()).then(|| out.into())
    }

    /// Waits for events and appends them; appends nothing at the end.
    async fn fill(&mut self, out: &mut Vec<u8>) -> Result<(), StatusError> {
        while let Some(entry) = self.initial.pop_front() {
            self.encoder.initial(&entry.value, out)?;
            if out.len() >= CHUNK {
                return Ok(());
            }
        }
        if std::mem::take(&mut self.initial_bookmark) {
            self.encoder.bookmark(self.read_up_to, true, out);
        }
        while out.len() < CHUNK {
            let next = if out.is_empty() {
                timeout_at(self.deadline.min(self.next_bookmark), self.watch.next()).await
            } else {
                // There is something to send already: only add events that are available now.
                tokio::select! {
                    biased;
                    next = self.watch.next() => Ok(next),
                    () = std::future::ready(()) => return Ok(()),
                }
            };
            match next {
                Ok(Ok(WatchItem::Event(event))) => {
                    self.read_up_to = event.revision;
                    let before = out.len();
                    self.encoder.event(&event, out)?;
                    if out.len() > before {
                        self.sent_up_to = self.read_up_to;
                    }
                }
                Ok(Ok(WatchItem::Progress(revision))) => self.read_up_to = revision,
                Ok(Err(WatchEnd::Compacted)) => {
                    return Err(StatusError::expired(format!(
                        "too old resource version: {}",
                        self.read_up_to
                    )));
                }
                Ok(Err(WatchEnd::Closed)) => {
                    self.finished = true;
                    return Ok(());
                }
                Err(_) => {
                    let now = Instant::now();
                    self.next_bookmark = now + BOOKMARK_INTERVAL;
                    // Also before the end, so that a client that resumes does not receive the same events again.
                    if self.bookmarks && self.read_up_to > self.sent_up_to {
                        self.sent_up_to = self.read_up_to;
                        self.encoder.bookmark(self.read_up_to, false, out);
                    }
                    if now >= self.deadline {
                        self.finished = true;
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

type NextChunk = Pin<Box<dyn Future<Output = (Box<WatchStream>, Option<Bytes>)> + Send>>;

/// The state of the body: idle, waiting for the next chunk, or finished.
enum WatchBody {
    Idle(Box<WatchStream>),
    Busy(NextChunk),
    Finished,
}

impl http_body::Body for WatchBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Self::Idle(_) = this
            && let Self::Idle(mut stream) = std::mem::replace(this, Self::Finished)
        {
            *this = Self::Busy(Box::pin(async move {
                let chunk = stream.next().await;
                (stream, chunk)
            }));
        }
        let Self::Busy(next_chunk) = this else { return Poll::Ready(None) };
        match next_chunk.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready((stream, Some(chunk))) => {
                *this = Self::Idle(stream);
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Poll::Ready((_, None)) => {
                *this = Self::Finished;
                Poll::Ready(None)
            }
        }
    }
}

/// A stream of one event.
pub(crate) fn single(line: &[u8]) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(line));
    respond(body.map_err(|never| match never {}).boxed_unsync())
}

fn respond(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}
