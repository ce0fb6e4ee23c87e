//! Forwards the driver's streams: a limited number at once, each within its time limit, and no faster than its
//! caller reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Response, Status};
use wharf_model::panics::catch;
use wharf_model::secret::redact;

use crate::metrics::Metrics;

/// Messages buffered for a slow caller.
const BUFFERED_MESSAGES: usize = 4;

/// A response stream.
pub(super) type MessageStream<T> = ReceiverStream<Result<T, Status>>;

/// Limits the number and duration of all streams.
#[derive(Clone)]
pub(super) struct StreamLimiter {
    slots: Arc<Semaphore>,
    max_duration: Duration,
    metrics: Metrics,
}

impl StreamLimiter {
    /// Allows `max_streams` streams at once, each for at most `max_duration`.
    pub(super) fn new(max_streams: usize, max_duration: Duration, metrics: Metrics) -> Self {
        Self { slots: Arc::new(Semaphore::new(max_streams)), max_duration, metrics }
    }

    /// Waits for a permit. Only authorized callers may wait here, or others could block them.
    pub(super) async fn acquire(
        &self,
        method: &'static str,
        started: Instant,
    ) -> Result<StreamPermit, Status> {
        let waited = timeout(self.remaining(started), Arc::clone(&self.slots).acquire_owned()).await;
        match waited {
            Ok(Ok(slot)) => Ok(StreamPermit { slot, method, started, limiter: self.clone() }),
            Ok(Err(_)) | Err(_) => {
                let status = Status::resource_exhausted("too many streams are in progress: retry later");
                self.count(method, status.code(), started);
                Err(status)
            }
        }
    }

    fn remaining(&self, started: Instant) -> Duration {
        self.max_duration.saturating_sub(started.elapsed())
    }

    fn count(&self, method: &str, code: Code, started: Instant) {
        self.metrics.record_call(&format!("/csi.v1.SnapshotMetadata/{method}"), code, started.elapsed());
    }
}

/// The permission to call the driver and to forward its stream. Held until the stream ends.
pub(super) struct StreamPermit {
    slot: OwnedSemaphorePermit,
    method: &'static str,
    started: Instant,
    limiter: StreamLimiter,
}

impl StreamPermit {
    /// Forwards the driver's stream. The caller gets the driver's codes and messages, with secrets redacted.
    pub(super) fn relay<S, M, T>(
        self,
        response: Result<Response<S>, Status>,
        secrets: BTreeMap<String, String>,
        convert: impl Fn(M) -> T + Send + Sync + 'static,
    ) -> Result<Response<MessageStream<T>>, Status>
    where
        S: Stream<Item = Result<M, Status>> + Unpin + Send + 'static,
        M: Send + 'static,
        T: Send + 'static,
    {
        let Self { slot, method, started, limiter } = self;
        let redact =
            move |status: Status| Status::new(status.code(), redact(status.message(), secrets.values()));
        let mut driver = match response {
            Ok(response) => response.into_inner(),
            Err(status) => {
                limiter.count(method, status.code(), started);
                return Err(redact(status));
            }
        };
        let (sender, receiver) = mpsc::channel(BUFFERED_MESSAGES + 1);
        // One slot is reserved for the error of a timeout or a panic: a stream that ends without an error counts as
        // complete, and a backup would miss blocks.
        let error_slot =
            sender.clone().try_reserve_owned().map_err(|_| Status::internal("no free slot in the stream"))?;
        let remaining = limiter.remaining(started);
        tokio::spawn(async move {
            let forward = async {
                while let Some(message) = driver.next().await {
                    let failed = message.as_ref().err().map(Status::code);
                    if sender.send(message.map(&convert).map_err(&redact)).await.is_err() {
                        return Code::Cancelled;
                    }
                    if let Some(code) = failed {
                        return code;
                    }
                }
                Code::Ok
            };
            // A caller that does not read must not hold the driver's stream forever.
            let forward = catch("snapshot-metadata", method, forward);
            let code = tokio::select! {
                forwarded = timeout(remaining, forward) => match forwarded {
                    Ok(forwarded) => forwarded.unwrap_or(Code::Internal),
                    Err(_) => Code::DeadlineExceeded,
                },
                () = sender.closed() => Code::Cancelled,
            };
            match code {
                Code::DeadlineExceeded => {
                    error_slot.send(Err(Status::deadline_exceeded("the stream exceeded its time limit")));
                }
                Code::Internal => {
                    error_slot.send(Err(Status::internal("the stream ended with an internal error")));
                }
                _ => {}
            }
            limiter.count(method, code, started);
            drop(slot);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_DURATION: Duration = Duration::from_secs(600);

    /// A stream that the driver never ends.
    fn endless(permit: StreamPermit) -> MessageStream<u32> {
        let response = tokio_stream::pending::<Result<u32, Status>>();
        permit.relay(Ok(Response::new(response)), BTreeMap::new(), |number| number).unwrap().into_inner()
    }

    /// The permit is held for the whole stream, not only for the request.
    #[tokio::test(start_paused = true)]
    async fn streams_are_limited_until_they_end() {
        let limiter = StreamLimiter::new(2, MAX_DURATION, Metrics::new());
        let permit = || limiter.acquire("GetMetadataDelta", Instant::now());
        let first = endless(permit().await.unwrap());
        let second = endless(permit().await.unwrap());
        let too_soon = timeout(Duration::from_secs(60), permit()).await;
        assert!(too_soon.is_err(), "a third stream while two are in progress");
        // The caller disconnects.
        drop(first);
        let third = permit().await.unwrap();
        // The driver returns an error.
        let refused = third.relay::<MessageStream<u32>, u32, u32>(
            Err(Status::not_found("no s3cret")),
            BTreeMap::from([("k".to_owned(), "s3cret".to_owned())]),
            |number| number,
        );
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        assert!(!refused.message().contains("s3cret"), "{refused}");
        let fourth = endless(permit().await.unwrap());
        // The time limit expires, first for the older streams.
        let last = permit().await.unwrap();
        let ended: Vec<_> = second.collect().await;
        assert_eq!(ended.last().map(|end| end.as_ref().unwrap_err().code()), Some(Code::DeadlineExceeded));
        drop((fourth, last));
    }

    /// If the time limit expires because the caller is slow and the buffer is full, the stream must still end with
    /// an error.
    #[tokio::test(start_paused = true)]
    async fn stream_cut_off_by_time_limit_ends_with_error() {
        let limiter = StreamLimiter::new(1, MAX_DURATION, Metrics::new());
        let permit = limiter.acquire("GetMetadataDelta", Instant::now()).await.unwrap();
        let driver = tokio_stream::iter((0..100).map(Ok::<u32, Status>));
        let response = permit.relay(Ok(Response::new(driver)), BTreeMap::new(), |number| number).unwrap();
        tokio::time::sleep(MAX_DURATION + Duration::from_secs(1)).await;
        let read: Vec<_> = response.into_inner().collect().await;
        assert_eq!(read.len(), BUFFERED_MESSAGES + 1);
        assert_eq!(read[BUFFERED_MESSAGES].as_ref().unwrap_err().code(), Code::DeadlineExceeded);
    }

    /// A stream that ended without an error would count as complete.
    #[tokio::test(start_paused = true)]
    async fn stream_cut_off_by_panic_ends_with_error() {
        let limiter = StreamLimiter::new(1, MAX_DURATION, Metrics::new());
        let permit = limiter.acquire("GetMetadataDelta", Instant::now()).await.unwrap();
        let driver = tokio_stream::iter((0..3).map(Ok::<u32, Status>));
        let convert = |number| {
            assert!(number != 1, "planned panic");
            number
        };
        let response = permit.relay(Ok(Response::new(driver)), BTreeMap::new(), convert).unwrap();
        let read: Vec<_> = response.into_inner().collect().await;
        assert_eq!(read[0].as_ref().unwrap(), &0);
        assert_eq!(read[1].as_ref().unwrap_err().code(), Code::Internal);
        assert_eq!(read.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_permit_is_limited_by_stream_duration() {
        let limiter = StreamLimiter::new(1, MAX_DURATION, Metrics::new());
        let _held = limiter.acquire("GetMetadataDelta", Instant::now()).await.unwrap();
        let started = Instant::now();
        let refused = limiter.acquire("GetMetadataDelta", started).await.err().map(|status| status.code());
        assert_eq!((refused, started.elapsed() >= MAX_DURATION), (Some(Code::ResourceExhausted), true));
    }
}
