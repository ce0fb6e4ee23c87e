//! Requests in flight on one connection: each from its arrival until its response was read or dropped. This shows
//! whether a connection is idle, and whether a client stopped reading a response.
//!
//! A body is not polled while its client reads nothing, so it cannot end itself. On HTTP/2 its stream is reset from
//! outside ([`StreamExecutor`]) and the other streams of the connection continue. On HTTP/1.1 the connection is the
//! stream, and [`super::write_timeout`] ends it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::rest::{Body, BoxError};

/// Responses are split into chunks of this size: progress is only visible between chunks.
const CHUNK: usize = 64 << 10;

/// Counts the requests of one connection. Clones share the count.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<watch::Sender<usize>>);

impl InFlight {
    /// Counts a request until the returned guard is dropped.
    pub(super) fn begin(&self) -> InFlightRequest {
        self.0.send_modify(|count| *count += 1);
        InFlightRequest(self.clone())
    }

    /// Returns when no request has been in flight for this long.
    pub(super) async fn idle(self, limit: Duration) {
        let mut count = self.0.subscribe();
        loop {
            let idle = *count.borrow_and_update() == 0;
            // A request that started and ended in between counts as a change too. The sender is held here, so the
            // channel never closes.
            let changed = count.changed();
            if !idle {
                _ = changed.await;
            } else if timeout(limit, changed).await.is_err() {
                return;
            }
        }
    }
}

/// A request in flight.
pub(super) struct InFlightRequest(InFlight);

impl InFlightRequest {
    /// Extends the request to the lifetime of its response body.
    pub(super) fn response_body(self, body: Body) -> ResponseBody {
        let client_wait = CLIENT_WAIT.try_with(Arc::clone).ok();
        if let Some(client_wait) = &client_wait {
            client_wait.set_waiting(true);
        }
        ResponseBody { body, rest: Bytes::new(), client_wait, _in_flight: self }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// A response body that is being sent.
pub(super) struct ResponseBody {
    body: Body,
    /// The remainder of a frame that was larger than one chunk.
    rest: Bytes,
    client_wait: Option<Arc<ClientWait>>,
    _in_flight: InFlightRequest,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = if self.rest.is_empty() {
            Pin::new(&mut self.body).poll_frame(cx)
        } else {
            Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.rest)))))
        };
        if let Some(client_wait) = &self.client_wait {
            client_wait.set_waiting(frame.is_ready());
        }
        frame.map_ok(|frame| match frame.into_data() {
            Ok(mut data) => {
                self.rest = data.split_off(data.len().min(CHUNK));
                Frame::data(data)
            }
            Err(other) => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut sizes = SizeHint::new();
        sizes.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            sizes.set_upper(upper.saturating_add(rest));
        }
        sizes
    }
}

tokio::task_local! {
    /// The wait state of the HTTP/2 stream that this task runs.
    static CLIENT_WAIT: Arc<ClientWait>;
}

/// Since when a response waits for its client; none while the client waits for the response.
#[derive(Default)]
struct ClientWait(Mutex<Option<Instant>>);

impl ClientWait {
    fn set_waiting(&self, waiting: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waiting.then(Instant::now);
    }

    fn since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the response has waited for the client for this long.
    async fn stalled_for(&self, limit: Duration) {
        loop {
            let now = Instant::now();
            let until = self.since().unwrap_or(now) + limit;
            if until <= now {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// Runs each stream of an HTTP/2 connection in a task, and resets a stream whose client reads nothing for this long.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) Duration);

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (limit, client_wait) = (self.0, Arc::<ClientWait>::default());
        tokio::spawn(CLIENT_WAIT.scope(client_wait.clone(), async move {
            tokio::select! {
                biased;
                _ = stream => {}
                () = client_wait.stalled_for(limit) => tracing::debug!("client does not read; resetting stream"),
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::{BodyExt as _, Full};
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(90);

    #[tokio::test(start_paused = true)]
    async fn connection_is_idle_after_the_limit_without_requests() {
        let in_flight = InFlight::default();
        let started = Instant::now();
        let idle = tokio::spawn({
            let in_flight = in_flight.clone();
            async move {
                in_flight.idle(LIMIT).await;
                started.elapsed()
            }
        });
        sleep(LIMIT / 2).await;
        let (first, second) = (in_flight.begin(), in_flight.begin());
        drop(first);
        sleep(LIMIT * 3).await;
        assert!(!idle.is_finished(), "one request is still in flight");
        let body = second.response_body(body_of(b"x"));
        sleep(LIMIT * 3).await;
        assert!(!idle.is_finished(), "its response is still in flight");
        drop(body);
        sleep(LIMIT / 2).await;
        drop(in_flight.begin());
        assert_eq!(idle.await.unwrap(), LIMIT * 8, "the limit starts at the end of the last request");
    }

    fn body_of(bytes: &'static [u8]) -> Body {
        Full::new(Bytes::from_static(bytes)).map_err(|never| match never {}).boxed_unsync()
    }

    #[tokio::test]
    async fn response_is_split_into_chunks_without_change() {
        const LARGE: &[u8] = &[7; 2 * CHUNK + 1];
        let mut response_body = InFlight::default().begin().response_body(body_of(LARGE));
        for (piece, left) in [(CHUNK, CHUNK + 1), (CHUNK, 1), (1, 0)] {
            assert!(!response_body.is_end_stream());
            assert_eq!(response_body.frame().await.unwrap().unwrap().into_data().unwrap().len(), piece);
            assert_eq!(response_body.size_hint().exact(), Some(left as u64));
        }
        assert!(response_body.is_end_stream());
        assert!(response_body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn response_waits_from_one_chunk_until_the_next_poll() {
        let (client_wait, started) = (ClientWait::default(), Instant::now());
        let wait = async {
            client_wait.stalled_for(LIMIT).await;
            started.elapsed()
        };
        let progress = async {
            // First the handler is slow, then the client, then the watched object.
            sleep(LIMIT * 2).await;
            client_wait.set_waiting(true);
            sleep(LIMIT / 2).await;
            client_wait.set_waiting(true);
            sleep(LIMIT / 2).await;
            client_wait.set_waiting(false);
            sleep(LIMIT * 4).await;
            client_wait.set_waiting(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            waited = wait => assert_eq!(waited, LIMIT * 8),
            () = progress => {}
        }
    }
}
