//! The service itself: a question is checked, then asked of the driver, and the driver's answer passed on message by
//! message, no faster than the caller reads.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use wharf_cluster::Cluster;
use wharf_csi::snapshotmetadata as api;
use wharf_csi::{Client, v1};

use super::act::{Answerable, resolve};
use super::decide::{Question, Refusal};
use super::relay::{Answers, Messages};
use crate::metrics::Metrics;

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
    pub(super) answers: Answers,
    pub(super) metrics: Metrics,
}

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
        let turn = self.answers.turn("GetMetadataAllocated", began).await?;
        let mut driver = self.driver.with_deadline(self.longest).snapshot_metadata();
        let answer = driver.get_metadata_allocated(asked).await;
        turn.relay(answer, secrets, |message: v1::GetMetadataAllocatedResponse| {
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
        let turn = self.answers.turn("GetMetadataDelta", began).await?;
        let mut driver = self.driver.with_deadline(self.longest).snapshot_metadata();
        let answer = driver.get_metadata_delta(asked).await;
        turn.relay(answer, secrets, |message: v1::GetMetadataDeltaResponse| api::GetMetadataDeltaResponse {
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
}
