//! Sets a new UUID on a copy of a file system, so that it can be mounted together with its source.
//!
//! It begins with a probe, since the UUID may be set already, and ends with a probe that must find the new UUID. After any
//! interruption, even a power loss, a second run completes the change.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use super::Linux;
use super::devices::Reader;
use super::filesystems::{e2fsck, interpret_e2fsck, into_error, sync, utf8_path};
use crate::bytes::le32;
use crate::command::Command;
use crate::new_uuid::{BtrfsSuper, LogRecord, XfsSuper};
use crate::{
    BlockDevices as _, Error, Filesystems as _, FsType, MountRequest, Mounts as _, ProbeResult, Result,
};

const TIMEOUT: Duration = Duration::from_secs(300);

pub(super) fn set(kernel: &Linux, device: &Path, fs: FsType, uuid: &str, scratch: &Path) -> Result<()> {
    // An earlier run may have been interrupted between its mount and its unmount.
    kernel.unmount(scratch)?;
    if has_uuid(kernel, device, fs, uuid)? {
        return Ok(());
    }
    let bytes = parse(uuid).ok_or_else(|| cannot_set_uuid(device, &format!("{uuid:?} is not a UUID")))?;
    match fs {
        FsType::Ext4 => set_ext4(kernel, device, uuid)?,
        FsType::Xfs => set_xfs(kernel, device, bytes, scratch)?,
        FsType::Btrfs => set_btrfs(kernel, device, uuid, bytes, scratch)?,
    }
    sync(device)?;
    if has_uuid(kernel, device, fs, uuid)? {
        return Ok(());
    }
    Err(cannot_set_uuid(device, "it was written, but a probe does not find it"))
}

fn cannot_set_uuid(device: &Path, reason: &str) -> Error {
    Error::InvalidState { path: device.to_owned(), reason: format!("cannot set a new UUID: {reason}") }
}

/// Whether the file system on the device has this UUID; an error if the device has no file system of this type.
fn has_uuid(kernel: &Linux, device: &Path, fs: FsType, uuid: &str) -> Result<bool> {
    match kernel.probe(device)? {
        ProbeResult::Filesystem { fs: found, uuid: found_uuid } if found == fs => {
            // btrfstune may have been killed after it wrote the new UUID and before it finished.
            let unfinished = fs == FsType::Btrfs && read_btrfs(kernel, device)?.is_changing_uuid();
            Ok(found_uuid.eq_ignore_ascii_case(uuid) && !unfinished)
        }
        other => Err(cannot_set_uuid(device, &format!("a probe found {other:?} instead of {fs}"))),
    }
}

/// With a separate checksum seed, which our mkfs options set, only superblocks change, and tune2fs writes the primary
/// superblock last. With checksums but no seed tune2fs would rewrite all metadata, so a seed is added first.
fn set_ext4(kernel: &Linux, device: &Path, uuid: &str) -> Result<()> {
    const SUPERBLOCK: u64 = 1024;
    const METADATA_CSUM: u32 = 0x400;
    // Replay the journal, or tune2fs fails.
    interpret_e2fsck(device, e2fsck(device, &["-p"])?).map_err(into_error)?;
    let mut block = [0; 1024];
    kernel.read_device(device, SUPERBLOCK, &mut block)?;
    let tune = |option, value| -> Result<()> {
        Command::new("tune2fs", device, TIMEOUT).args([option, value, utf8_path(device)?]).run().map(drop)
    };
    if le32(&block, 100) & METADATA_CSUM != 0 {
        // No effect if there is a seed already.
        tune("-O", "metadata_csum_seed")?;
    }
    tune("-U", uuid)
}

fn set_xfs(kernel: &Linux, device: &Path, uuid: [u8; 16], scratch: &Path) -> Result<()> {
    let found = read_xfs(device, 0)?;
    let log = found.log().ok_or_else(|| cannot_set_uuid(device, "its log is on another device"))?;
    let mut last = last_record(device, log.clone())?;
    if last.0.uuid() == found.uuid() {
        // Not changed yet: replay the log with a mount, which ends with a clean unmount. A log with a third UUID is that of
        // a change to another UUID that was interrupted before this copy was made: it ends with an unmount.
        let options = ["nouuid".to_owned(), "logbsize=32k".to_owned()];
        replay(kernel, device, "xfs", &options, scratch)?;
        last = last_record(device, log.clone())?;
    }
    let (record, data) = last;
    if !record.is_unmount(&data) {
        return Err(cannot_set_uuid(
            device,
            "its log does not end with an unmount; mount and unmount it, then try again",
        ));
    }
    let header = record
        .with_uuid(uuid, &data)
        .ok_or_else(|| cannot_set_uuid(device, "the last record of its log does not match its checksum"))?;
    // From here until the last write the file system does not mount, but a retry finds the record and continues.
    let offset = log.start + record.block() * LogRecord::BLOCK as u64;
    let mut blocks = vec![(offset, header)];
    for offset in read_xfs(device, 0)?.superblock_offsets().collect::<Vec<_>>().into_iter().rev() {
        blocks.push((offset, read_xfs(device, offset)?.with_uuid(uuid)));
    }
    write_blocks(device, blocks)
}

fn read_xfs(device: &Path, offset: u64) -> Result<XfsSuper> {
    let mut reader = Reader::open(device)?;
    let mut sector = vec![0; XfsSuper::MIN_SECTOR];
    reader.read(offset, &mut sector)?;
    sector.resize(XfsSuper::sector_length(&sector).max(XfsSuper::MIN_SECTOR), 0);
    reader.read(offset, &mut sector)?;
    let reason = format!("the superblock at {offset} is damaged or not of xfs version 5");
    XfsSuper::new(sector).ok_or_else(|| cannot_set_uuid(device, &reason))
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
    let last =
        last.ok_or_else(|| cannot_set_uuid(device, "its log has no records; mount and unmount it once"))?;
    // The data of an unmount record is one block, or one stripe unit of the log.
    if last.data_length() > 256 << 10 {
        return Err(cannot_set_uuid(device, "the last record of its log is impossibly long"));
    }
    let blocks = (log.end - log.start) / BLOCK;
    let mut data = vec![0; last.data_length() as usize];
    for (number, part) in data.chunks_mut(LogRecord::BLOCK).enumerate() {
        // A record can wrap around the end of the log.
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
        // Write the primary superblock last: until then a retry starts from the beginning.
        let offsets = found.copies().chain([BtrfsSuper::OFFSET]);
        write_blocks(device, offsets.map(|offset| (offset, found.with_uuid(bytes, offset))))?;
    } else {
        // We do not implement this checksum. btrfstune does, with the risk described in `new_uuid`.
        Command::new("btrfstune", device, TIMEOUT).args(["-f", "-M", uuid, utf8_path(device)?]).run()?;
    }
    forget_btrfs_device(device)
}

fn read_btrfs(kernel: &Linux, device: &Path) -> Result<BtrfsSuper> {
    let mut block = vec![0; BtrfsSuper::LENGTH];
    kernel.read_device(device, BtrfsSuper::OFFSET, &mut block)?;
    Ok(BtrfsSuper::new(block))
}

/// Removes the device from the kernel's list of btrfs devices, where it has its old UUID, so that a mount of the source
/// cannot pick up the copy. A device that is not in the list is success.
fn forget_btrfs_device(device: &Path) -> Result<()> {
    Command::new("btrfs", device, TIMEOUT)
        .args(["device", "scan", "--forget", utf8_path(device)?])
        .run_any_exit_code()
        .map(drop)
}

/// Mounts and unmounts: the only way to replay a log.
fn replay(kernel: &Linux, device: &Path, fs_type: &str, options: &[String], scratch: &Path) -> Result<()> {
    kernel.mount(&MountRequest {
        source: utf8_path(device)?,
        target: scratch,
        fs_type,
        options,
        read_only: false,
    })?;
    kernel.unmount(scratch)
}

/// Writes blocks in order, each durable before the next. Opens the device exclusively, so a mounted device is an error.
fn write_blocks(device: &Path, blocks: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Result<()> {
    let file: File = std::fs::OpenOptions::new()
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

#[cfg(test)]
mod tests;
