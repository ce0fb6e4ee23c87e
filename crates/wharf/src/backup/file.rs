//! A backup as a file: what it is of, its blocks, and a digest of all of it.
//!
//! ```text
//! "WHARFBK1"  length of the header (u32)  header (JSON)
//! offset (u64)  length (u64)  bytes          for each block, in order
//! u64::MAX      number of blocks (u64)       the end
//! SHA-256 of everything before               32 bytes
//! ```
//!
//! Numbers are little-endian. A file without its end, or with another digest, is not a backup.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const MAGIC: &[u8; 8] = b"WHARFBK1";
const END: u64 = u64::MAX;
/// No block is longer.
pub(super) const LONGEST: usize = 1 << 20;
/// No header is longer.
const LONGEST_HEADER: u32 = 64 << 10;

/// What a backup is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Header {
    /// The volume's size in bytes.
    pub(super) volume_size: u64,
    /// The driver's name of the snapshot.
    pub(super) snapshot_handle: String,
    /// The backup that it goes on top of; none for a full one.
    pub(super) base: Option<Base>,
}

/// The backup below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Base {
    /// The driver's name of its snapshot.
    pub(super) snapshot_handle: String,
    /// Its digest, in hex.
    pub(super) sha256: String,
}

/// Why a file is not a backup, or not the one that is needed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a whole backup: {why}")]
    Broken { path: PathBuf, why: String },
    #[error("{path} is a full backup: it can only be the first")]
    FullOnTop { path: PathBuf },
    #[error("{path} goes on top of another backup, of snapshot {handle}: name that one before it")]
    NoBase { path: PathBuf, handle: String },
    #[error(
        "{path} goes on top of the backup of snapshot {handle} with digest {sha256}, which {below} is not"
    )]
    OtherBase { path: PathBuf, handle: String, sha256: String, below: PathBuf },
    #[error("{path} is of a volume of {size} bytes, the one below of {below}: a volume does not shrink")]
    Shrunk { path: PathBuf, size: u64, below: u64 },
}

/// A backup that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    pub(super) sha256: String,
}

/// Writes a backup beside its place and puts it there when it is whole.
pub(super) struct Writer {
    file: BufWriter<File>,
    digest: Sha256,
    blocks: u64,
    temporary: PathBuf,
    path: PathBuf,
    whole: bool,
}

impl Writer {
    pub(super) fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".unfinished");
        let temporary = path.with_file_name(name);
        // Never over another backup, finished or not.
        if path.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists already"));
        }
        let file = BufWriter::new(File::options().write(true).create_new(true).open(&temporary)?);
        let path = path.to_owned();
        let mut writer = Self { file, digest: Sha256::new(), blocks: 0, temporary, path, whole: false };
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

    /// One block; at most [`LONGEST`] bytes.
    pub(super) fn block(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.blocks += 1;
        self.write(&offset.to_le_bytes())?;
        self.write(&(bytes.len() as u64).to_le_bytes())?;
        self.write(bytes)
    }

    /// It is whole: on disk, and in its place.
    pub(super) fn finish(mut self) -> io::Result<String> {
        let blocks = self.blocks;
        self.write(&END.to_le_bytes())?;
        self.write(&blocks.to_le_bytes())?;
        let digest = self.digest.clone().finalize();
        self.file.write_all(&digest)?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.whole = true;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(hex(&digest))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.whole {
            // Nobody can use half a backup; if it cannot be removed, its name says what it is.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Reads a whole backup, block by block, and checks it. `each` gets the blocks, which are only known to be right when
/// this has succeeded: look first, then act.
pub(super) fn read(
    path: &Path,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<Checked, FileError> {
    let failed = |source| FileError::Io { path: path.to_owned(), source };
    let broken = |why: &str| FileError::Broken { path: path.to_owned(), why: why.to_owned() };
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => broken("its end is missing"),
        _ => failed(error),
    };
    let mut input =
        Digesting { file: BufReader::new(File::open(path).map_err(failed)?), digest: Sha256::new() };
    if input.array::<8>().map_err(cut)? != *MAGIC {
        return Err(broken("it does not begin like one"));
    }
    let length = u32::from_le_bytes(input.array().map_err(cut)?);
    if length > LONGEST_HEADER {
        return Err(broken("its header is too long"));
    }
    let mut bytes = vec![0; length as usize];
    input.exact(&mut bytes).map_err(cut)?;
    let header: Header = serde_json::from_slice(&bytes).map_err(|error| broken(&error.to_string()))?;
    let (mut position, mut blocks, mut bytes) = (0, 0_u64, vec![0; LONGEST]);
    loop {
        let offset = u64::from_le_bytes(input.array().map_err(cut)?);
        let length = u64::from_le_bytes(input.array().map_err(cut)?);
        if offset == END {
            if length != blocks {
                return Err(broken("blocks are missing"));
            }
            break;
        }
        let end = offset.checked_add(length).filter(|end| *end <= header.volume_size);
        let (Some(end), true) = (end, length <= LONGEST as u64 && offset >= position) else {
            return Err(broken("a block is out of place"));
        };
        let block = &mut bytes[..length as usize];
        input.exact(block).map_err(cut)?;
        each(offset, block).map_err(failed)?;
        (position, blocks) = (end, blocks + 1);
    }
    let Digesting { mut file, digest } = input;
    let digest = digest.finalize();
    let mut noted = [0; 32];
    file.read_exact(&mut noted).map_err(cut)?;
    if noted[..] != digest[..] {
        return Err(broken("its digest is another"));
    }
    Ok(Checked { path: path.to_owned(), header, sha256: hex(&digest) })
}

/// Whether backups go on top of each other, the full one first.
pub(super) fn chain(backups: &[Checked]) -> Result<(), FileError> {
    let mut below: Option<&Checked> = None;
    for backup in backups {
        let Checked { path, header, .. } = backup;
        let path = path.clone();
        match (&header.base, below) {
            (None, None) => {}
            (None, Some(_)) => return Err(FileError::FullOnTop { path }),
            (Some(base), None) => {
                return Err(FileError::NoBase { path, handle: base.snapshot_handle.clone() });
            }
            (Some(Base { snapshot_handle, sha256 }), Some(below)) => {
                if *sha256 != below.sha256 || *snapshot_handle != below.header.snapshot_handle {
                    let (handle, sha256) = (snapshot_handle.clone(), sha256.clone());
                    return Err(FileError::OtherBase { path, handle, sha256, below: below.path.clone() });
                }
                let (size, before) = (header.volume_size, below.header.volume_size);
                if size < before {
                    return Err(FileError::Shrunk { path, size, below: before });
                }
            }
        }
        below = Some(backup);
    }
    Ok(())
}

struct Digesting {
    file: BufReader<File>,
    digest: Sha256,
}

impl Digesting {
    fn exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.digest.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
