//! The backup file format: a header, the blocks, and a digest of both.
//!
//! ```text
//! "WHARFBK1"  length of the header (u32)  header (JSON)
//! offset (u64)  length (u64)  bytes          for each block, in order
//! u64::MAX      number of blocks (u64)       the end
//! SHA-256 of everything before               32 bytes
//! ```
//!
//! Numbers are little-endian. A file without the end marker, with a wrong digest or with more
//! data is not a valid backup.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const MAGIC: &[u8; 8] = b"WHARFBK1";
const END: u64 = u64::MAX;
/// Maximum length of a block.
pub(super) const MAX_BLOCK_LEN: usize = 1 << 20;
/// Maximum length of the header.
const MAX_HEADER_LEN: u32 = 64 << 10;

/// Identifies the volume and snapshot of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Header {
    /// The volume's size in bytes.
    pub(super) volume_size: u64,
    /// The driver's snapshot handle.
    pub(super) snapshot_handle: String,
    /// The backup that this one is incremental to; `None` for a full backup.
    pub(super) base: Option<Base>,
}

/// Identifies the base of an incremental backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Base {
    /// The driver's snapshot handle.
    pub(super) snapshot_handle: String,
    /// The digest of the backup file, in hex.
    pub(super) sha256: String,
}

/// Why a file is not a valid backup, or does not fit into the chain.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a valid backup: {reason}")]
    Corrupt { path: PathBuf, reason: String },
    #[error("{path} is a full backup: it must be the first in the list")]
    FullNotFirst { path: PathBuf },
    #[error("{path} is incremental to the backup of snapshot {handle}: list that backup before it")]
    MissingBase { path: PathBuf, handle: String },
    #[error(
        "{path} is incremental to the backup of snapshot {handle} with digest {sha256}, but {previous} is a different \
         backup"
    )]
    WrongBase { path: PathBuf, handle: String, sha256: String, previous: PathBuf },
    #[error(
        "{path} has a volume size of {size} bytes, but its base has {base_size} bytes: volumes cannot shrink"
    )]
    SmallerThanBase { path: PathBuf, size: u64, base_size: u64 },
}

/// A backup whose digest was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerifiedBackup {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    pub(super) sha256: String,
}

/// Writes a backup to a temporary file next to its path, and renames it when it is complete.
pub(super) struct Writer {
    file: BufWriter<File>,
    digest: Sha256,
    blocks: u64,
    temporary: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Writer {
    pub(super) fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".unfinished");
        let temporary = path.with_file_name(name);
        // Never overwrite another backup, finished or not.
        if path.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file already exists"));
        }
        let file = File::options().write(true).create_new(true).open(&temporary).map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AlreadyExists => ": remove it if no other backup to this file runs",
                _ => "",
            };
            io::Error::new(error.kind(), format!("failed to create {}: {error}{advice}", temporary.display()))
        })?;
        let file = BufWriter::new(file);
        let path = path.to_owned();
        let mut writer = Self { file, digest: Sha256::new(), blocks: 0, temporary, path, finished: false };
        let header = serde_json::to_vec(header)?;
        let length = u32::try_from(header.len()).map_err(io::Error::other)?;
        for part in [&MAGIC[..], &length.to_le_bytes(), &header] {
            writer.write(part)?;
        }
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.file.write_all(bytes)
    }

    /// Appends a block of at most [`MAX_BLOCK_LEN`] bytes.
    pub(super) fn write_block(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.blocks += 1;
        self.write(&offset.to_le_bytes())?;
        self.write(&(bytes.len() as u64).to_le_bytes())?;
        self.write(bytes)
    }

    /// Completes the backup: writes the digest, syncs the file and renames it. Returns the digest.
    pub(super) fn finish(mut self) -> io::Result<String> {
        let blocks = self.blocks;
        self.write(&END.to_le_bytes())?;
        self.write(&blocks.to_le_bytes())?;
        let digest = self.digest.clone().finalize();
        self.file.write_all(&digest)?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        // Another process may have finished a backup with this path in the meantime.
        match renameat_with(CWD, &self.temporary, CWD, &self.path, RenameFlags::NOREPLACE) {
            // NFS does not support the flag.
            Err(Errno::INVAL) => {
                fs::hard_link(&self.temporary, &self.path)?;
                fs::remove_file(&self.temporary)?;
            }
            renamed => renamed?,
        }
        self.finished = true;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(base16ct::lower::encode_string(&digest))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            // If the removal fails, the suffix `.unfinished` marks the file as incomplete.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Reads and verifies a backup, and passes each block to `on_block`. The digest is checked after the last block: read a
/// backup once to verify it, and a second time to use its blocks.
pub(super) fn read(
    path: &Path,
    mut on_block: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<VerifiedBackup, FileError> {
    let io_error = |source| FileError::Io { path: path.to_owned(), source };
    let corrupt = |reason: &str| FileError::Corrupt { path: path.to_owned(), reason: reason.to_owned() };
    let read_error = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => corrupt("it is truncated"),
        _ => io_error(error),
    };
    let mut input =
        DigestReader { file: BufReader::new(File::open(path).map_err(io_error)?), digest: Sha256::new() };
    if input.read_array::<8>().map_err(read_error)? != *MAGIC {
        return Err(corrupt("the file signature is missing"));
    }
    let length = u32::from_le_bytes(input.read_array().map_err(read_error)?);
    if length > MAX_HEADER_LEN {
        return Err(corrupt("the header is too long"));
    }
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes).map_err(read_error)?;
    let header: Header = serde_json::from_slice(&bytes).map_err(|error| corrupt(&error.to_string()))?;
    let (mut position, mut blocks, mut bytes) = (0, 0_u64, vec![0; MAX_BLOCK_LEN]);
    loop {
        let offset = u64::from_le_bytes(input.read_array().map_err(read_error)?);
        let length = u64::from_le_bytes(input.read_array().map_err(read_error)?);
        if offset == END {
            if length != blocks {
                return Err(corrupt("blocks are missing"));
            }
            break;
        }
        let end = offset.checked_add(length).filter(|end| *end <= header.volume_size);
        let (Some(end), true) = (end, length <= MAX_BLOCK_LEN as u64 && offset >= position) else {
            return Err(corrupt("a block is out of order or outside the volume"));
        };
        let block = &mut bytes[..length as usize];
        input.read_exact(block).map_err(read_error)?;
        on_block(offset, block).map_err(io_error)?;
        (position, blocks) = (end, blocks + 1);
    }
    let DigestReader { mut file, digest } = input;
    let digest = digest.finalize();
    let mut stored = [0; 32];
    file.read_exact(&mut stored).map_err(read_error)?;
    if stored[..] != digest[..] {
        return Err(corrupt("the digest does not match"));
    }
    if !file.fill_buf().map_err(io_error)?.is_empty() {
        return Err(corrupt("data follows the digest"));
    }
    Ok(VerifiedBackup { path: path.to_owned(), header, sha256: base16ct::lower::encode_string(&digest) })
}

/// Checks that the first backup is full and each of the others is incremental to the one before it.
pub(super) fn check_chain(backups: &[VerifiedBackup]) -> Result<(), FileError> {
    let mut previous: Option<&VerifiedBackup> = None;
    for backup in backups {
        let VerifiedBackup { path, header, .. } = backup;
        let path = path.clone();
        match (&header.base, previous) {
            (None, None) => {}
            (None, Some(_)) => return Err(FileError::FullNotFirst { path }),
            (Some(base), None) => {
                return Err(FileError::MissingBase { path, handle: base.snapshot_handle.clone() });
            }
            (Some(Base { snapshot_handle, sha256 }), Some(previous)) => {
                if *sha256 != previous.sha256 || *snapshot_handle != previous.header.snapshot_handle {
                    let (handle, sha256) = (snapshot_handle.clone(), sha256.clone());
                    return Err(FileError::WrongBase {
                        path,
                        handle,
                        sha256,
                        previous: previous.path.clone(),
                    });
                }
                let (size, base_size) = (header.volume_size, previous.header.volume_size);
                if size < base_size {
                    return Err(FileError::SmallerThanBase { path, size, base_size });
                }
            }
        }
        previous = Some(backup);
    }
    Ok(())
}

/// Reads a file and computes the digest of what was read.
struct DigestReader {
    file: BufReader<File>,
    digest: Sha256,
}

impl DigestReader {
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.digest.update(bytes);
        Ok(())
    }

    fn read_array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
