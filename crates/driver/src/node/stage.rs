//! Stage and unstage of block volumes: attach, verify, prepare, check, mount, grow (`grow.rs`); and unmount, detach.
//!
//! Guarantees: a repeated call, also after a crash between any two steps, ends in the same state, since each step first
//! reads the mount table and the backend's record. Nothing is checked, formatted or detached while the device is in use. A
//! failed stage leaves attached only what was attached before, and unmounts nothing that was mounted before. A mount whose
//! device no longer exists does not block a stage.

use std::path::{Path, PathBuf};

use wharf_linux::{Kernel, MountRequest, MountTable, PathKind};

use super::block::{Block, FsRequest, scratch_dir};
use super::error::NodeError;
use super::fs_size::can_grow;
use super::mounts::{
    DeviceNode, ExpectedMount, MountIdentity, TargetState, VolumeMode, describe, is_orphaned, mount_points,
    same_filesystem,
};
use crate::backend::{Device, DeviceError, FormatState, NodeVolume, RefreshDevice};

/// The driver never creates more mounts than this at one path.
const MAX_STACKED: usize = 8;

impl Block {
    /// Stages the volume at its staging path; a volume that is already staged is success.
    pub(crate) async fn stage(&self, volume: NodeVolume, staging: PathBuf) -> Result<(), NodeError> {
        let request = FsRequest::from_volume(&volume)?;
        // Also if another driver staged it and left no record: pods may be using it.
        let was_attached = self.find_attached_at(&volume.id, &staging).await?.is_some();
        let was_mounted = self.is_mounted(&staging).await?;
        let outcome = match request {
            Some(request) => self.stage_filesystem(&volume, &staging, request).await,
            None => self.stage_raw(&volume, &staging).await,
        };
        if outcome.is_err() && !was_attached {
            // After a final error an orchestrator may never call unstage.
            if let Err(error) = self.roll_back(&volume.id, &staging, was_mounted).await {
                tracing::warn!(volume_handle = volume.id, %error, "failed to roll back failed stage");
            }
        }
        outcome
    }

    async fn is_mounted(&self, staging: &Path) -> Result<bool, NodeError> {
        let staging = staging.to_owned();
        let steps = move |kernel: &dyn Kernel| {
            let staging = kernel.resolve(&staging)?;
            Ok(kernel.mount_table()?.at(&staging).is_some())
        };
        self.kernel.run(steps).await
    }

    /// Unstages the volume at its staging path; a volume that is not staged is success.
    pub(crate) async fn unstage(&self, id: &str, staging: PathBuf) -> Result<(), NodeError> {
        let device = self.find_attached_at(id, &staging).await?;
        self.kernel.run(move |kernel| clear_staging(kernel, &staging, device.as_ref())).await?;
        self.detach(id).await
    }

    async fn stage_filesystem(
        &self,
        volume: &NodeVolume,
        staging: &Path,
        mut request: FsRequest,
    ) -> Result<(), NodeError> {
        let device = self.attach_verified(volume, staging).await?;
        request.read_only |= device.read_only;
        let (path, seen, wanted) = (staging.to_owned(), device.clone(), request.clone());
        if self.kernel.run(move |kernel| already_staged(kernel, &path, &seen, &wanted)).await? {
            return Ok(());
        }
        let prepared = self.prepare(volume, &device, &request, &scratch_dir(staging)).await?;
        self.mount(&volume.id, &device, prepared, staging, &request).await
    }

    /// A raw volume needs its device, and a record that its content belongs to the user from now on.
    async fn stage_raw(&self, volume: &NodeVolume, staging: &Path) -> Result<(), NodeError> {
        let device = self.attach_verified(volume, staging).await?;
        let (path, seen) = (staging.to_owned(), device.clone());
        self.kernel.run(move |kernel| check_not_mounted(kernel, &path, &seen)).await?;
        let Some(records) = self.devices.format_records().filter(|_| !device.read_only) else {
            return Ok(());
        };
        if records.is_growing_offline(&volume.id).await? {
            // From now on damage can also come from the user's writes, so it is never repaired.
            records.set_growing_offline(&volume.id, false).await?;
        }
        match records.format(&volume.id).await? {
            // With either record a later stage could format what the user has written since.
            Some(FormatState::Blank | FormatState::Formatting { .. }) => {
                Ok(records.set_format(&volume.id, &FormatState::Raw).await?)
            }
            // With these records a volume is mounted only if its content matches the record.
            Some(FormatState::Formatted { .. } | FormatState::Copied { .. } | FormatState::Raw) => Ok(()),
            // Without a record a volume is formatted only if it reads as zeroes.
            None => Ok(()),
        }
    }

    /// Attaches the volume's device and verifies that it has the size in the backend's records.
    async fn attach_verified(&self, volume: &NodeVolume, staging: &Path) -> Result<Device, NodeError> {
        let mut device = self.devices.attach(volume).await?;
        let mut size = self.size_of(&device).await?;
        if size != device.size {
            // It may have been attached before the volume was expanded.
            let refresh = RefreshDevice::new(volume.id.clone(), device.size)
                .staging_path(staging.to_owned())
                .capability(volume.capability.clone())
                .secrets(volume.secrets.clone());
            device = self.devices.refresh(&refresh).await?;
            size = self.size_of(&device).await?;
        }
        if size != device.size {
            return Err(NodeError::Precondition(format!(
                "{} has {size} bytes, but the volume has {}: the device does not match the volume; nothing was \
                 written to it, check the storage behind it",
                device.path.display(),
                device.size
            )));
        }
        Ok(device)
    }

    pub(super) async fn size_of(&self, device: &Device) -> Result<u64, NodeError> {
        let path = device.path.clone();
        self.kernel.run(move |kernel| Ok(kernel.device_size(&path)?)).await
    }

    /// Mounts from before this stage are not unmounted, and their device stays attached.
    async fn roll_back(&self, id: &str, staging: &Path, was_mounted: bool) -> Result<(), NodeError> {
        if let Some(device) = self.find_attached(id).await? {
            let staging = staging.to_owned();
            let steps = move |kernel: &dyn Kernel| match was_mounted {
                true => is_mounted_nowhere(kernel, &device),
                false => unmount_own(kernel, &staging, &device).map(|()| true),
            };
            if !self.kernel.run(steps).await? {
                return Ok(());
            }
        }
        self.detach(id).await
    }

    async fn detach(&self, id: &str) -> Result<(), NodeError> {
        match self.devices.detach(id).await {
            Err(DeviceError::NotFound(_)) => Ok(()),
            result => Ok(result?),
        }
    }
}

/// Whether the volume is staged as requested; an error if something else is mounted at the staging path.
fn already_staged(
    kernel: &dyn Kernel,
    staging: &Path,
    device: &Device,
    request: &FsRequest,
) -> Result<bool, NodeError> {
    let staging = kernel.resolve(staging)?;
    remove_orphaned_mounts(kernel, &staging)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    if staged_at(&table, &staging, &node, &request.expected_mount())? {
        // A crash may have happened between mounting and growing.
        let fs = table.at(&staging).and_then(|mount| mount.fs_type.parse().ok());
        if let Some(fs) = fs.filter(|fs| kernel.can_grow_online(*fs).is_ok() && !request.read_only)
            && can_grow(kernel, &device.path, fs)?
        {
            kernel.grow_fs(&device.path, fs, Some(&staging))?;
        }
        return Ok(true);
    }
    let scratch = scratch_dir(&staging);
    let elsewhere: Vec<_> = node.mounts_in(&table).filter(|mount| mount.mount_point != scratch).collect();
    if !elsewhere.is_empty() {
        return Err(NodeError::Precondition(format!(
            "the volume is in use at {}; unpublish and unstage it there first",
            mount_points(elsewhere)
        )));
    }
    clear_scratch(kernel, &staging)?;
    Ok(false)
}

/// A raw volume must not be mounted anywhere: two uncoordinated writers would corrupt it.
fn check_not_mounted(kernel: &dyn Kernel, staging: &Path, device: &Device) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    remove_orphaned_mounts(kernel, &staging)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    staged_at(
        &table,
        &staging,
        &node,
        &ExpectedMount { mode: VolumeMode::Block, fs: None, read_only: false },
    )?;
    let mounted: Vec<_> =
        node.mounts_in(&table).filter(|mount| node.mode_of(mount) == Some(VolumeMode::Filesystem)).collect();
    match mounted.is_empty() {
        true => Ok(()),
        false => Err(NodeError::Precondition(format!(
            "the volume is mounted as a file system at {}; unpublish and unstage it there first",
            mount_points(mounted)
        ))),
    }
}

fn staged_at(
    table: &MountTable,
    staging: &Path,
    node: &DeviceNode,
    wanted: &ExpectedMount,
) -> Result<bool, NodeError> {
    match MountIdentity::Device(node.clone()).at(table, staging, wanted) {
        TargetState::NotMounted => Ok(false),
        TargetState::Matches => Ok(true),
        TargetState::Incompatible(reason) => Err(NodeError::Incompatible(format!(
            "the volume is already staged at {}: {reason}",
            staging.display()
        ))),
        TargetState::Foreign(mount) => Err(foreign_mount(staging, mount)),
    }
}

/// Mounts the device, and checks that it is what the path shows now: a success without a mount would let a pod write to the
/// directory below.
pub(super) fn mount_verified(
    kernel: &dyn Kernel,
    device: &Device,
    request: &MountRequest<'_>,
) -> Result<(), NodeError> {
    kernel.mount(request)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    match table.at(request.target).and_then(|mount| node.mode_of(mount)) {
        Some(VolumeMode::Filesystem) => Ok(()),
        _ => Err(not_visible(request.target)),
    }
}

/// The mount succeeded, but another one covers it or has replaced it.
pub(super) fn not_visible(path: &Path) -> NodeError {
    NodeError::Precondition(format!(
        "{} does not show the volume after it was mounted there: check for other programs that mount at this path",
        path.display()
    ))
}

/// Unmounts the staging path. If the device is known, only its mounts are unmounted. If the volume no longer exists,
/// everything at the path is unmounted: the path belongs to the orchestrator, which has finished with it.
fn clear_staging(kernel: &dyn Kernel, staging: &Path, device: Option<&Device>) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let node = device.map(|device| DeviceNode::of(kernel, device)).transpose()?;
    let table = kernel.mount_table()?;
    let scratch = scratch_dir(&staging);
    let elsewhere: Vec<_> = match &node {
        Some(node) => node.mounts_in(&table).collect(),
        None => same_filesystem(&table, &staging),
    };
    let ours = [staging.as_path(), scratch.as_path()];
    let elsewhere: Vec<_> =
        elsewhere.into_iter().filter(|mount| !ours.contains(&mount.mount_point.as_path())).collect();
    if !elsewhere.is_empty() {
        return Err(NodeError::Precondition(format!(
            "the volume is still published at {}; unpublish it there first",
            mount_points(elsewhere)
        )));
    }
    unmount_all(kernel, &staging, node.as_ref())?;
    clear_scratch(kernel, &staging)
}

/// Unmounts mounts at a path of the orchestrator whose device no longer exists. No data can be lost by this, and the volume,
/// which was attached again as another device, must be mounted there.
pub(super) fn remove_orphaned_mounts(kernel: &dyn Kernel, path: &Path) -> Result<(), NodeError> {
    for _ in 0..MAX_STACKED {
        let table = kernel.mount_table()?;
        let Some(mount) = table.at(path) else { return Ok(()) };
        if !is_orphaned(mount, |number| kernel.device_exists(number))? {
            return Ok(());
        }
        tracing::warn!(path = %path.display(), mount = describe(mount), "unmounting a mount whose device is gone");
        kernel.unmount(path)?;
    }
    Ok(())
}

/// Unmounts everything at a path, topmost first. If the device is known, only its mounts and those of devices that no longer
/// exist.
pub(super) fn unmount_all(
    kernel: &dyn Kernel,
    path: &Path,
    node: Option<&DeviceNode>,
) -> Result<(), NodeError> {
    for _ in 0..MAX_STACKED {
        let table = kernel.mount_table()?;
        let Some(mount) = table.at(path) else { return Ok(()) };
        if node.is_some_and(|node| node.mode_of(mount).is_none())
            && !is_orphaned(mount, |number| kernel.device_exists(number))?
        {
            return Err(foreign_mount(path, mount));
        }
        kernel.unmount(path)?;
    }
    Err(NodeError::Precondition(format!(
        "more than {MAX_STACKED} mounts are stacked at {}; unmount them manually",
        path.display()
    )))
}

fn is_mounted_nowhere(kernel: &dyn Kernel, device: &Device) -> Result<bool, NodeError> {
    let node = DeviceNode::of(kernel, device)?;
    let table = kernel.mount_table()?;
    Ok(node.mounts_in(&table).next().is_none())
}

fn unmount_own(kernel: &dyn Kernel, staging: &Path, device: &Device) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let node = DeviceNode::of(kernel, device)?;
    if kernel.mount_table()?.at(&staging).is_some_and(|mount| node.mode_of(mount).is_some()) {
        kernel.unmount(&staging)?;
    }
    match kernel.mount_table()?.at(&staging) {
        // The scratch directory would be looked up in a foreign file system.
        Some(_) => Ok(()),
        None => clear_scratch(kernel, &staging),
    }
}

/// Removes the leftovers of an interrupted UUID change. Only while nothing is mounted at `staging`.
fn clear_scratch(kernel: &dyn Kernel, staging: &Path) -> Result<(), NodeError> {
    let scratch = scratch_dir(staging);
    unmount_all(kernel, &scratch, None)?;
    if kernel.path_kind(&scratch)? == Some(PathKind::Directory) {
        kernel.remove_target(&scratch)?;
    }
    Ok(())
}

pub(super) fn foreign_mount(path: &Path, mount: &wharf_linux::Mount) -> NodeError {
    NodeError::Precondition(format!(
        "another file system is mounted at {}: {}; it was not changed, unmount it first",
        path.display(),
        describe(mount)
    ))
}
