//! The service itself: a question is checked, then asked of the driver, and the driver's answer passed on message by
//! message, no faster than the caller reads.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use wharf_cluster::Cluster;
use wharf_csi::snapshotmetadata as api;
use wharf_csi::{Client, v1};

use super::act::{Answerable, resolve};
use super::decide::{Question, Refusal};
use crate::metrics::Metrics;
use crate::secret;

/// So many messages wait for a caller who reads slowly.
const AHEAD: usize = 4;

/// What answers.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) cluster: Cluster,
    pub(super) driver: Client,
    /// The driver's name, once it is ready.
    pub(super) name: watch::Receiver<Option<String>>,
    pub(super) audience: Option<String>,
    /// How long an answer may take in all.
    pub(super) longest: Duration,
    pub(super) metrics: Metrics,
}

type Messages<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl api::snapshot_metadata_server::SnapshotMetadata for Service {
    type GetMetadataAllocatedStream = Messages<api::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<api::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<api::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let api::GetMetadataAllocatedRequest {
            security_token: token,
            namespace,
            snapshot_name: snapshot,
            starting_offset,
            max_results,
        } = request.into_inner();
        let began = Instant::now();
        let question = Question { token, namespace, snapshot, base: None };
        let Answerable { handle, secrets } = self.answerable(question, began).await?;
        let asked = v1::GetMetadataAllocatedRequest {
            snapshot_id: handle,
            starting_offset,
            max_results,
            secrets: secrets.clone(),
        };
        let mut driver = self.driver.with_deadline(self.longest).snapshot_metadata();
        let answer = driver.get_metadata_allocated(asked).await;
        self.relay("GetMetadataAllocated", began, answer, secrets, |message| {
            api::GetMetadataAllocatedResponse {
                block_metadata_type: message.block_metadata_type,
                volume_capacity_bytes: message.volume_capacity_bytes,
                block_metadata: blocks(message.block_metadata),
            }
        })
    }

    async fn get_metadata_delta(
        &self,
        request: Request<api::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let api::GetMetadataDeltaRequest {
            security_token: token,
            namespace,
            base_snapshot_id,
            target_snapshot_name: snapshot,
            starting_offset,
            max_results,
        } = request.into_inner();
        let began = Instant::now();
        let question = Question { token, namespace, snapshot, base: Some(base_snapshot_id.clone()) };
        let Answerable { handle, secrets } = self.answerable(question, began).await?;
        let asked = v1::GetMetadataDeltaRequest {
            base_snapshot_id,
            target_snapshot_id: handle,
            starting_offset,
            max_results,
            secrets: secrets.clone(),
        };
        let mut driver = self.driver.with_deadline(self.longest).snapshot_metadata();
        let answer = driver.get_metadata_delta(asked).await;
        self.relay("GetMetadataDelta", began, answer, secrets, |message| api::GetMetadataDeltaResponse {
            block_metadata_type: message.block_metadata_type,
            volume_capacity_bytes: message.volume_capacity_bytes,
            block_metadata: blocks(message.block_metadata),
        })
    }
}

fn blocks(blocks: Vec<v1::BlockMetadata>) -> Vec<api::BlockMetadata> {
    let block = |block: v1::BlockMetadata| api::BlockMetadata {
        byte_offset: block.byte_offset,
        size_bytes: block.size_bytes,
    };
    blocks.into_iter().map(block).collect()
}

impl Service {
    /// What the driver is asked about, or why not.
    async fn answerable(&self, question: Question, began: Instant) -> Result<Answerable, Status> {
        let found = self.resolved(question).await;
        found.map_err(|refusal| {
            let status = Status::from(refusal);
            tracing::info!(code = ?status.code(), reason = status.message(), "a question was refused");
            self.metrics.called("/snapshotmetadata.SnapshotMetadata/refused", status.code(), began.elapsed());
            status
        })
    }

    async fn resolved(&self, question: Question) -> Result<Answerable, Refusal> {
        let question = question.checked()?;
        let name = self.name.borrow().clone().ok_or(Refusal::DriverNotReady)?;
        resolve(&self.cluster, &name, self.audience.as_deref(), &question).await
    }

    /// Passes the driver's answer on. The driver's codes are the caller's; its words are, but for secrets.
    fn relay<M, T>(
        &self,
        method: &'static str,
        began: Instant,
        answer: Result<Response<Streaming<M>>, Status>,
        secrets: BTreeMap<String, String>,
        convert: impl Fn(M) -> T + Send + Sync + 'static,
    ) -> Result<Response<Messages<T>>, Status>
    where
        M: Send + 'static,
        T: Send + 'static,
    {
        let told =
            move |status: Status| Status::new(status.code(), secret::without(status.message(), &secrets));
        let count = {
            let metrics = self.metrics.clone();
            move |code: Code| {
                metrics.called(&format!("/csi.v1.SnapshotMetadata/{method}"), code, began.elapsed())
            }
        };
        let mut driver = match answer {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                count(status.code());
                return Err(told(status));
            }
        };
        let (sender, receiver) = mpsc::channel(AHEAD);
        let left = self.longest.saturating_sub(began.elapsed());
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
                _ = sender.try_send(Err(Status::deadline_exceeded("the answer took too long")));
            }
            count(code);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
