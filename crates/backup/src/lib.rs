//! Full and incremental backups of block volumes from their snapshots, and their restore. The snapshot metadata service
//! reports the allocated and changed blocks. Start reading at [`create`] and [`restore`].
//!
//! Deliberately small: a demonstration and a test of the service, not a backup product.

mod file;
mod ranges;
mod service;

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use file::{Base, Header, MAX_BLOCK_LEN, VerifiedBackup, Writer, check_chain, read};
pub use service::{MetadataService, ServiceOptions};

/// A created backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedBackup {
    /// The number of bytes in the backup.
    pub bytes: u64,
    /// The volume's size in bytes.
    pub volume_size: u64,
    /// The digest of the backup file, in hex.
    pub sha256: String,
}

/// Backs up the snapshot of the service from `data`, a block device or file with the snapshot's bytes: all of them, or,
/// with `base`, those that changed since that backup. `output` must not exist. Blocks the thread.
pub async fn create(
    service: &MetadataService,
    snapshot_handle: String,
    data: &Path,
    base: Option<&Path>,
    output: &Path,
) -> anyhow::Result<CreatedBackup> {
    let base = base.map(|base| read(base, |_, _| Ok(()))).transpose()?;
    let below = base.map(|VerifiedBackup { header, sha256, .. }| Base {
        snapshot_handle: header.snapshot_handle,
        sha256,
    });
    let source = File::open(data).with_context(|| data.display().to_string())?;
    let available = length(&source).with_context(|| data.display().to_string())?;
    let base_handle = below.as_ref().map(|base| base.snapshot_handle.clone());
    let begin = |volume_size: u64| -> anyhow::Result<Writer> {
        if available < volume_size {
            bail!(
                "{} has {available} bytes, but the volume has {volume_size}: it does not contain this snapshot's data",
                data.display()
            );
        }
        let (snapshot_handle, base) = (snapshot_handle.clone(), below.clone());
        let header = Header { volume_size, snapshot_handle, base };
        Writer::create(output, &header).with_context(|| output.display().to_string())
    };
    let (mut writer, mut bytes) = (None, 0);
    let size = service
        .ranges(base_handle.as_deref(), |size, range| {
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(begin(size)?),
            };
            bytes += range.end - range.start;
            copy(&source, range, |offset, block| writer.write_block(offset, block))
                .with_context(|| format!("{} to {}", data.display(), output.display()))
        })
        .await?;
    let writer = match writer {
        Some(writer) => writer,
        // A backup without any ranges is still valid.
        None => begin(size)?,
    };
    let sha256 = writer.finish().with_context(|| output.display().to_string())?;
    Ok(CreatedBackup { bytes, volume_size: size, sha256 })
}

/// Reads a range in blocks of at most [`MAX_BLOCK_LEN`] bytes.
fn copy(
    source: &File,
    range: std::ops::Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = vec![0; MAX_BLOCK_LEN];
    let mut offset = range.start;
    while offset < range.end {
        let length =
            usize::try_from(range.end - offset).map_or(MAX_BLOCK_LEN, |left| left.min(MAX_BLOCK_LEN));
        source.read_exact_at(&mut bytes[..length], offset)?;
        each(offset, &bytes[..length])?;
        offset += length as u64;
    }
    Ok(())
}

/// Restores a full backup and its incremental backups, in order, to a block device or a file. The file is created if it
/// does not exist. Returns the size of the volume. Nothing is written unless all backups are valid. Blocks the thread.
pub fn restore(onto: &Path, backups: &[PathBuf]) -> anyhow::Result<u64> {
    // Verify all backups first: a corrupt one must not overwrite anything.
    let checked = backups.iter().map(|backup| read(backup, |_, _| Ok(()))).collect::<Result<Vec<_>, _>>()?;
    check_chain(&checked)?;
    let Some(size) = checked.last().map(|last| last.header.volume_size) else { return Ok(0) };
    let target = || onto.display().to_string();
    let blank = !onto.exists();
    // O_EXCL makes the kernel refuse a device that is mounted or otherwise in use.
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let mut options = File::options();
    options.write(true).create_new(blank);
    if !blank && onto.metadata().with_context(target)?.file_type().is_block_device() {
        options.custom_flags(exclusive);
    }
    let file = options.open(onto).with_context(target)?;
    if blank {
        file.set_len(size).with_context(target)?;
    }
    let has = length(&file).with_context(target)?;
    if has < size {
        bail!("{} is too small: it has {has} bytes, but the volume has {size}", onto.display());
    }
    for (number, backup) in checked.iter().enumerate() {
        let mut position = 0;
        let again = read(&backup.path, |offset, bytes| {
            // Ranges that are not in a full backup are zero.
            if number == 0 && !blank {
                zero(&file, position..offset)?;
            }
            position = offset + bytes.len() as u64;
            file.write_all_at(bytes, offset)
        })?;
        if number == 0 && !blank {
            zero(&file, position..size).with_context(target)?;
        }
        if again != *backup {
            bail!("{} changed during the restore: run the restore again", backup.path.display());
        }
    }
    file.sync_all().with_context(target)?;
    Ok(size)
}

fn zero(file: &File, range: std::ops::Range<u64>) -> io::Result<()> {
    copy_zeros(range, |offset, zeros| file.write_all_at(zeros, offset))
}

fn copy_zeros(
    range: std::ops::Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut zeros = Vec::new();
    io::repeat(0).take(MAX_BLOCK_LEN as u64).read_to_end(&mut zeros)?;
    let mut offset = range.start;
    while offset < range.end {
        let length =
            usize::try_from(range.end - offset).map_or(MAX_BLOCK_LEN, |left| left.min(MAX_BLOCK_LEN));
        each(offset, &zeros[..length])?;
        offset += length as u64;
    }
    Ok(())
}

/// The size of a file or block device.
fn length(file: &File) -> io::Result<u64> {
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn backup(path: &Path, header: &Header, blocks: &[(u64, &[u8])]) -> String {
        let mut writer = Writer::create(path, header).unwrap();
        for (offset, bytes) in blocks {
            writer.write_block(*offset, bytes).unwrap();
        }
        writer.finish().unwrap()
    }

    /// The volume was expanded between two backups. The restore targets are a new file and a file with old content.
    #[test]
    fn restored_data_equals_the_backed_up_data() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let full = Header { volume_size: 16, snapshot_handle: "s1".into(), base: None };
        let sha256 = backup(&one, &full, &[(2, b"ab"), (8, b"cdef")]);
        let base = Some(Base { snapshot_handle: "s1".into(), sha256 });
        let second = Header { volume_size: 20, snapshot_handle: "s2".into(), base };
        backup(&two, &second, &[(3, b"X"), (18, b"YZ")]);
        for before in [None, Some([0xff; 24])] {
            let onto = dir.path().join("target");
            if let Some(before) = before {
                fs::write(&onto, before).unwrap();
            }
            restore(&onto, &[one.clone(), two.clone()]).unwrap();
            let restored = fs::read(&onto).unwrap();
            assert_eq!(restored[..20], *b"\0\0aX\0\0\0\0cdef\0\0\0\0\0\0YZ");
            assert!(restored[20..].iter().all(|byte| *byte == 0xff), "bytes beyond the volume were changed");
            fs::remove_file(&onto).unwrap();
        }
    }

    #[test]
    fn invalid_backups_or_targets_leave_the_target_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let (one, onto) = (dir.path().join("one"), dir.path().join("target"));
        let full = Header { volume_size: 16, snapshot_handle: "s1".into(), base: None };
        backup(&one, &full, &[(2, b"ab")]);
        fs::write(&onto, [0xff; 8]).unwrap();
        assert!(restore(&onto, std::slice::from_ref(&one)).is_err(), "too small");
        assert!(restore(&onto, &[one.clone(), one.clone()]).is_err(), "not a chain");
        let mut bad = fs::read(&one).unwrap();
        let last = bad.len() - 1;
        bad[last] ^= 1;
        fs::write(&one, bad).unwrap();
        fs::write(&onto, [0xff; 16]).unwrap();
        assert!(restore(&onto, std::slice::from_ref(&one)).is_err(), "corrupt");
        assert_eq!(fs::read(&onto).unwrap(), [0xff; 16]);
        let absent = dir.path().join("absent");
        assert!(restore(&absent, &[one]).is_err() && !absent.exists());
    }
}
