//! A new UUID for a copy of a file system, so that it can be mounted beside what it was copied from.
//!
//! Each way ends with a probe that must find the new UUID, and begins with one that may find it already, so
//! an interrupted run is simply done again.

use std::path::Path;
use std::time::Duration;

use super::Linux;
use super::filesystems::{e2fsck, into_error, judge_e2fsck, sync, text};
use crate::command::Command;
use crate::probe::BtrfsState;
use crate::{Devices as _, Error, Filesystems as _, FsType, MountRequest, Mounts as _, Probe, Result};

/// Without a checksum seed of its own, ext4 rewrites all its metadata for a new UUID.
const DEADLINE: Duration = Duration::from_secs(1800);

pub(super) fn set(kernel: &Linux, device: &Path, fs: FsType, uuid: &str, scratch: &Path) -> Result<()> {
    // A run that was interrupted between its mount and its unmount.
    kernel.unmount(scratch)?;
    if has(kernel, device, fs, uuid)? {
        return Ok(());
    }
    match fs {
        FsType::Ext4 => {
            let ended = e2fsck(device, &["-f", "-p"])?;
            judge_e2fsck(device, ended).map_err(into_error)?;
            Command::new("tune2fs", device, DEADLINE).args(["-U", uuid, text(device)?]).run()?;
        }
        FsType::Xfs => {
            replay(kernel, device, "xfs", &["nouuid".to_owned()], scratch)?;
            // xfs_admin is a shell script around this, and would outlive us with its child.
            let command = format!("uuid {uuid}");
            Command::new("xfs_db", device, DEADLINE)
                .args(["-x", "-p", "xfs_admin", "-c", &command, text(device)?])
                .run()?;
        }
        FsType::Btrfs => {
            if btrfs_state(kernel, device)?.has_log {
                replay(kernel, device, "btrfs", &[], scratch)?;
            }
            // Only the superblock's UUID: the metadata keep theirs, whatever their number.
            Command::new("btrfstune", device, DEADLINE).args(["-f", "-M", uuid, text(device)?]).run()?;
            forget(device)?;
        }
    }
    sync(device)?;
    if has(kernel, device, fs, uuid)? {
        return Ok(());
    }
    let reason = format!("did not take the UUID {uuid}, although its program reported success");
    Err(Error::State { path: device.to_owned(), reason })
}

/// Whether the device has such a file system with this UUID; an error if it has no such file system at all.
fn has(kernel: &Linux, device: &Path, fs: FsType, uuid: &str) -> Result<bool> {
    match kernel.probe(device)? {
        Probe::Filesystem { fs: found, uuid: has } if found == fs => {
            // btrfstune may have died between the new UUID and the end of the change.
            let unfinished = fs == FsType::Btrfs && btrfs_state(kernel, device)?.changing_uuid;
            Ok(has == uuid && !unfinished)
        }
        other => {
            let reason = format!("has no {fs} to give a UUID to: {other:?}");
            Err(Error::State { path: device.to_owned(), reason })
        }
    }
}

/// Mounts and unmounts: the only way to have a log replayed that the programs refuse to touch.
fn replay(kernel: &Linux, device: &Path, fs_type: &str, options: &[String], scratch: &Path) -> Result<()> {
    kernel.mount(&MountRequest {
        source: text(device)?,
        target: scratch,
        fs_type,
        options,
        read_only: false,
    })?;
    kernel.unmount(scratch)
}

fn btrfs_state(kernel: &Linux, device: &Path) -> Result<BtrfsState> {
    let mut block = [0; BtrfsState::LENGTH];
    kernel.read_device(device, BtrfsState::OFFSET, &mut block)?;
    Ok(BtrfsState::of(&block))
}

/// Makes the kernel's list of btrfs devices forget this one under its old UUID, so that a mount of the
/// original cannot meet the copy. A device that it never knew is an error of the program, not of ours.
fn forget(device: &Path) -> Result<()> {
    Command::new("btrfs", device, DEADLINE)
        .args(["device", "scan", "--forget", text(device)?])
        .finish()
        .map(drop)
}
