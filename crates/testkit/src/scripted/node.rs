//! The Node service: bind-mounts a volume's directory where kubelet wants it. The mount table is authoritative; the
//! record only informs the driver's other processes.

use std::fs;
use std::io;
use std::path::Path;

use async_trait::async_trait;
use rustix::mount::{MountFlags, UnmountFlags};
use tonic::{Code, Request, Response, Status};
use wharf_csi::v1::node_server::Node;
use wharf_csi::v1::{self as csi};

use super::controller::unimplemented_methods;
use super::state::LockedState;
use super::volumes::existing_volume;
use super::{Call, Refusal, ScriptedService, violation};

#[async_trait]
impl Node for ScriptedService {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodeStageVolume")
            .with("volume", request.volume_id.clone())
            .with("path", request.staging_target_path.clone());
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            let volume = existing_volume(held, &request.volume_id)?;
            if self.options.has("PUBLISH_UNPUBLISH_VOLUME") && !volume.published.contains_key(self.node()) {
                let text =
                    format!("{} is staged on node {}, where it is not published", volume.id, self.node());
                return Err(violation(Code::FailedPrecondition, text));
            }
            let data = held.data(&volume.id);
            self.mount(held, &volume.id, &data, &request.staging_target_path, false)?;
            Ok(csi::NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let csi::NodeUnstageVolumeRequest { volume_id, staging_target_path } = request.into_inner();
        let call = Call::new("NodeUnstageVolume")
            .with("volume", volume_id.clone())
            .with("path", staging_target_path.clone());
        self.call(call, |held| {
            self.unmount(held, &volume_id, &staging_target_path)?;
            Ok(csi::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodePublishVolume")
            .with("volume", request.volume_id.clone())
            .with("path", request.target_path.clone());
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            let volume = existing_volume(held, &request.volume_id)?;
            let staged = Path::new(&request.staging_target_path);
            let data = held.data(&volume.id);
            let source = if request.staging_target_path.is_empty() { data.as_path() } else { staged };
            fs::create_dir_all(&request.target_path)?;
            self.mount(held, &volume.id, source, &request.target_path, request.readonly)?;
            Ok(csi::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let csi::NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        let call = Call::new("NodeUnpublishVolume")
            .with("volume", volume_id.clone())
            .with("path", target_path.clone());
        self.call(call, |held| {
            self.unmount(held, &volume_id, &target_path)?;
            match fs::remove_dir(&target_path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(csi::NodeUnpublishVolumeResponse {}),
            }
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.call(Call::new("NodeGetVolumeStats").with("volume", request.volume_id.clone()), |held| {
            let volume = existing_volume(held, &request.volume_id)?;
            let usage = csi::VolumeUsage {
                total: volume.bytes,
                available: volume.bytes,
                used: 0,
                unit: csi::volume_usage::Unit::Bytes.into(),
            };
            Ok(csi::NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: None })
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        let call =
            Call::new("NodeExpandVolume").with("volume", request.volume_id.clone()).with("bytes", bytes);
        self.call(call, |held| {
            let volume = existing_volume(held, &request.volume_id)?;
            Ok(csi::NodeExpandVolumeResponse { capacity_bytes: volume.bytes.max(bytes) })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        use csi::node_service_capability::{Rpc, Type, rpc};
        let kinds = self.options.node_capabilities.iter().filter_map(|name| rpc::Type::from_str_name(name));
        let capabilities = kinds
            .map(|kind| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        self.call(Call::new("NodeGetInfo"), |_| {
            Ok(csi::NodeGetInfoResponse {
                node_id: self.node().to_owned(),
                max_volumes_per_node: self.options.max_volumes,
                accessible_topology: self
                    .options
                    .segment()
                    .map(|segment| csi::Topology { segments: [segment].into() }),
            })
        })
        .await
    }

    unimplemented_methods! {
        node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
        node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
    }
}

impl ScriptedService {
    fn node(&self) -> &str {
        self.options.node_id.as_deref().unwrap_or_default()
    }

    /// Recorded before it is mounted: the next unmount corrects a surplus record, but a missing record would allow
    /// the volume to be deleted while a pod uses it.
    fn mount(
        &self,
        held: &LockedState<'_>,
        id: &str,
        source: &Path,
        target: &str,
        readonly: bool,
    ) -> Result<(), Refusal> {
        let mut volume = existing_volume(held, id)?;
        if volume.mounted.entry(self.node().to_owned()).or_default().insert(target.to_owned()) {
            held.put_volume(&volume)?;
        }
        if is_mounted(target)? {
            return Ok(());
        }
        rustix::mount::mount_bind(source, target).map_err(io::Error::from)?;
        if readonly {
            let flags = MountFlags::BIND | MountFlags::RDONLY;
            rustix::mount::mount_remount(target, flags, "").map_err(io::Error::from)?;
        }
        Ok(())
    }

    fn unmount(&self, held: &LockedState<'_>, id: &str, target: &str) -> Result<(), Refusal> {
        while is_mounted(target)? {
            rustix::mount::unmount(target, UnmountFlags::empty()).map_err(io::Error::from)?;
        }
        let Some(mut volume) = held.volume(id)? else {
            return Ok(());
        };
        if let Some(places) = volume.mounted.get_mut(self.node())
            && places.remove(target)
        {
            if places.is_empty() {
                volume.mounted.remove(self.node());
            }
            held.put_volume(&volume)?;
        }
        Ok(())
    }
}

/// Reads the mount table. Kubelet's paths contain no characters that are escaped there.
fn is_mounted(target: &str) -> io::Result<bool> {
    let target = target.trim_end_matches('/');
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(target)))
}
