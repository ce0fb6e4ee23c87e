//! Publish and unpublish: a bind of what is staged at a pod's path, and away again.
//!
//! What this promises: a target is bound once, as it was asked for, or the caller is told how it differs. Only
//! this volume is ever unmounted from a target, as long as the volume is known.

use std::path::{Path, PathBuf};

use wharf_linux::{FsType, Kernel, MountTable, PathKind};

use super::block::Block;
use super::error::NodeError;
use super::mounts::{At, DeviceNode, Identity, Kind, Wanted, is_read_only, list};
use super::stage::{clear_lost, in_the_way, unmount_all};
use crate::backend::{AccessMode, Device, StageVolume, Trace};

/// A checked NodePublishVolume.
#[derive(Debug, Clone)]
pub(crate) struct Publish {
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) kind: Kind,
    /// The file system type, if one was asked for.
    pub(crate) fs: Option<FsType>,
    pub(crate) mode: AccessMode,
    pub(crate) read_only: bool,
}

impl Block {
    /// Binds a staged volume; bound already is success.
    pub(crate) async fn publish(&self, volume: &StageVolume, publish: Publish) -> Result<(), NodeError> {
        let mut device = self.find_at(&volume.id, &publish.staging).await?;
        if device.is_none() && publish.kind == Kind::Raw {
            // A raw volume leaves no trace at its staging path.
            device = self.devices.adopt(&volume.id, Trace::Published(&volume.publish_context)).await?;
        }
        let Some(device) = device else { return Err(not_staged(&publish.staging)) };
        self.machine
            .run(move |kernel| {
                clear_lost(kernel, &kernel.resolve(&publish.target)?)?;
                match publish.kind {
                    Kind::Filesystem => publish_filesystem(kernel, &device, &publish),
                    Kind::Raw => publish_raw(kernel, &device, &publish),
                }
            })
            .await
    }

    /// Removes the bind and its target; not there is success.
    pub(crate) async fn unpublish(&self, id: &str, target: PathBuf) -> Result<(), NodeError> {
        let device = self.attached_at(id, &target).await?;
        self.machine
            .run(move |kernel| {
                let node = device.map(|device| DeviceNode::of(kernel, &device)).transpose()?;
                clear_target(kernel, &target, node.as_ref())
            })
            .await
    }
}

fn publish_filesystem(kernel: &dyn Kernel, device: &Device, publish: &Publish) -> Result<(), NodeError> {
    let staging = kernel.resolve(&publish.staging)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    let staged = table.at(&staging).filter(|mount| node.kind_of(mount) == Some(Kind::Filesystem));
    let Some(staged) = staged else { return Err(not_staged(&staging)) };
    if let Some(fs) = publish.fs.filter(|fs| fs.as_str() != staged.fs_type) {
        return Err(NodeError::Precondition(format!("it is staged as {}, not as {fs}", staged.fs_type)));
    }
    // A bind of a read-only mount is read-only.
    let read_only = publish.read_only || is_read_only(staged);
    bind(
        kernel,
        &table,
        &Identity::Device(node),
        &staging,
        &[&staging],
        &Publish { read_only, ..publish.clone() },
    )
}

fn publish_raw(kernel: &dyn Kernel, device: &Device, publish: &Publish) -> Result<(), NodeError> {
    // A read-only bind of a device node does not keep anybody from writing to the device.
    if publish.read_only && !device.read_only {
        return Err(NodeError::Precondition(format!(
            "it is staged for writing as {}, and nothing keeps the user of a writable raw device from writing: \
             publish it without readonly (Kubernetes: readOnly of the pod's volume) and open it read-only; or use \
             it as a file system, which can be read-only for one pod; or unstage it everywhere and stage it as \
             SINGLE_NODE_READER_ONLY",
            device.path.display()
        )));
    }
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    let mounted: Vec<_> =
        node.uses(&table).filter(|mount| node.kind_of(mount) == Some(Kind::Filesystem)).collect();
    if mounted.iter().any(|mount| mount.mount_point != publish.target) {
        return Err(NodeError::Precondition(format!(
            "it is staged as a file system at {}, not as a raw device",
            list(mounted)
        )));
    }
    bind(kernel, &table, &Identity::Device(node), &device.path, &[], publish)
}

/// Binds `source` at the target, if the target is free for it. `not_targets` are where the volume is mounted
/// without being published.
pub(super) fn bind(
    kernel: &dyn Kernel,
    table: &MountTable,
    identity: &Identity,
    source: &Path,
    not_targets: &[&Path],
    publish: &Publish,
) -> Result<(), NodeError> {
    let target = kernel.resolve(&publish.target)?;
    if not_targets.contains(&target.as_path()) {
        return Err(NodeError::Invalid("target_path must not be the staging path".into()));
    }
    let wanted = Wanted { kind: publish.kind, fs: publish.fs, read_only: publish.read_only };
    match identity.at(table, &target, &wanted) {
        At::Nothing => {}
        At::Same => return Ok(()),
        At::Incompatible(why) => {
            return Err(NodeError::Incompatible(format!(
                "it is published at {} already: {why}",
                target.display()
            )));
        }
        At::Foreign(mount) => return Err(in_the_way(&target, mount)),
    }
    if publish.mode == AccessMode::SingleNodeSingleWriter {
        only_one(table, identity, not_targets)?;
    }
    match (publish.kind, kernel.path_kind(&target)?) {
        (Kind::Filesystem, None | Some(PathKind::Directory)) => kernel.create_target_dir(&target)?,
        (Kind::Raw, None | Some(PathKind::File)) => kernel.create_target_file(&target)?,
        (_, Some(found)) => return Err(wrong_kind(&target, found)),
    }
    Ok(kernel.bind(source, &target, publish.read_only)?)
}

/// SINGLE_NODE_SINGLE_WRITER, ReadWriteOncePod: one target at a time.
fn only_one(table: &MountTable, identity: &Identity, not_targets: &[&Path]) -> Result<(), NodeError> {
    let elsewhere: Vec<_> = table
        .mounts()
        .iter()
        .filter(|mount| {
            identity.kind_of(mount).is_some() && !not_targets.contains(&mount.mount_point.as_path())
        })
        .collect();
    match elsewhere.is_empty() {
        true => Ok(()),
        false => Err(NodeError::Precondition(format!(
            "its access mode allows one pod, and it is published at {}; unpublish it there first",
            list(elsewhere)
        ))),
    }
}

/// Unmounts a target and removes it. Where the device is known, nothing else is unmounted; where the volume is
/// gone, whatever is there: the path is the orchestrator's, and it says that it is done with it.
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
    NodeError::Precondition(format!("it is not staged at {}; stage it first", staging.display()))
}

fn wrong_kind(target: &Path, found: PathKind) -> NodeError {
    NodeError::Precondition(format!(
        "{} is a {found:?}, which no mount target of ours is; it was left alone",
        target.display()
    ))
}
