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
        let VolumeAccess::Mount(access) = &volume.capability.access else { return Err(no_block()) };
        let mut source = self.shares.source(&volume).await?;
        source.options.extend(access.flags.iter().cloned());
        let group = access.mount_group;
        let read_only =
            volume.capability.mode.is_reader_only() || source.options.iter().any(|option| option == "ro");
        let lost = source.options.iter().any(|option| !matches!(option.as_str(), "ro" | "rw" | "bind"));
        if source.fs_type.is_empty() && lost {
            return Err(NodeError::Invalid(
                "mount_flags: this volume is a bound directory, which supports no option but ro".into(),
            ));
        }
        self.kernel.run(move |kernel| mount(kernel, &source, &staging, read_only, group)).await
    }

    /// Unmounts everything at the staging path; not mounted is success.
    pub(crate) async fn unstage(&self, staging: PathBuf) -> Result<(), NodeError> {
        self.kernel.run(move |kernel| unmount_all(kernel, &kernel.resolve(&staging)?, None)).await
    }

    /// Binds a staged share; a share that is already bound is success.
    pub(crate) async fn publish(&self, volume: NodeVolume, publish: PublishRequest) -> Result<(), NodeError> {
        let VolumeAccess::Mount(access) = &volume.capability.access else { return Err(no_block()) };
        let group = access.mount_group;
        let source = self.shares.source(&volume).await?;
        self.kernel.run(move |kernel| publish_share(kernel, &source, &publish, group)).await
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
    group: Option<u32>,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let table = kernel.mount_table()?;
    match MountIdentity::of_share(source, &table)?.at(&table, &staging, &wanted(read_only)) {
        TargetState::NotMounted => {}
        TargetState::Matches => {
            let other = table.at(&staging).and_then(|mount| other_group(mount, group));
            return other.map_or(Ok(()), |other| Err(NodeError::Incompatible(staged_for(other, group))));
        }
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
    group: Option<u32>,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(&publish.staging)?;
    let table = kernel.mount_table()?;
    let staged = staged(&table, source, &staging)?;
    if let Some(other) = other_group(staged, group) {
        return Err(NodeError::Precondition(staged_for(other, group)));
    }
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

/// The group that a mount belongs to, if it shows one and another one is requested. Two pods on one node share the mount at
/// the staging path, so they cannot have different groups.
fn other_group(mount: &Mount, requested: Option<u32>) -> Option<u32> {
    let group = mount.super_options.iter().find_map(|option| option.strip_prefix("gid=")?.parse().ok())?;
    requested.filter(|requested| *requested != group).map(|_| group)
}

fn staged_for(other: u32, group: Option<u32>) -> String {
    format!(
        "the volume is staged for group {other}, not for {}: use the same fsGroup in all pods on this node",
        group.unwrap_or_default()
    )
}

fn wanted(read_only: bool) -> ExpectedMount {
    ExpectedMount { mode: VolumeMode::Filesystem, fs: None, read_only }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_of_another_group_is_found_by_its_gid_option() {
        const TABLE: &str = "\
35 20 0:60 / /grouped rw - tmpfs a rw,size=1024k,gid=1000
36 20 0:61 / /plain rw - nfs4 server:/export rw
";
        let table = MountTable::parse(TABLE.as_bytes()).unwrap();
        for (path, requested, other) in [
            ("/grouped", None, None),
            ("/grouped", Some(1000), None),
            ("/grouped", Some(7), Some(1000)),
            ("/plain", Some(7), None),
        ] {
            let mount = table.at(Path::new(path)).unwrap();
            assert_eq!(other_group(mount, requested), other, "{path} {requested:?}");
        }
    }
}
