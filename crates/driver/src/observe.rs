//! Logs and counts every CSI call: the request at debug level, with secrets redacted, and the result with object, code and
//! duration. [`Observed`] wraps a whole service, so that no method can be left out.

use std::fmt::Debug;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};
use wharf_csi::v1;

use crate::locks::PANICKED;
use crate::metrics::Metrics;

/// Longer ids and names are truncated in the log: the caller chooses them, and they can be as long as a megabyte.
const MAX_OBJECT_LENGTH: usize = 256;

/// A service whose calls are logged and counted.
#[derive(Clone)]
pub(crate) struct Observed<S> {
    pub(crate) service: S,
    pub(crate) metrics: Metrics,
}

/// A running call. If it is dropped before it has finished, the caller has disconnected.
struct Call {
    metrics: Metrics,
    method: &'static str,
    object: String,
    started: Instant,
    code: Option<Code>,
}

impl Call {
    fn start(metrics: &Metrics, method: &'static str, object: &str, request: &impl Debug) -> Self {
        metrics.request_started();
        let object = object.chars().take(MAX_OBJECT_LENGTH).collect();
        tracing::debug!(method, ?request, "CSI call started");
        Self { metrics: metrics.clone(), method, object, started: Instant::now(), code: None }
    }

    fn finish<T>(mut self, result: Result<T, Status>) -> Result<T, Status> {
        let (method, object, duration) = (self.method, &self.object, self.elapsed());
        match &result {
            Ok(_) => {
                self.code = Some(Code::Ok);
                match is_read_only(method) {
                    true => tracing::debug!(method, ?object, ?duration, "CSI call succeeded"),
                    false => tracing::info!(method, ?object, ?duration, "CSI call succeeded"),
                }
            }
            Err(status) => {
                let (code, error) = (status.code(), status.message());
                self.code = Some(code);
                tracing::warn!(method, ?object, ?code, ?duration, error, "CSI call failed");
            }
        }
        result
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.code.is_none() {
            let (method, object, duration) = (self.method, &self.object, self.elapsed());
            tracing::info!(method, ?object, ?duration, "caller disconnected; the operation continues");
        }
        self.metrics.request_finished(self.method, self.code.unwrap_or(Code::Cancelled), self.elapsed());
    }
}

/// Runs a call. If it panics, the call fails with INTERNAL and the driver continues. An operation that holds a lock runs
/// in its own task; [`Locks::run`](crate::locks::Locks::run) catches panics there in the same way.
async fn catch_panic<T>(
    method: &'static str,
    object: &str,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let mut call = pin!(call);
    poll_fn(|context| {
        // After a panic the call is not polled again, only dropped.
        std::panic::catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context))).unwrap_or_else(|_| {
            // The panic hook has printed the message.
            tracing::error!(method, ?object, "CSI call panicked");
            Poll::Ready(Err(Status::internal(PANICKED)))
        })
    })
    .await
}

/// Whether a call is read-only. Orchestrators repeat such calls frequently, so they are logged at debug level.
fn is_read_only(method: &str) -> bool {
    ["Get", "List", "Validate", "Probe"].iter().any(|word| method.contains(word))
}

/// Implements a service's trait for [`Observed`]. Each line is one method, with the request field that identifies the
/// object in brackets.
macro_rules! observed {
    ($trait:path { $($method:ident = $name:literal ($request:ident $([$object:ident])?) -> $response:ident;)* }) => {
        #[tonic::async_trait]
        impl<S: $trait> $trait for Observed<S> {
            $(async fn $method(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                let message = request.get_ref();
                let object = [$(message.$object.as_str(),)? ""][0];
                let call = Call::start(&self.metrics, $name, object, message);
                let result = catch_panic($name, &call.object, self.service.$method(request)).await;
                call.finish(result)
            })*
        }
    };
}

observed! { v1::identity_server::Identity {
    get_plugin_info = "GetPluginInfo" (GetPluginInfoRequest) -> GetPluginInfoResponse;
    get_plugin_capabilities = "GetPluginCapabilities" (GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
    probe = "Probe" (ProbeRequest) -> ProbeResponse;
} }

observed! { v1::controller_server::Controller {
    create_volume = "CreateVolume" (CreateVolumeRequest[name]) -> CreateVolumeResponse;
    delete_volume = "DeleteVolume" (DeleteVolumeRequest[volume_id]) -> DeleteVolumeResponse;
    controller_publish_volume = "ControllerPublishVolume"
        (ControllerPublishVolumeRequest[volume_id]) -> ControllerPublishVolumeResponse;
    controller_unpublish_volume = "ControllerUnpublishVolume"
        (ControllerUnpublishVolumeRequest[volume_id]) -> ControllerUnpublishVolumeResponse;
    validate_volume_capabilities = "ValidateVolumeCapabilities"
        (ValidateVolumeCapabilitiesRequest[volume_id]) -> ValidateVolumeCapabilitiesResponse;
    list_volumes = "ListVolumes" (ListVolumesRequest) -> ListVolumesResponse;
    controller_list_volume_health = "ControllerListVolumeHealth"
        (ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse;
    controller_get_volume_health = "ControllerGetVolumeHealth"
        (ControllerGetVolumeHealthRequest[volume_id]) -> ControllerGetVolumeHealthResponse;
    get_capacity = "GetCapacity" (GetCapacityRequest) -> GetCapacityResponse;
    controller_get_capabilities = "ControllerGetCapabilities"
        (ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse;
    create_snapshot = "CreateSnapshot" (CreateSnapshotRequest[name]) -> CreateSnapshotResponse;
    delete_snapshot = "DeleteSnapshot" (DeleteSnapshotRequest[snapshot_id]) -> DeleteSnapshotResponse;
    list_snapshots = "ListSnapshots" (ListSnapshotsRequest) -> ListSnapshotsResponse;
    get_snapshot = "GetSnapshot" (GetSnapshotRequest[snapshot_id]) -> GetSnapshotResponse;
    controller_expand_volume = "ControllerExpandVolume"
        (ControllerExpandVolumeRequest[volume_id]) -> ControllerExpandVolumeResponse;
    controller_get_volume = "ControllerGetVolume"
        (ControllerGetVolumeRequest[volume_id]) -> ControllerGetVolumeResponse;
    controller_modify_volume = "ControllerModifyVolume"
        (ControllerModifyVolumeRequest[volume_id]) -> ControllerModifyVolumeResponse;
} }

observed! { v1::group_controller_server::GroupController {
    group_controller_get_capabilities = "GroupControllerGetCapabilities"
        (GroupControllerGetCapabilitiesRequest) -> GroupControllerGetCapabilitiesResponse;
    create_volume_group_snapshot = "CreateVolumeGroupSnapshot"
        (CreateVolumeGroupSnapshotRequest[name]) -> CreateVolumeGroupSnapshotResponse;
    delete_volume_group_snapshot = "DeleteVolumeGroupSnapshot"
        (DeleteVolumeGroupSnapshotRequest[group_snapshot_id]) -> DeleteVolumeGroupSnapshotResponse;
    get_volume_group_snapshot = "GetVolumeGroupSnapshot"
        (GetVolumeGroupSnapshotRequest[group_snapshot_id]) -> GetVolumeGroupSnapshotResponse;
} }

observed! { v1::node_server::Node {
    node_stage_volume = "NodeStageVolume" (NodeStageVolumeRequest[volume_id]) -> NodeStageVolumeResponse;
    node_unstage_volume = "NodeUnstageVolume" (NodeUnstageVolumeRequest[volume_id]) -> NodeUnstageVolumeResponse;
    node_publish_volume = "NodePublishVolume" (NodePublishVolumeRequest[volume_id]) -> NodePublishVolumeResponse;
    node_unpublish_volume = "NodeUnpublishVolume"
        (NodeUnpublishVolumeRequest[volume_id]) -> NodeUnpublishVolumeResponse;
    node_get_volume_stats = "NodeGetVolumeStats"
        (NodeGetVolumeStatsRequest[volume_id]) -> NodeGetVolumeStatsResponse;
    node_get_volume_health = "NodeGetVolumeHealth"
        (NodeGetVolumeHealthRequest[volume_id]) -> NodeGetVolumeHealthResponse;
    node_get_storage_health = "NodeGetStorageHealth"
        (NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
    node_expand_volume = "NodeExpandVolume" (NodeExpandVolumeRequest[volume_id]) -> NodeExpandVolumeResponse;
    node_get_capabilities = "NodeGetCapabilities" (NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
    node_get_info = "NodeGetInfo" (NodeGetInfoRequest) -> NodeGetInfoResponse;
} }

/// A streaming call counts as finished when its stream starts: the messages are already in memory.
#[tonic::async_trait]
impl<S: v1::snapshot_metadata_server::SnapshotMetadata> v1::snapshot_metadata_server::SnapshotMetadata
    for Observed<S>
{
    type GetMetadataAllocatedStream = S::GetMetadataAllocatedStream;
    type GetMetadataDeltaStream = S::GetMetadataDeltaStream;

    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let message = request.get_ref();
        let call = Call::start(&self.metrics, "GetMetadataAllocated", &message.snapshot_id, message);
        let future = self.service.get_metadata_allocated(request);
        let result = catch_panic("GetMetadataAllocated", &call.object, future).await;
        call.finish(result)
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let message = request.get_ref();
        let call = Call::start(&self.metrics, "GetMetadataDelta", &message.target_snapshot_id, message);
        let result =
            catch_panic("GetMetadataDelta", &call.object, self.service.get_metadata_delta(request)).await;
        call.finish(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_in_a_call_is_internal_and_counted() {
        let metrics = Metrics::new(&[]);
        let call = Call::start(&metrics, "ListVolumes", "", &"request");
        let panicking = async { panic!("on purpose") };
        let result: Result<(), Status> = catch_panic("ListVolumes", "", panicking).await;
        assert_eq!(call.finish(result).unwrap_err().code(), Code::Internal);
        let text = metrics.text();
        assert!(text.contains(r#"csi_requests_total{method="ListVolumes",code="Internal"} 1"#), "{text}");
        assert!(text.contains("csi_requests_in_flight 0"), "{text}");
    }
}
