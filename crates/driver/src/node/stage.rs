//! Stage and unstage of block volumes: attach, prove, prepare, check, mount, grow; and unmount, detach.
//!
//! What this promises: the same call again, also after a crash between any two steps, ends in the same state,
//! since each step first looks at the mount table and the backend's record. Nothing is checked, formatted or
//! detached while the device is in use. A stage that fails leaves nothing attached that was not before, and
//! everything mounted that was. A mount whose device is gone is in nobody's way.

use std::path::{Path, PathBuf};

use wharf_linux::{FsType, Kernel, MountRequest, MountTable, PathKind};

use super::block::{Block, FsRequest, scratch_of};
use super::error::NodeError;
use super::fs_size::can_grow;
use super::mounts::{At, DeviceNode, Identity, Kind, Wanted, describe, is_lost, list, same_filesystem};
use super::prepare::Prepared;
use crate::backend::{Device, DeviceError, Format, StageVolume};

/// More mounts than this at one path are nothing we made.
const MAX_STACKED: usize = 8;

/// Lets xfs mount a file system beside another one with the same UUID.
const NO_UUID: &str = "nouuid";

impl Block {
    /// Makes the volume ready at its staging path; ready already is success.
    pub(crate) async fn stage(&self, volume: StageVolume, staging: PathBuf) -> Result<(), NodeError> {
        let request = FsRequest::of(&volume)?;
        // Also as another driver staged it, of which there is no note: pods may run on it.
        let was_attached = self.attached_at(&volume.id, &staging).await?.is_some();
        let was_mounted = self.is_mounted(&staging).await?;
        let outcome = match request {
            Some(request) => self.stage_filesystem(&volume, &staging, request).await,
            None => self.stage_raw(&volume, &staging).await,
        };
        if outcome.is_err() && !was_attached {
            // After a final error an orchestrator may never ask for an unstage.
            if let Err(error) = self.undo(&volume.id, &staging, was_mounted).await {
                tracing::warn!(volume = volume.id, %error, "what a failed stage left could not be undone");
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
        self.machine.run(steps).await
    }

    /// Lets go of the volume at its staging path; not staged is success.
    pub(crate) async fn unstage(&self, id: &str, staging: PathBuf) -> Result<(), NodeError> {
        let device = self.attached_at(id, &staging).await?;
        self.machine.run(move |kernel| clear_staging(kernel, &staging, device.as_ref())).await?;
        self.detach(id).await
    }

    async fn stage_filesystem(
        &self,
        volume: &StageVolume,
        staging: &Path,
        mut request: FsRequest,
    ) -> Result<(), NodeError> {
        let device = self.proven(volume).await?;
        request.read_only |= device.read_only;
        let (path, seen, wanted) = (staging.to_owned(), device.clone(), request.clone());
        if self.machine.run(move |kernel| already_staged(kernel, &path, &seen, &wanted)).await? {
            return Ok(());
        }
        let prepared = self.prepare(volume, &device, &request, &scratch_of(staging)).await?;
        let staging = staging.to_owned();
        self.machine.run(move |kernel| mount(kernel, &device, prepared, &staging, &request)).await
    }

    /// A raw volume needs its device, and a record that says that its bytes are the user's from now on.
    async fn stage_raw(&self, volume: &StageVolume, staging: &Path) -> Result<(), NodeError> {
        let device = self.proven(volume).await?;
        let (path, seen) = (staging.to_owned(), device.clone());
        self.machine.run(move |kernel| not_mounted(kernel, &path, &seen)).await?;
        let Some(records) = self.devices.records().filter(|_| !device.read_only) else { return Ok(()) };
        match records.format(&volume.id).await? {
            // Either would let a later stage format what the user has written meanwhile.
            Some(Format::Blank | Format::Formatting { .. }) => {
                Ok(records.set_format(&volume.id, &Format::Raw).await?)
            }
            // These are mounted only if what is found is what they say.
            Some(Format::Formatted { .. } | Format::Copied { .. } | Format::Raw) => Ok(()),
            // And what is not recorded only if it reads as zeroes.
            None => Ok(()),
        }
    }

    /// The volume's device, attached, and of the size that the backend says.
    async fn proven(&self, volume: &StageVolume) -> Result<Device, NodeError> {
        let mut device = self.devices.attach(volume).await?;
        let mut size = self.size_of(&device).await?;
        if size != device.size {
            // It may have been attached before the volume was expanded.
            device = self.devices.refresh(&volume.id, device.size).await?;
            size = self.size_of(&device).await?;
        }
        if size != device.size {
            return Err(NodeError::Precondition(format!(
                "{} has {size} bytes, and the volume has {}: this is not the volume's device as it should \
                 be; nothing was written to it, see what became of the storage behind it",
                device.path.display(),
                device.size
            )));
        }
        Ok(device)
    }

    pub(super) async fn size_of(&self, device: &Device) -> Result<u64, NodeError> {
        let path = device.path.clone();
        self.machine.run(move |kernel| Ok(kernel.device_size(&path)?)).await
    }

    /// What was mounted before this stage is not this stage's to unmount, and its device stays attached.
    async fn undo(&self, id: &str, staging: &Path, was_mounted: bool) -> Result<(), NodeError> {
        if let Some(device) = self.attached(id).await? {
            let staging = staging.to_owned();
            let steps = move |kernel: &dyn Kernel| match was_mounted {
                true => is_mounted_nowhere(kernel, &device),
                false => unmount_ours(kernel, &staging, &device).map(|()| true),
            };
            if !self.machine.run(steps).await? {
                return Ok(());
            }
        }
        self.detach(id).await
    }

    async fn detach(&self, id: &str) -> Result<(), NodeError> {
        match self.devices.detach(id).await {
            Err(DeviceError::NotFound(_)) => Ok(()),
            answer => Ok(answer?),
        }
    }
}

/// Whether the volume is at its staging path as it should be; an error if something else is in the way.
fn already_staged(
    kernel: &dyn Kernel,
    staging: &Path,
    device: &Device,
    request: &FsRequest,
) -> Result<bool, NodeError> {
    let staging = kernel.resolve(staging)?;
    clear_lost(kernel, &staging)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    if staged_at(&table, &staging, &node, &request.wanted())? {
        // A crash may have come between the mount and the growth.
        let fs = table.at(&staging).and_then(|mount| mount.fs_type.parse().ok());
        if let Some(fs) = fs.filter(|fs| *fs != FsType::Ext4 && !request.read_only)
            && can_grow(kernel, &device.path, fs)?
        {
            kernel.grow_fs(&device.path, fs, Some(&staging))?;
        }
        return Ok(true);
    }
    let scratch = scratch_of(&staging);
    let elsewhere: Vec<_> = node.uses(&table).filter(|mount| mount.mount_point != scratch).collect();
    if !elsewhere.is_empty() {
        return Err(NodeError::Precondition(format!(
            "it is in use at {}; unpublish and unstage it there first",
            list(elsewhere)
        )));
    }
    clear_scratch(kernel, &staging)?;
    Ok(false)
}

/// A raw volume must not be mounted anywhere: two writers would know nothing of each other.
fn not_mounted(kernel: &dyn Kernel, staging: &Path, device: &Device) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    clear_lost(kernel, &staging)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    staged_at(&table, &staging, &node, &Wanted { kind: Kind::Raw, fs: None, read_only: false })?;
    let mounted: Vec<_> =
        node.uses(&table).filter(|mount| node.kind_of(mount) == Some(Kind::Filesystem)).collect();
    match mounted.is_empty() {
        true => Ok(()),
        false => Err(NodeError::Precondition(format!(
            "it is mounted as a file system at {}; unpublish and unstage it there first",
            list(mounted)
        ))),
    }
}

fn staged_at(
    table: &MountTable,
    staging: &Path,
    node: &DeviceNode,
    wanted: &Wanted,
) -> Result<bool, NodeError> {
    match Identity::Device(node.clone()).at(table, staging, wanted) {
        At::Nothing => Ok(false),
        At::Same => Ok(true),
        At::Incompatible(why) => {
            Err(NodeError::Incompatible(format!("it is staged at {} already: {why}", staging.display())))
        }
        At::Foreign(mount) => Err(in_the_way(staging, mount)),
    }
}

/// Checks the file system, mounts it, and lets it have all of its device. ext4 grows before the mount, which
/// works everywhere; the others can only grow mounted.
fn mount(
    kernel: &dyn Kernel,
    device: &Device,
    Prepared { fs, own_uuid }: Prepared,
    staging: &Path,
    request: &FsRequest,
) -> Result<(), NodeError> {
    if !device.read_only {
        kernel.check_fs(&device.path, fs)?;
    }
    let grows = !request.read_only && can_grow(kernel, &device.path, fs)?;
    if grows && fs == FsType::Ext4 {
        kernel.grow_fs(&device.path, fs, None)?;
    }
    kernel.create_target_dir(staging)?;
    let staging = kernel.resolve(staging)?;
    let source = device.path.to_string_lossy();
    let mut options = request.flags.clone();
    if fs == FsType::Xfs && !own_uuid && !options.iter().any(|option| option == NO_UUID) {
        options.push(NO_UUID.to_owned());
    }
    kernel.mount(&MountRequest {
        source: &source,
        target: &staging,
        fs_type: fs.as_str(),
        options: &options,
        read_only: request.read_only,
    })?;
    if grows && fs != FsType::Ext4 {
        kernel.grow_fs(&device.path, fs, Some(&staging))?;
    }
    Ok(())
}

/// Unmounts what is at the staging path. Where the device is known, only what is of it; where the volume is
/// gone, whatever is there: the path is the orchestrator's, and it says that it is done with it.
fn clear_staging(kernel: &dyn Kernel, staging: &Path, device: Option<&Device>) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let node = device.map(|device| DeviceNode::of(kernel, device)).transpose()?;
    let table = kernel.mount_table()?;
    let scratch = scratch_of(&staging);
    let elsewhere: Vec<_> = match &node {
        Some(node) => node.uses(&table).collect(),
        None => same_filesystem(&table, &staging),
    };
    let ours = [staging.as_path(), scratch.as_path()];
    let elsewhere: Vec<_> =
        elsewhere.into_iter().filter(|mount| !ours.contains(&mount.mount_point.as_path())).collect();
    if !elsewhere.is_empty() {
        return Err(NodeError::Precondition(format!(
            "it is still published at {}; unpublish it there first",
            list(elsewhere)
        )));
    }
    unmount_all(kernel, &staging, node.as_ref())?;
    clear_scratch(kernel, &staging)
}

/// Unmounts what is at a path of the orchestrator's as long as its device is gone: nothing can be lost by that,
/// and the volume, which has come back as another device, has to go there.
pub(super) fn clear_lost(kernel: &dyn Kernel, path: &Path) -> Result<(), NodeError> {
    for _ in 0..MAX_STACKED {
        let table = kernel.mount_table()?;
        let Some(mount) = table.at(path) else { return Ok(()) };
        if !is_lost(mount, |number| kernel.device_exists(number))? {
            return Ok(());
        }
        tracing::warn!(path = %path.display(), mount = describe(mount), "a mount whose device is gone is removed");
        kernel.unmount(path)?;
    }
    Ok(())
}

/// Unmounts everything at a path, topmost first. Where the device is known, nothing but what is of it, or of a device
/// that is gone.
pub(super) fn unmount_all(
    kernel: &dyn Kernel,
    path: &Path,
    node: Option<&DeviceNode>,
) -> Result<(), NodeError> {
    for _ in 0..MAX_STACKED {
        let table = kernel.mount_table()?;
        let Some(mount) = table.at(path) else { return Ok(()) };
        if node.is_some_and(|node| node.kind_of(mount).is_none())
            && !is_lost(mount, |number| kernel.device_exists(number))?
        {
            return Err(in_the_way(path, mount));
        }
        kernel.unmount(path)?;
    }
    Err(NodeError::Precondition(format!(
        "more than {MAX_STACKED} mounts lie over each other at {}",
        path.display()
    )))
}

fn is_mounted_nowhere(kernel: &dyn Kernel, device: &Device) -> Result<bool, NodeError> {
    let node = DeviceNode::of(kernel, device)?;
    let table = kernel.mount_table()?;
    Ok(node.uses(&table).next().is_none())
}

fn unmount_ours(kernel: &dyn Kernel, staging: &Path, device: &Device) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let node = DeviceNode::of(kernel, device)?;
    if kernel.mount_table()?.at(&staging).is_some_and(|mount| node.kind_of(mount).is_some()) {
        kernel.unmount(&staging)?;
    }
    match kernel.mount_table()?.at(&staging) {
        // Our directory would be looked for in somebody else's file system.
        Some(_) => Ok(()),
        None => clear_scratch(kernel, &staging),
    }
}

/// Removes what a crash in the middle of a new UUID has left. Only while nothing is mounted at `staging`.
fn clear_scratch(kernel: &dyn Kernel, staging: &Path) -> Result<(), NodeError> {
    let scratch = scratch_of(staging);
    unmount_all(kernel, &scratch, None)?;
    if kernel.path_kind(&scratch)? == Some(PathKind::Directory) {
        kernel.remove_target(&scratch)?;
    }
    Ok(())
}

pub(super) fn in_the_way(path: &Path, mount: &wharf_linux::Mount) -> NodeError {
    NodeError::Precondition(format!(
        "something that is not this volume is mounted at {}: {}; it was left alone, unmount it first",
        path.display(),
        describe(mount)
    ))
}
