//! What is under way on one connection: each request from its arrival until its answer was taken or dropped. So a
//! connection on which nothing is under way is known, and an answer that its client does not take.
//!
//! Nobody asks a body for more while its client takes nothing, so a body cannot end itself then: on HTTP/2 its stream
//! is ended from outside ([`Streams`]), and the others on the connection go on. On HTTP/1.1 the connection is the
//! stream, and [`super::prompt`] ends it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::rest::{Body, BoxError};

/// An answer goes out in pieces of this size, whatever it was made in: what is handed over is no longer seen here.
const PIECE: usize = 64 << 10;

/// The requests of one connection. Clones count together.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<watch::Sender<usize>>);

impl UnderWay {
    /// One more, until this is dropped.
    pub(super) fn begin(&self) -> Request {
        self.0.send_modify(|count| *count += 1);
        Request(self.clone())
    }

    /// Returns when nothing has been under way for so long.
    pub(super) async fn idle(self, how_long: Duration) {
        let mut count = self.0.subscribe();
        loop {
            let idle = *count.borrow_and_update() == 0;
            // One that began and ended in between is seen as well. The sender is held here, so it is never closed.
            let changed = count.changed();
            if !idle {
                _ = changed.await;
            } else if timeout(how_long, changed).await.is_err() {
                return;
            }
        }
    }
}

/// A request that is under way.
pub(super) struct Request(UnderWay);

impl Request {
    /// It lasts as long as its answer does.
    pub(super) fn answer(self, body: Body) -> Answer {
        let taken = TAKEN.try_with(Arc::clone).ok();
        if let Some(taken) = &taken {
            taken.waits(true);
        }
        Answer { body, rest: Bytes::new(), taken, _request: self }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// The body of an answer on its way out.
pub(super) struct Answer {
    body: Body,
    /// What is left of a piece that was too large.
    rest: Bytes,
    taken: Option<Arc<Taken>>,
    _request: Request,
}

impl http_body::Body for Answer {
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
        if let Some(taken) = &self.taken {
            taken.waits(frame.is_ready());
        }
        frame.map_ok(|frame| match frame.into_data() {
            Ok(mut data) => {
                self.rest = data.split_off(data.len().min(PIECE));
                Frame::data(data)
            }
            Err(other) => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut sizes = SizeHint::new();
        sizes.set_lower(of.lower().saturating_add(rest));
        if let Some(upper) = of.upper() {
            sizes.set_upper(upper.saturating_add(rest));
        }
        sizes
    }
}

tokio::task_local! {
    /// Of the stream whose task this is.
    static TAKEN: Arc<Taken>;
}

/// Since when an answer waits for its client; none while it is the client who waits.
#[derive(Default)]
struct Taken(Mutex<Option<Instant>>);

impl Taken {
    fn waits(&self, waits: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waits.then(Instant::now);
    }

    fn since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the answer has waited for so long.
    async fn too_long(&self, how_long: Duration) {
        loop {
            let now = Instant::now();
            let until = self.since().unwrap_or(now) + how_long;
            if until <= now {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// Runs the streams of an HTTP/2 connection, each in a task. One whose client takes nothing for so long is reset.
#[derive(Clone)]
pub(super) struct Streams(pub(super) Duration);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (how_long, taken) = (self.0, Arc::<Taken>::default());
        tokio::spawn(TAKEN.scope(taken.clone(), async move {
            tokio::select! {
                biased;
                _ = stream => {}
                () = taken.too_long(how_long) => tracing::debug!("an answer was not taken, its stream is reset"),
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

    const LONG: Duration = Duration::from_secs(90);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_nothing_was_under_way_for_long_enough() {
        let under_way = UnderWay::default();
        let began = Instant::now();
        let idle = tokio::spawn({
            let under_way = under_way.clone();
            async move {
                under_way.idle(LONG).await;
                began.elapsed()
            }
        });
        sleep(LONG / 2).await;
        let (first, second) = (under_way.begin(), under_way.begin());
        drop(first);
        sleep(LONG * 3).await;
        assert!(!idle.is_finished(), "one is still under way");
        let body = second.answer(whole(b"x"));
        sleep(LONG * 3).await;
        assert!(!idle.is_finished(), "its answer is");
        drop(body);
        sleep(LONG / 2).await;
        drop(under_way.begin());
        assert_eq!(idle.await.unwrap(), LONG * 8, "and from the end of the last on");
    }

    fn whole(bytes: &'static [u8]) -> Body {
        Full::new(Bytes::from_static(bytes)).map_err(|never| match never {}).boxed_unsync()
    }

    #[tokio::test]
    async fn an_answer_goes_out_in_pieces_and_is_the_same() {
        const MUCH: &[u8] = &[7; 2 * PIECE + 1];
        let mut answer = UnderWay::default().begin().answer(whole(MUCH));
        for (piece, left) in [(PIECE, PIECE + 1), (PIECE, 1), (1, 0)] {
            assert!(!answer.is_end_stream());
            assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap().len(), piece);
            assert_eq!(answer.size_hint().exact(), Some(left as u64));
        }
        assert!(answer.is_end_stream());
        assert!(answer.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_from_its_last_piece_until_it_is_asked_for_the_next() {
        let (taken, began) = (Taken::default(), Instant::now());
        let wait = async {
            taken.too_long(LONG).await;
            began.elapsed()
        };
        let go_on = async {
            // The handler takes its time, then the client, then the object that is watched.
            sleep(LONG * 2).await;
            taken.waits(true);
            sleep(LONG / 2).await;
            taken.waits(true);
            sleep(LONG / 2).await;
            taken.waits(false);
            sleep(LONG * 4).await;
            taken.waits(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            waited = wait => assert_eq!(waited, LONG * 8),
            () = go_on => {}
        }
    }
}
