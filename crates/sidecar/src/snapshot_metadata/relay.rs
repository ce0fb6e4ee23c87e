//! Passes the driver's answers on: so many at once, each within its time, and no faster than its caller reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Response, Status};

use crate::metrics::Metrics;
use crate::secret;

/// So many messages wait for a caller who reads slowly.
const AHEAD: usize = 4;

/// An answer, message by message.
pub(super) type Messages<T> = ReceiverStream<Result<T, Status>>;

/// All answers.
#[derive(Clone)]
pub(super) struct Answers {
    slots: Arc<Semaphore>,
    longest: Duration,
    metrics: Metrics,
}

impl Answers {
    /// `most` at once, none of which takes more time than `longest` in all.
    pub(super) fn new(most: usize, longest: Duration, metrics: Metrics) -> Self {
        Self { slots: Arc::new(Semaphore::new(most)), longest, metrics }
    }

    /// Waits for a turn. Only who may ask should come here, or strangers would keep the others waiting.
    pub(super) async fn turn(&self, method: &'static str, began: Instant) -> Result<Turn, Status> {
        let waited = timeout(self.left(began), Arc::clone(&self.slots).acquire_owned()).await;
        match waited {
            Ok(Ok(slot)) => Ok(Turn { slot, method, began, answers: self.clone() }),
            Ok(Err(_)) | Err(_) => {
                let status = Status::resource_exhausted("too many answers are under way: ask again later");
                self.count(method, status.code(), began);
                Err(status)
            }
        }
    }

    fn left(&self, began: Instant) -> Duration {
        self.longest.saturating_sub(began.elapsed())
    }

    fn count(&self, method: &str, code: Code, began: Instant) {
        self.metrics.called(&format!("/csi.v1.SnapshotMetadata/{method}"), code, began.elapsed());
    }
}

/// The right to ask the driver and to pass its answer on. It lasts until the answer's end.
pub(super) struct Turn {
    slot: OwnedSemaphorePermit,
    method: &'static str,
    began: Instant,
    answers: Answers,
}

impl Turn {
    /// Passes the driver's answer on. The driver's codes are the caller's; its words are, but for secrets.
    pub(super) fn relay<S, M, T>(
        self,
        answer: Result<Response<S>, Status>,
        secrets: BTreeMap<String, String>,
        convert: impl Fn(M) -> T + Send + Sync + 'static,
    ) -> Result<Response<Messages<T>>, Status>
    where
        S: Stream<Item = Result<M, Status>> + Unpin + Send + 'static,
        M: Send + 'static,
        T: Send + 'static,
    {
        let Self { slot, method, began, answers } = self;
        let told =
            move |status: Status| Status::new(status.code(), secret::without(status.message(), &secrets));
        let mut driver = match answer {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                answers.count(method, status.code(), began);
                return Err(told(status));
            }
        };
        let (sender, receiver) = mpsc::channel(AHEAD + 1);
        // One place is kept for the word that it was cut off: an answer that ends without one counts as whole, and a backup
        // would lack blocks.
        let last_word =
            sender.clone().try_reserve_owned().map_err(|_| Status::internal("no place to answer"))?;
        let left = answers.left(began);
        tokio::spawn(async move {
            let passing = async {
                while let Some(message) = driver.next().await {
                    let failed = message.as_ref().err().map(Status::code);
                    if sender.send(message.map(&convert).map_err(&told)).await.is_err() {
                        return Code::Cancelled;
                    }
                    if let Some(code) = failed {
                        return code;
                    }
                }
                Code::Ok
            };
            // A caller who does not read must not keep the driver's answer for ever.
            let code = tokio::select! {
                passed = timeout(left, passing) => passed.unwrap_or(Code::DeadlineExceeded),
                () = sender.closed() => Code::Cancelled,
            };
            if code == Code::DeadlineExceeded {
                last_word.send(Err(Status::deadline_exceeded("the answer took too long")));
            }
            answers.count(method, code, began);
            drop(slot);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(600);

    /// What the driver never ends.
    fn endless(turn: Turn) -> Messages<u32> {
        let answer = tokio_stream::pending::<Result<u32, Status>>();
        turn.relay(Ok(Response::new(answer)), BTreeMap::new(), |number| number).unwrap().into_inner()
    }

    /// Not only the question counts, but its answer to the end.
    #[tokio::test(start_paused = true)]
    async fn answers_are_so_many_at_once() {
        let answers = Answers::new(2, LONGEST, Metrics::new());
        let turn = || answers.turn("GetMetadataDelta", Instant::now());
        let first = endless(turn().await.unwrap());
        let second = endless(turn().await.unwrap());
        let too_soon = timeout(Duration::from_secs(60), turn()).await;
        assert!(too_soon.is_err(), "a third while two are under way");
        // The caller goes away.
        drop(first);
        let third = turn().await.unwrap();
        // The driver refuses.
        let refused = third.relay::<Messages<u32>, u32, u32>(
            Err(Status::not_found("no s3cret")),
            BTreeMap::from([("k".to_owned(), "s3cret".to_owned())]),
            |number| number,
        );
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        assert!(!refused.message().contains("s3cret"), "{refused}");
        let fourth = endless(turn().await.unwrap());
        // The time is over, for those under way first.
        let last = turn().await.unwrap();
        let ended: Vec<_> = second.collect().await;
        assert_eq!(ended.last().map(|end| end.as_ref().unwrap_err().code()), Some(Code::DeadlineExceeded));
        drop((fourth, last));
    }

    /// The time is over because the caller is slow, so that no more can be sent: all the same it must not look whole.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_cut_off_says_so() {
        let answers = Answers::new(1, LONGEST, Metrics::new());
        let turn = answers.turn("GetMetadataDelta", Instant::now()).await.unwrap();
        let driver = tokio_stream::iter((0..100).map(Ok::<u32, Status>));
        let answer = turn.relay(Ok(Response::new(driver)), BTreeMap::new(), |number| number).unwrap();
        tokio::time::sleep(LONGEST + Duration::from_secs(1)).await;
        let read: Vec<_> = answer.into_inner().collect().await;
        assert_eq!(read.len(), AHEAD + 1);
        assert_eq!(read[AHEAD].as_ref().unwrap_err().code(), Code::DeadlineExceeded);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_no_longer_than_an_answer_may_take() {
        let answers = Answers::new(1, LONGEST, Metrics::new());
        let _held = answers.turn("GetMetadataDelta", Instant::now()).await.unwrap();
        let began = Instant::now();
        let refused = answers.turn("GetMetadataDelta", began).await.err().map(|status| status.code());
        assert_eq!((refused, began.elapsed() >= LONGEST), (Some(Code::ResourceExhausted), true));
    }
}
