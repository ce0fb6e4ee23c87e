//! Shares on this node: a mount source of the backend's, mounted at the staging path and bound to pods.
//!
//! A share has no device by which its mounts could be told from others' once the request no longer says what
//! it is. So unstage and unpublish unmount what is at the path they are given: the path is the orchestrator's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::{Kernel, Mount, MountRequest, MountTable};

use super::error::NodeError;
use super::machine::Machine;
use super::mounts::{At, Identity, Kind, Wanted, is_read_only};
use super::publish::{Publish, bind, clear_target, not_staged};
use super::stage::{in_the_way, unmount_all};
use crate::backend::{MountSource, Shares, StageVolume, VolumeAccess};

/// The node half of a share backend.
#[derive(Clone)]
pub(crate) struct Share {
    pub(super) machine: Machine,
    pub(super) shares: Arc<dyn Shares>,
}

impl Share {
    /// Mounts the share at its staging path; mounted already is success.
    pub(crate) async fn stage(&self, volume: StageVolume, staging: PathBuf) -> Result<(), NodeError> {
        let VolumeAccess::Mount { flags, .. } = &volume.capability.access else { return Err(no_block()) };
        let mut source = self.shares.source(&volume).await?;
        source.options.extend(flags.iter().cloned());
        let read_only =
            volume.capability.mode.is_reader_only() || source.options.iter().any(|option| option == "ro");
        let lost = source.options.iter().any(|option| !matches!(option.as_str(), "ro" | "rw" | "bind"));
        if source.fs_type.is_empty() && lost {
            return Err(NodeError::Invalid(
                "mount_flags: this volume is a directory that is bound, which takes no option but ro".into(),
            ));
        }
        self.machine.run(move |kernel| mount(kernel, &source, &staging, read_only)).await
    }

    /// Unmounts what is at the staging path; nothing there is success.
    pub(crate) async fn unstage(&self, staging: PathBuf) -> Result<(), NodeError> {
        self.machine.run(move |kernel| unmount_all(kernel, &kernel.resolve(&staging)?, None)).await
    }

    /// Binds a staged share; bound already is success.
    pub(crate) async fn publish(&self, volume: StageVolume, publish: Publish) -> Result<(), NodeError> {
        if publish.kind == Kind::Raw {
            return Err(no_block());
        }
        let source = self.shares.source(&volume).await?;
        self.machine.run(move |kernel| publish_share(kernel, &source, &publish)).await
    }

    /// Removes the bind and its target; not there is success.
    pub(crate) async fn unpublish(&self, target: PathBuf) -> Result<(), NodeError> {
        self.machine.run(move |kernel| clear_target(kernel, &target, None)).await
    }
}

fn no_block() -> NodeError {
    NodeError::Invalid("volume_capability: a share cannot be used as a raw device, only mounted".into())
}

fn mount(
    kernel: &dyn Kernel,
    source: &MountSource,
    staging: &Path,
    read_only: bool,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let table = kernel.mount_table()?;
    match Identity::of_share(source, &table)?.at(&table, &staging, &wanted(read_only)) {
        At::Nothing => {}
        At::Same => return Ok(()),
        At::Incompatible(why) => {
            return Err(NodeError::Incompatible(format!(
                "it is staged at {} already: {why}",
                staging.display()
            )));
        }
        At::Foreign(mount) => return Err(in_the_way(&staging, mount)),
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

fn publish_share(kernel: &dyn Kernel, source: &MountSource, publish: &Publish) -> Result<(), NodeError> {
    let staging = kernel.resolve(&publish.staging)?;
    let table = kernel.mount_table()?;
    let staged = staged(&table, source, &staging)?;
    let read_only = publish.read_only || is_read_only(staged);
    // A bound directory may itself be where its file system is mounted: that is no pod's.
    let not_targets = [staging.as_path(), Path::new(&source.source)];
    let publish = Publish { read_only, fs: None, ..publish.clone() };
    bind(kernel, &table, &Identity::of_mount(staged), &staging, &not_targets, &publish)
}

fn staged<'a>(table: &'a MountTable, source: &MountSource, staging: &Path) -> Result<&'a Mount, NodeError> {
    let Some(mount) = table.at(staging) else { return Err(not_staged(staging)) };
    match Identity::of_share(source, table)?.kind_of(mount) {
        Some(_) => Ok(mount),
        None => Err(in_the_way(staging, mount)),
    }
}

fn wanted(read_only: bool) -> Wanted {
    Wanted { kind: Kind::Filesystem, fs: None, read_only }
}
