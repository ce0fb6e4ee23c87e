//! A new UUID for a copy of a file system, so that it can be mounted beside what it was copied from.
//!
//! Begins with a probe that may find it done already, ends with one that must. Whatever interrupts it between,
//! even the power, a second run completes it.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use super::Linux;
use super::devices::Reader;
use super::filesystems::{e2fsck, into_error, judge_e2fsck, sync, text};
use crate::bytes::le32;
use crate::command::Command;
use crate::new_uuid::{BtrfsSuper, LogRecord, XfsSuper};
use crate::{Devices as _, Error, Filesystems as _, FsType, MountRequest, Mounts as _, Probe, Result};

const DEADLINE: Duration = Duration::from_secs(300);

pub(super) fn set(kernel: &Linux, device: &Path, fs: FsType, uuid: &str, scratch: &Path) -> Result<()> {
    // A run that was interrupted between its mount and its unmount.
    kernel.unmount(scratch)?;
    if has(kernel, device, fs, uuid)? {
        return Ok(());
    }
    let bytes = parse(uuid).ok_or_else(|| refused(device, &format!("{uuid:?} is not a UUID")))?;
    match fs {
        FsType::Ext4 => set_ext4(kernel, device, uuid)?,
        FsType::Xfs => set_xfs(kernel, device, bytes, scratch)?,
        FsType::Btrfs => set_btrfs(kernel, device, uuid, bytes, scratch)?,
    }
    sync(device)?;
    if has(kernel, device, fs, uuid)? {
        return Ok(());
    }
    Err(refused(device, "it was written, and a probe does not find it"))
}

fn refused(device: &Path, why: &str) -> Error {
    Error::State { path: device.to_owned(), reason: format!("cannot get a new UUID: {why}") }
}

/// Whether the device has such a file system with this UUID; an error if it has no such file system at all.
fn has(kernel: &Linux, device: &Path, fs: FsType, uuid: &str) -> Result<bool> {
    match kernel.probe(device)? {
        Probe::Filesystem { fs: found, uuid: has } if found == fs => {
            // btrfstune may have died between the new UUID and the end of the change.
            let unfinished = fs == FsType::Btrfs && read_btrfs(kernel, device)?.is_changing_uuid();
            Ok(has.eq_ignore_ascii_case(uuid) && !unfinished)
        }
        other => Err(refused(device, &format!("a probe found no {fs} but {other:?}"))),
    }
}

/// With a seed of its own for checksums, which we make it with, only superblocks change, and tune2fs writes
/// the original last. With checksums but no seed it would rewrite all metadata, so it gets one first.
fn set_ext4(kernel: &Linux, device: &Path, uuid: &str) -> Result<()> {
    const SUPERBLOCK: u64 = 1024;
    const METADATA_CSUM: u32 = 0x400;
    // Replays the journal; tune2fs refuses otherwise.
    judge_e2fsck(device, e2fsck(device, &["-p"])?).map_err(into_error)?;
    let mut block = [0; 1024];
    kernel.read_device(device, SUPERBLOCK, &mut block)?;
    let tune = |option, value| -> Result<()> {
        Command::new("tune2fs", device, DEADLINE).args([option, value, text(device)?]).run().map(drop)
    };
    if le32(&block, 100) & METADATA_CSUM != 0 {
        // Nothing happens if it has one.
        tune("-O", "metadata_csum_seed")?;
    }
    tune("-U", uuid)
}

fn set_xfs(kernel: &Linux, device: &Path, uuid: [u8; 16], scratch: &Path) -> Result<()> {
    let found = read_xfs(device, 0)?;
    let log = found.log().ok_or_else(|| refused(device, "its log is on another device"))?;
    let mut last = last_record(device, log.clone())?;
    if last.0.uuid() != uuid {
        // Not yet ours: whatever waits in the log is replayed by a mount, which ends with a clean unmount.
        let options = ["nouuid".to_owned(), "logbsize=32k".to_owned()];
        replay(kernel, device, "xfs", &options, scratch)?;
        last = last_record(device, log.clone())?;
    }
    let (record, data) = last;
    if !record.is_unmount(&data) || (record.uuid() != found.uuid() && record.uuid() != uuid) {
        return Err(refused(
            device,
            "its log does not end with an unmount; mount and unmount it, then try again",
        ));
    }
    let header = record
        .with_uuid(uuid, &data)
        .ok_or_else(|| refused(device, "the last record of its log does not match its checksum"))?;
    // From here on it does not mount until the last write, but a retry sees the record and goes on.
    let place = log.start + record.block() * LogRecord::BLOCK as u64;
    let mut blocks = vec![(place, header)];
    for place in read_xfs(device, 0)?.places().collect::<Vec<_>>().into_iter().rev() {
        blocks.push((place, read_xfs(device, place)?.with_uuid(uuid)));
    }
    write_blocks(device, blocks)
}

fn read_xfs(device: &Path, place: u64) -> Result<XfsSuper> {
    let mut reader = Reader::open(device)?;
    let mut sector = vec![0; XfsSuper::SHORTEST];
    reader.read(place, &mut sector)?;
    sector.resize(XfsSuper::sector_length(&sector).max(XfsSuper::SHORTEST), 0);
    reader.read(place, &mut sector)?;
    let why = format!("the superblock at {place} is not that of an xfs of version 5, or damaged");
    XfsSuper::new(sector).ok_or_else(|| refused(device, &why))
}

/// The last record of the log, with its data.
fn last_record(device: &Path, log: std::ops::Range<u64>) -> Result<(LogRecord, Vec<u8>)> {
    const BLOCK: u64 = LogRecord::BLOCK as u64;
    let mut reader = Reader::open(device)?;
    let mut last: Option<LogRecord> = None;
    let mut piece = vec![0; 1 << 20];
    let mut at = log.start;
    while at < log.end {
        let length = piece.len().min(usize::try_from(log.end - at).unwrap_or(usize::MAX));
        let piece = &mut piece[..length];
        reader.read(at, piece)?;
        for record in piece.chunks_exact(LogRecord::BLOCK).filter_map(LogRecord::new) {
            if last.as_ref().is_none_or(|last| last.sequence() < record.sequence()) {
                last = Some(record);
            }
        }
        at += length as u64;
    }
    let last = last.ok_or_else(|| refused(device, "its log has no records; mount and unmount it once"))?;
    // The data of the record of an unmount is one block, or what the log is aligned to.
    if last.data_length() > 256 << 10 {
        return Err(refused(device, "the last record of its log is impossibly long"));
    }
    let blocks = (log.end - log.start) / BLOCK;
    let mut data = vec![0; last.data_length() as usize];
    for (number, part) in data.chunks_mut(LogRecord::BLOCK).enumerate() {
        // A record may go round the end of the log.
        let block = (last.block() + 1 + number as u64) % blocks;
        reader.read(log.start + block * BLOCK, part)?;
    }
    Ok((last, data))
}

fn set_btrfs(kernel: &Linux, device: &Path, uuid: &str, bytes: [u8; 16], scratch: &Path) -> Result<()> {
    if read_btrfs(kernel, device)?.has_log() {
        replay(kernel, device, "btrfs", &[], scratch)?;
    }
    let found = read_btrfs(kernel, device)?;
    if found.can_change_uuid() {
        // The original comes last: until it is written, a retry begins from the start.
        let places = found.copies().chain([BtrfsSuper::OFFSET]);
        write_blocks(device, places.map(|place| (place, found.with_uuid(bytes, place))))?;
    } else {
        // A checksum that we cannot compute: btrfstune can, at the risk told in `new_uuid`.
        Command::new("btrfstune", device, DEADLINE).args(["-f", "-M", uuid, text(device)?]).run()?;
    }
    forget(device)
}

fn read_btrfs(kernel: &Linux, device: &Path) -> Result<BtrfsSuper> {
    let mut block = vec![0; BtrfsSuper::LENGTH];
    kernel.read_device(device, BtrfsSuper::OFFSET, &mut block)?;
    Ok(BtrfsSuper::new(block))
}

/// Makes the kernel's list of btrfs devices forget this one under its old UUID, so that a mount of the
/// original cannot meet the copy. That it never knew it is no failure.
fn forget(device: &Path) -> Result<()> {
    Command::new("btrfs", device, DEADLINE)
        .args(["device", "scan", "--forget", text(device)?])
        .finish()
        .map(drop)
}

/// Mounts and unmounts: the only way to have a log replayed.
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

/// Writes blocks in their order, each durable before the next. Claims the device meanwhile, so a mounted one
/// is refused.
fn write_blocks(device: &Path, blocks: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Result<()> {
    let file: File = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_EXCL)
        .open(device)
        .map_err(|error| Error::call("open", device, error))?;
    for (place, block) in blocks {
        file.write_all_at(&block, place).map_err(|error| Error::call("write", device, error))?;
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

#[cfg(test)]
mod tests;
