//! A new UUID for a copy of a file system, so that it can be mounted beside what it was copied from.
//!
//! Each way ends with a probe that must find the new UUID, and begins with one that may find it already, so
//! an interrupted run is simply done again.

use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use super::Linux;
use super::filesystems::{e2fsck, into_error, judge_e2fsck, sync, text};
use crate::command::Command;
use crate::probe::BtrfsSuper;
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
        FsType::Btrfs => set_btrfs(kernel, device, uuid, scratch)?,
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
            let unfinished = fs == FsType::Btrfs && read_btrfs(kernel, device)?.is_changing_uuid();
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

fn set_btrfs(kernel: &Linux, device: &Path, uuid: &str, scratch: &Path) -> Result<()> {
    if read_btrfs(kernel, device)?.has_log() {
        replay(kernel, device, "btrfs", &[], scratch)?;
    }
    let found = read_btrfs(kernel, device)?;
    if found.can_change_uuid() {
        let bytes = parse(uuid).ok_or_else(|| Error::State {
            path: device.to_owned(),
            reason: format!("cannot have the UUID {uuid:?}: it is not one"),
        })?;
        // The original comes last: until it is written, a retry begins from the start.
        let places = BtrfsSuper::copies(kernel.device_size(device)?).chain([BtrfsSuper::OFFSET]);
        write_blocks(device, places.map(|offset| (offset, found.with_uuid(bytes, offset))))?;
    } else {
        Command::new("btrfstune", device, DEADLINE).args(["-f", "-M", uuid, text(device)?]).run()?;
    }
    forget(device)
}

fn read_btrfs(kernel: &Linux, device: &Path) -> Result<BtrfsSuper> {
    let mut block = vec![0; BtrfsSuper::LENGTH];
    kernel.read_device(device, BtrfsSuper::OFFSET, &mut block)?;
    Ok(BtrfsSuper::new(block))
}

/// Writes blocks in their order, each durable before the next. Claims the device meanwhile, so a mounted one
/// is refused.
fn write_blocks(device: &Path, blocks: impl Iterator<Item = (u64, Vec<u8>)>) -> Result<()> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_EXCL)
        .open(device)
        .map_err(|error| Error::call("open", device, error))?;
    for (offset, block) in blocks {
        file.write_all_at(&block, offset).map_err(|error| Error::call("write", device, error))?;
        file.sync_all().map_err(|error| Error::call("fsync", device, error))?;
    }
    Ok(())
}

fn parse(uuid: &str) -> Option<[u8; 16]> {
    let hex: Vec<u8> = uuid.bytes().filter(|byte| *byte != b'-').collect();
    let mut bytes = [0; 16];
    if hex.len() != 32 || uuid.len() != 36 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Makes the kernel's list of btrfs devices forget this one under its old UUID, so that a mount of the
/// original cannot meet the copy. That it never knew it is no failure.
fn forget(device: &Path) -> Result<()> {
    Command::new("btrfs", device, DEADLINE)
        .args(["device", "scan", "--forget", text(device)?])
        .finish()
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_parsed_or_refused() {
        let bytes = parse("00010203-0405-0607-0809-0a0b0c0d0eFF").unwrap();
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        for bad in
            ["", "00010203-0405-0607-0809-0a0b0c0d0e", "00010203-0405-0607-0809-0a0b0c0d0e0g", "--", "é"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
