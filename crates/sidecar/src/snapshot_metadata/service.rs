//! The gRPC service: validates a request, calls the driver, and forwards its stream message by message, no faster
//! than the caller reads.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use wharf_cluster::Cluster;
use wharf_csi::snapshotmetadata as api;
use wharf_csi::{Client, v1};

use super::act::{ResolvedSnapshot, resolve};
use super::decide::{MetadataRequest, Refusal};
use super::relay::{MessageStream, StreamLimiter};
use crate::metrics::Metrics;

/// The gRPC service.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) cluster: Cluster,
    pub(super) driver: Client,
    /// The driver's name, once it is ready.
    pub(super) name: watch::Receiver<Option<String>>,
    pub(super) audience: Option<String>,
    /// Maximum duration of a stream.
    pub(super) max_duration: Duration,
    pub(super) limiter: StreamLimiter,
    pub(super) metrics: Metrics,
}

#[tonic::async_trait]
impl api::snapshot_metadata_server::SnapshotMetadata for Service {
    type GetMetadataAllocatedStream = MessageStream<api::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = MessageStream<api::GetMetadataDeltaResponse>;

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
        let started = Instant::now();
        let request = MetadataRequest { token, namespace, snapshot, base: None };
        let ResolvedSnapshot { handle, secrets } = self.resolve_request(request, started).await?;
        let driver_request = v1::GetMetadataAllocatedRequest {
            snapshot_id: handle,
            starting_offset,
            max_results,
            secrets: secrets.clone(),
        };
        let permit = self.limiter.acquire("GetMetadataAllocated", started).await?;
        let mut driver = self.driver.with_deadline(self.max_duration).snapshot_metadata();
        let response = driver.get_metadata_allocated(driver_request).await;
        permit.relay(response, secrets, |message: v1::GetMetadataAllocatedResponse| {
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
        let started = Instant::now();
        let request = MetadataRequest { token, namespace, snapshot, base: Some(base_snapshot_id.clone()) };
        let ResolvedSnapshot { handle, secrets } = self.resolve_request(request, started).await?;
        let driver_request = v1::GetMetadataDeltaRequest {
            base_snapshot_id,
            target_snapshot_id: handle,
            starting_offset,
            max_results,
            secrets: secrets.clone(),
        };
        let permit = self.limiter.acquire("GetMetadataDelta", started).await?;
        let mut driver = self.driver.with_deadline(self.max_duration).snapshot_metadata();
        let response = driver.get_metadata_delta(driver_request).await;
        permit.relay(response, secrets, |message: v1::GetMetadataDeltaResponse| {
            api::GetMetadataDeltaResponse {
                block_metadata_type: message.block_metadata_type,
                volume_capacity_bytes: message.volume_capacity_bytes,
                block_metadata: blocks(message.block_metadata),
            }
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
    /// The snapshot to request from the driver, or the error for the caller.
    async fn resolve_request(
        &self,
        request: MetadataRequest,
        started: Instant,
    ) -> Result<ResolvedSnapshot, Status> {
        let found = self.resolve(request).await;
        found.map_err(|refusal| {
            let status = Status::from(refusal);
            tracing::info!(code = ?status.code(), error = status.message(), "refused request");
            self.metrics.record_call(
                "/snapshotmetadata.SnapshotMetadata/refused",
                status.code(),
                started.elapsed(),
            );
            status
        })
    }

    async fn resolve(&self, request: MetadataRequest) -> Result<ResolvedSnapshot, Refusal> {
        let request = request.validate()?;
        let name = self.name.borrow().clone().ok_or(Refusal::DriverNotReady)?;
        resolve(&self.cluster, &name, self.audience.as_deref(), &request).await
    }
}
