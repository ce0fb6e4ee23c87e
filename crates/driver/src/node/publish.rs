//! Publish and unpublish: bind-mounts the staged volume at a pod's target path, and removes the bind mount.
//!
//! Guarantees: a volume is mounted at its target once, with the requested options; if the existing mount differs, the
//! error says how. As long as the volume is known, only this volume is ever unmounted from a target.

use std::path::{Path, PathBuf};

use wharf_linux::{FsType, Kernel, MountTable, PathKind};

use super::block::Block;
use super::error::NodeError;
use super::mounts::{
    DeviceNode, ExpectedMount, MountIdentity, TargetState, VolumeMode, is_read_only, mount_points,
};
use super::stage::{foreign_mount, remove_orphaned_mounts, unmount_all};
use crate::backend::{AccessMode, AdoptionHint, Device, NodeVolume};

/// A validated NodePublishVolume request.
#[derive(Debug, Clone)]
pub(crate) struct PublishRequest {
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) volume_mode: VolumeMode,
    /// The requested file system type, if any.
    pub(crate) fs: Option<FsType>,
    pub(crate) access_mode: AccessMode,
    pub(crate) read_only: bool,
}

impl Block {
    /// Bind-mounts a staged volume at the target. Succeeds if it is already mounted there.
    pub(crate) async fn publish(
        &self,
        volume: &NodeVolume,
        publish: PublishRequest,
    ) -> Result<(), NodeError> {
        let mut device = self.find_at(&volume.id, &publish.staging).await?;
        if device.is_none() && publish.volume_mode == VolumeMode::Block {
            // A raw volume has no mount at its staging path.
            device = self.devices.adopt(&volume.id, AdoptionHint::Published(&volume.publish_context)).await?;
        }
        let Some(mut device) = device else { return Err(not_staged(&publish.staging)) };
        self.devices.before_publish(volume).await?;
        if publish.volume_mode == VolumeMode::Block && publish.read_only && !device.read_only {
            device = self.devices.attach_reader(&volume.id).await?.unwrap_or(device);
        }
        self.kernel
            .run(move |kernel| {
                remove_orphaned_mounts(kernel, &kernel.resolve(&publish.target)?)?;
                match publish.volume_mode {
                    VolumeMode::Filesystem => publish_filesystem(kernel, &device, &publish),
                    VolumeMode::Block => publish_raw(kernel, &device, &publish),
                }
            })
            .await
    }

    /// Removes the bind mount and its target. Succeeds if the target does not exist.
    pub(crate) async fn unpublish(&self, id: &str, target: PathBuf) -> Result<(), NodeError> {
        let device = self.find_attached_at(id, &target).await?;
        self.kernel
            .run(move |kernel| {
                let node = device.map(|device| DeviceNode::of(kernel, &device)).transpose()?;
                clear_target(kernel, &target, node.as_ref())
            })
            .await
    }
}

fn publish_filesystem(
    kernel: &dyn Kernel,
    device: &Device,
    publish: &PublishRequest,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(&publish.staging)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    let staged = table.at(&staging).filter(|mount| node.mode_of(mount) == Some(VolumeMode::Filesystem));
    let Some(staged) = staged else { return Err(not_staged(&staging)) };
    if let Some(fs) = publish.fs.filter(|fs| fs.as_str() != staged.fs_type) {
        return Err(NodeError::Precondition(format!(
            "the volume is staged as {}, not as {fs}",
            staged.fs_type
        )));
    }
    // A bind mount of a read-only mount is read-only.
    let read_only = publish.read_only || is_read_only(staged);
    bind(
        kernel,
        &table,
        &MountIdentity::Device(node),
        &staging,
        &[&staging],
        &PublishRequest { read_only, ..publish.clone() },
    )
}

fn publish_raw(kernel: &dyn Kernel, device: &Device, publish: &PublishRequest) -> Result<(), NodeError> {
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    let mounted: Vec<_> =
        node.mounts_in(&table).filter(|mount| node.mode_of(mount) == Some(VolumeMode::Filesystem)).collect();
    if mounted.iter().any(|mount| mount.mount_point != publish.target) {
        return Err(NodeError::Precondition(format!(
            "the volume is staged as a file system at {}, not as a raw device",
            mount_points(mounted)
        )));
    }
    // A read-only bind mount of a device node does not prevent writes to the device, so a reader gets a device of its own
    // if the backend has one. If not, the orchestrator restricts the pod to reading (kubelet: device rules).
    let reader = device.reader.as_ref().filter(|_| publish.read_only);
    let source = reader.unwrap_or(&device.path);
    bind(kernel, &table, &MountIdentity::Device(node), source, &[], publish)
}

/// Bind-mounts `source` at the target, if the target is free. `excluded` are mount points of the volume that are not
/// publish targets.
pub(super) fn bind(
    kernel: &dyn Kernel,
    table: &MountTable,
    identity: &MountIdentity,
    source: &Path,
    excluded: &[&Path],
    publish: &PublishRequest,
) -> Result<(), NodeError> {
    let target = kernel.resolve(&publish.target)?;
    if excluded.contains(&target.as_path()) {
        return Err(NodeError::Invalid("target_path must not be the staging path".into()));
    }
    let wanted = ExpectedMount { mode: publish.volume_mode, fs: publish.fs, read_only: publish.read_only };
    match identity.at(table, &target, &wanted) {
        TargetState::NotMounted => {}
        TargetState::Matches => return Ok(()),
        TargetState::Incompatible(reason) => {
            return Err(NodeError::Incompatible(format!(
                "the volume is already published at {}: {reason}",
                target.display()
            )));
        }
        TargetState::Foreign(mount) => return Err(foreign_mount(&target, mount)),
    }
    if publish.access_mode == AccessMode::SingleNodeSingleWriter {
        check_single_target(table, identity, excluded)?;
    }
    match (publish.volume_mode, kernel.path_kind(&target)?) {
        (VolumeMode::Filesystem, None | Some(PathKind::Directory)) => kernel.create_target_dir(&target)?,
        (VolumeMode::Block, None | Some(PathKind::File)) => kernel.create_target_file(&target)?,
        (_, Some(found)) => return Err(wrong_kind(&target, found)),
    }
    Ok(kernel.bind(source, &target, publish.read_only)?)
}

/// SINGLE_NODE_SINGLE_WRITER (ReadWriteOncePod) allows one target at a time.
fn check_single_target(
    table: &MountTable,
    identity: &MountIdentity,
    excluded: &[&Path],
) -> Result<(), NodeError> {
    let elsewhere: Vec<_> = table
        .mounts()
        .iter()
        .filter(|mount| identity.mode_of(mount).is_some() && !excluded.contains(&mount.mount_point.as_path()))
        .collect();
    match elsewhere.is_empty() {
        true => Ok(()),
        false => Err(NodeError::Precondition(format!(
            "the access mode allows one pod, but the volume is published at {}; unpublish it there first",
            mount_points(elsewhere)
        ))),
    }
}

/// Unmounts a target and removes it. If the device is known, only its mounts are unmounted. If the volume no longer exists,
/// everything at the path is unmounted: the path belongs to the orchestrator, which has finished with it.
pub(super) fn clear_target(
    kernel: &dyn Kernel,
    target: &Path,
    node: Option<&DeviceNode>,
) -> Result<(), NodeError> {
    let target = kernel.resolve(target)?;
    unmount_all(kernel, &target, node)?;
    match kernel.path_kind(&target)? {
        None => Ok(()),
        Some(PathKind::Directory | PathKind::File) => Ok(kernel.remove_target(&target)?),
        Some(found) => Err(wrong_kind(&target, found)),
    }
}

pub(super) fn not_staged(staging: &Path) -> NodeError {
    NodeError::Precondition(format!("the volume is not staged at {}; stage it first", staging.display()))
}

fn wrong_kind(target: &Path, found: PathKind) -> NodeError {
    NodeError::Precondition(format!(
        "{} is a {found:?}, not a mount target of this driver; it was not changed",
        target.display()
    ))
}
