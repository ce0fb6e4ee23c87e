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
use crate::backend::{MountAccess, MountSource, NodeVolume, Shares, VolumeAccess};

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
        let group = ExpectedGroup::of(&source, access)?;
        source.options.extend(access.flags.iter().cloned());
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
        let source = self.shares.source(&volume).await?;
        let group = ExpectedGroup::of(&source, access)?;
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
    group: Option<ExpectedGroup>,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(staging)?;
    let table = kernel.mount_table()?;
    match MountIdentity::of_share(source, &table)?.at(&table, &staging, &wanted(read_only)) {
        TargetState::NotMounted => {}
        TargetState::Matches => {
            let other = table.at(&staging).zip(group).and_then(|(mount, group)| group.refuses(mount));
            return other.map_or(Ok(()), |reason| Err(NodeError::Incompatible(reason)));
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
    group: Option<ExpectedGroup>,
) -> Result<(), NodeError> {
    let staging = kernel.resolve(&publish.staging)?;
    let table = kernel.mount_table()?;
    let staged = staged(&table, source, &staging)?;
    if let Some(reason) = group.and_then(|group| group.refuses(staged)) {
        return Err(NodeError::Precondition(reason));
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

/// The group that the mount of a request must belong to. Two pods on one node share the mount at the staging path, so they
/// cannot have different groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExpectedGroup {
    group: u32,
    /// The backend sets the group with `gid=`, so the mount must show it. Otherwise a mount may show none: the backend
    /// applies the mount group in another way.
    shown: bool,
}

impl ExpectedGroup {
    /// `None` if a mount of any group will do: the request has no group, or the user chose one with a mount option.
    fn of(source: &MountSource, access: &MountAccess) -> Result<Option<Self>, NodeError> {
        if gid(&access.flags).is_some() {
            return match access.mount_group {
                None => Ok(None),
                Some(group) => Err(NodeError::Invalid(format!(
                    "mount_flags must not have gid= together with volume_mount_group {group}"
                ))),
            };
        }
        let set = gid(&source.options).and_then(|group| group.parse().ok());
        let set = set.map(|group| Self { group, shown: true });
        Ok(set.or_else(|| access.mount_group.map(|group| Self { group, shown: false })))
    }

    /// Why the staged mount cannot be used for this group.
    fn refuses(self, mount: &Mount) -> Option<String> {
        let group = self.group.to_string();
        let found = match gid(&mount.super_options) {
            Some(found) => found,
            None if !self.shown => return None,
            // tmpfs shows every group but 0. Other file systems may ignore the option, so no group is assumed for them.
            None if mount.fs_type == "tmpfs" => "0",
            None => "none",
        };
        (found != group).then(|| {
            format!("the volume is staged for group {found}, not for {group}: use the same fsGroup in all pods on this node")
        })
    }
}

/// The value of the last `gid=`, which is the one that applies.
fn gid(options: &[String]) -> Option<&str> {
    options
        .iter()
        .flat_map(|options| options.split(','))
        .filter_map(|option| option.strip_prefix("gid="))
        .next_back()
}

fn wanted(read_only: bool) -> ExpectedMount {
    ExpectedMount { mode: VolumeMode::Filesystem, fs: None, read_only }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_of_another_group_is_refused() {
        const TABLE: &str = "\
35 20 0:60 / /grouped rw - tmpfs a rw,size=1024k,gid=1000
36 20 0:61 / /root rw - tmpfs b rw,size=1024k
37 20 0:62 / /plain rw - nfs4 server:/export rw
";
        let table = MountTable::parse(TABLE.as_bytes()).unwrap();
        // The options of the source, the mount group, and whether the mount is refused.
        for (path, options, mount_group, found) in [
            ("/grouped", "", None, None),
            ("/grouped", "", Some(1000), None),
            ("/grouped", "", Some(7), Some("1000")),
            ("/grouped", "gid=1000", Some(1000), None),
            ("/grouped", "gid=7,gid=1000", Some(7), None),
            ("/grouped", "gid=7", Some(7), Some("1000")),
            ("/grouped", "gid=0", Some(0), Some("1000")),
            ("/root", "gid=0", Some(0), None),
            ("/root", "gid=7", Some(7), Some("0")),
            ("/plain", "", Some(7), None),
            ("/plain", "gid=7", Some(7), Some("none")),
            ("/plain", "gid=0", Some(0), Some("none")),
        ] {
            let options = vec![options.to_owned()];
            let source = MountSource { source: String::new(), fs_type: String::new(), options };
            let group = ExpectedGroup::of(&source, &MountAccess::new("").mount_group(mount_group)).unwrap();
            let refused = group.and_then(|group| group.refuses(table.at(Path::new(path)).unwrap()));
            let expected = found.map(|found| format!("for group {found},"));
            let matches = match (&refused, &expected) {
                (Some(refused), Some(expected)) => refused.contains(expected),
                (refused, expected) => refused.is_none() && expected.is_none(),
            };
            assert!(matches, "{path} {source:?} {mount_group:?}: {refused:?}");
        }
    }

    #[test]
    fn mount_option_for_a_group_excludes_a_mount_group() {
        let source =
            MountSource { source: String::new(), fs_type: String::new(), options: vec!["gid=1".into()] };
        for (flag, mount_group, valid) in [
            ("gid=5", None, true),
            ("gid=5", Some(5), false),
            ("uid=1,gid=5", Some(5), false),
            ("uid=1", Some(5), true),
        ] {
            let access = MountAccess::new("").flags([flag]).mount_group(mount_group);
            assert_eq!(ExpectedGroup::of(&source, &access).is_ok(), valid, "{access:?}");
        }
    }
}
