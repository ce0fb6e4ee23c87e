//! `wharf backup …`: full and incremental backups of block volumes from their snapshots, by what the metadata service
//! says of changed blocks; and the way back. Small on purpose: it shows what the service is good for, and proves it.

mod file;
mod ranges;
mod service;

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use file::{Base, Checked, Header, LONGEST, Writer, chain, read};
use service::{Service, ServiceArgs};

const EXPLANATION: &str = "\
The data is read from --data: the block device of a volume that was restored from the snapshot, or anything else
that has the snapshot's bytes. Which of them matter the metadata service says (wharf snapshot-metadata, or
upstream's external-snapshot-metadata).

Examples:
  wharf backup create --server sms.backup.svc:50051 --ca-file ca.pem --token-file token --namespace shop \\
    --snapshot monday --handle snap-1 --data /dev/monday monday.backup
  wharf backup create … --snapshot tuesday --handle snap-2 --data /dev/tuesday --base monday.backup tuesday.backup
  wharf backup restore --onto /dev/new monday.backup tuesday.backup";

/// Back up block volumes from their snapshots, whole or only what changed, and restore them
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a backup of a snapshot: of all its data, or of what differs from an earlier backup
    Create {
        #[command(flatten)]
        service: ServiceArgs,
        /// The driver's name of the snapshot (status.snapshotHandle of its VolumeSnapshotContent)
        #[arg(long, value_name = "HANDLE")]
        handle: String,
        /// Where the snapshot's bytes are: a block device or a file
        #[arg(long, value_name = "PATH")]
        data: PathBuf,
        /// An earlier backup of the same volume, to go on top of
        #[arg(long, value_name = "FILE")]
        base: Option<PathBuf>,
        /// The backup to make; it must not exist
        #[arg(value_name = "FILE")]
        output: PathBuf,
    },
    /// Write a full backup, and those on top of it, to a block device or file
    Restore {
        /// The block device or file; a file that does not exist is made. Everything in it is lost
        #[arg(long, value_name = "PATH")]
        onto: PathBuf,
        /// The backups, the full one first
        #[arg(required = true, value_name = "FILE")]
        backups: Vec<PathBuf>,
    },
}

/// Does it. Blocking calls are fine here: nothing else runs in this process.
pub(crate) async fn run(args: BackupArgs) -> anyhow::Result<()> {
    match args.command {
        Command::Create { service, handle, data, base, output } => {
            create(&Service::new(service)?, handle, &data, base.as_deref(), &output).await
        }
        Command::Restore { onto, backups } => restore(&onto, &backups),
    }
}

async fn create(
    service: &Service,
    snapshot_handle: String,
    data: &Path,
    base: Option<&Path>,
    output: &Path,
) -> anyhow::Result<()> {
    let base = base.map(|base| read(base, |_, _| Ok(()))).transpose()?;
    let below =
        base.map(|Checked { header, sha256, .. }| Base { snapshot_handle: header.snapshot_handle, sha256 });
    let source = File::open(data).with_context(|| data.display().to_string())?;
    let available = length(&source).with_context(|| data.display().to_string())?;
    let asked = below.as_ref().map(|base| base.snapshot_handle.clone());
    let begin = |volume_size: u64| -> anyhow::Result<Writer> {
        if available < volume_size {
            bail!(
                "{} has {available} bytes, the volume {volume_size}: it is not the snapshot's",
                data.display()
            );
        }
        let (snapshot_handle, base) = (snapshot_handle.clone(), below.clone());
        let header = Header { volume_size, snapshot_handle, base };
        Writer::create(output, &header).with_context(|| output.display().to_string())
    };
    let (mut writer, mut bytes) = (None, 0);
    let size = service
        .ranges(asked.as_deref(), |size, range| {
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(begin(size)?),
            };
            bytes += range.end - range.start;
            copy(&source, range, |offset, block| writer.block(offset, block))
                .with_context(|| format!("{} to {}", data.display(), output.display()))
        })
        .await?;
    let writer = match writer {
        Some(writer) => writer,
        // Nothing but nothing: a backup all the same.
        None => begin(size)?,
    };
    let sha256 = writer.finish().with_context(|| output.display().to_string())?;
    println!("{}: {bytes} of {size} bytes, sha256 {sha256}", output.display());
    Ok(())
}

/// Reads a range in blocks.
fn copy(
    source: &File,
    range: std::ops::Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = vec![0; LONGEST];
    let mut offset = range.start;
    while offset < range.end {
        let length = usize::try_from(range.end - offset).map_or(LONGEST, |left| left.min(LONGEST));
        source.read_exact_at(&mut bytes[..length], offset)?;
        each(offset, &bytes[..length])?;
        offset += length as u64;
    }
    Ok(())
}

fn restore(onto: &Path, backups: &[PathBuf]) -> anyhow::Result<()> {
    // All of them first: what is half right must not overwrite anything.
    let checked = backups.iter().map(|backup| read(backup, |_, _| Ok(()))).collect::<Result<Vec<_>, _>>()?;
    chain(&checked)?;
    let Some(size) = checked.last().map(|last| last.header.volume_size) else { return Ok(()) };
    let target = || onto.display().to_string();
    let blank = !onto.exists();
    // A device that is mounted, or otherwise somebody's, is refused by the kernel.
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
        bail!("{} has {has} bytes, the volume {size}", onto.display());
    }
    for (number, backup) in checked.iter().enumerate() {
        let mut position = 0;
        let again = read(&backup.path, |offset, bytes| {
            // What a full backup leaves out is zero.
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
            bail!("{} changed while it was restored: restore once more", backup.path.display());
        }
    }
    file.sync_all().with_context(target)?;
    println!("{}: {size} bytes restored from {} backups", onto.display(), checked.len());
    Ok(())
}

fn zero(file: &File, range: std::ops::Range<u64>) -> io::Result<()> {
    copy_zeros(range, |offset, zeros| file.write_all_at(zeros, offset))
}

fn copy_zeros(
    range: std::ops::Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut zeros = Vec::new();
    io::repeat(0).take(LONGEST as u64).read_to_end(&mut zeros)?;
    let mut offset = range.start;
    while offset < range.end {
        let length = usize::try_from(range.end - offset).map_or(LONGEST, |left| left.min(LONGEST));
        each(offset, &zeros[..length])?;
        offset += length as u64;
    }
    Ok(())
}

/// How long a file or block device is.
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
            writer.block(*offset, bytes).unwrap();
        }
        writer.finish().unwrap()
    }

    /// A volume that has grown between two backups, onto a new file and onto one full of something else.
    #[test]
    fn what_was_backed_up_comes_back_bit_by_bit() {
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
            assert!(restored[20..].iter().all(|byte| *byte == 0xff), "what is not the volume's stays");
            fs::remove_file(&onto).unwrap();
        }
    }

    #[test]
    fn nothing_is_written_unless_all_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let (one, onto) = (dir.path().join("one"), dir.path().join("target"));
        let full = Header { volume_size: 16, snapshot_handle: "s1".into(), base: None };
        backup(&one, &full, &[(2, b"ab")]);
        fs::write(&onto, [0xff; 8]).unwrap();
        assert!(restore(&onto, std::slice::from_ref(&one)).is_err(), "too small");
        assert!(restore(&onto, &[one.clone(), one.clone()]).is_err(), "no chain");
        let mut bad = fs::read(&one).unwrap();
        let last = bad.len() - 1;
        bad[last] ^= 1;
        fs::write(&one, bad).unwrap();
        fs::write(&onto, [0xff; 16]).unwrap();
        assert!(restore(&onto, std::slice::from_ref(&one)).is_err(), "broken");
        assert_eq!(fs::read(&onto).unwrap(), [0xff; 16]);
        let absent = dir.path().join("absent");
        assert!(restore(&absent, &[one]).is_err() && !absent.exists());
    }
}
