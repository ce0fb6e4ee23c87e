//! Shares on this node: a mount source of the backend, mounted at the staging path and bind-mounted for pods.
//!
//! A share has no device that identifies its mounts, and unstage and unpublish requests do not contain its source. So these
//! calls unmount whatever is at the given path: the path belongs to the orchestrator.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::{Kernel, Mount, MountRequest, MountTable};

use super::blocking_kernel::BlockingKernel;
use super::error::NodeError;
use super::mounts::{ExpectedMount, MountIdentity, TargetState, VolumeMode, is_read_only};
use super::publish::{PublishRequest, bind, clear_target, not_staged};
use super::stage::{foreign_mount, unmount_all};
use crate::backend::{MountSource, NodeVolume, Shares, VolumeAccess};

/// The node part of a share backend.
#[derive(Clone)]
pub(crate) struct Share {
    pub(super) kernel: BlockingKernel,
    pub(super) shares: Arc<dyn Shares>,
}

impl Share {
    /// Mounts the share at its staging path; a share that is already mounted is success.
    pub(crate) async fn stage(&self, volume: NodeVolume, staging: PathBuf) -> Result<(), NodeError> {
        let VolumeAccess::Mount(mount_access) = &volume.capability.access else { return Err(no_block()) };
        let mut source = self.shares.source(&volume).await?;
        source.options.extend(mount_access.flags.iter().cloned());
        let read_only =
            volume.capability.mode.is_reader_only() || source.options.iter().any(|option| option == "ro");
        let lost = source.options.iter().any(|option| !matches!(option.as_str(), "ro" | "rw" | "bind"));
        if source.fs_type.is_empty() && lost {
            return Err(NodeError::Invalid(
                "mount_flags: this volume is a bound directory, which supports no option but ro".into(),
            ));
        }
        self.kernel.run(move |kernel| mount(kernel, &source, &staging, read_only)).await
    }

    /// Unmounts everything at the staging path; not mounted is success.
    pub(crate) async fn unstage(&self, staging: PathBuf) -> Result<(), NodeError> {
        self.kernel.run(move |kernel| unmount_all(kernel, &kernel.resolve(&staging)?, None)).await
    }

    /// Binds a staged share; a share that is already bound is success.
    pub(crate) async fn publish(&self, volume: NodeVolume, publish: PublishRequest) -> Result<(), NodeError> {
        if publish.volume_mode == VolumeMode::Block {
            return Err(no_block());
        }
        let source = self.shares.source(&volume).await?;
        self.kernel.run(move |kernel| publish_share(kernel, &source, &publish)).await
    }

    /// Removes the bind and its target; a missing target is success.
    pub(crate) async fn unpublish(&self, target: PathBuf) -> Result<(), NodeError> {
        self.kernel.run(move |kernel| clear_target(kernel, &target, None)).await
    }
}

fn no_block() -> NodeError {
    NodeError::Invalid("volume_capability: a share can only be mounted, not used as a raw device".into())
}

fn mount(
    kernel: &dyn Kernel,
    source: &MountSource,
    staging: &Path,
    read_only: bool,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let table = kernel.mount_table()?;
    match MountIdentity::of_share(source, &table)?.at(&table, &staging, &wanted(read_only)) {
        TargetState::NotMounted => {}
        TargetState::Matches => return Ok(()),
        TargetState::Incompatible(reason) => {
            return Err(NodeError::Incompatible(format!(
                "the volume is already staged at {}: {reason}",
                staging.display()
            )));
        }
        TargetState::Foreign(mount) => return Err(foreign_mount(&staging, mount)),
    }
    kernel.create_target_dir(&staging)?;
    match source.fs_type.is_empty() {
        true => kernel.bind(Path::new(&source.source), &staging, read_only)?,
        false => kernel.mount(&MountRequest {
            source: &source.source,
            target: &staging,
            fs_type: &source.fs_type,
            options: &source.options,
            read_only,
        })?,
    }
    Ok(())
}

fn publish_share(
    kernel: &dyn Kernel,
    source: &MountSource,
    publish: &PublishRequest,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(&publish.staging)?;
    let table = kernel.mount_table()?;
    let staged = staged(&table, source, &staging)?;
    let read_only = publish.read_only || is_read_only(staged);
    // The source of a bind can itself be a mount point: that is not a pod's target.
    let excluded = [staging.as_path(), Path::new(&source.source)];
    let publish = PublishRequest { read_only, fs: None, ..publish.clone() };
    bind(kernel, &table, &MountIdentity::of_mount(staged), &staging, &excluded, &publish)
}

fn staged<'a>(table: &'a MountTable, source: &MountSource, staging: &Path) -> Result<&'a Mount, NodeError> {
    let Some(mount) = table.at(staging) else { return Err(not_staged(staging)) };
    match MountIdentity::of_share(source, table)?.mode_of(mount) {
        Some(_) => Ok(mount),
        None => Err(foreign_mount(staging, mount)),
    }
}

fn wanted(read_only: bool) -> ExpectedMount {
    ExpectedMount { mode: VolumeMode::Filesystem, fs: None, read_only }
}
