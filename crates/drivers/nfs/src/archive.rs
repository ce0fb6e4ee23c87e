//! Archives of a directory tree: tar, tar.gz and tar.zst. Start at [`pack`] and [`unpack`].
//!
//! The codec is our own: the `tar` crate splits PAX records at newlines, which breaks binary extended attributes, and cannot
//! write sparse files with nanosecond times. Packing and unpacking open one name at a time beneath a directory, as the
//! copier does. Unpacking creates symlinks and hard links after everything else, refuses devices, absolute names and `..`,
//! and never replaces anything.
//!
//! `tar` and `tar.gz` archives can be restored by csi-driver-nfs, which knows directories, symlinks and regular files only. So
//! further names of a file are stored with its contents again, and FIFOs as empty files. Own PAX records tell this driver
//! what they are.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::copy::{CopyError, CopyReport, Keep, Progress};

mod header;
mod pack;
mod reader;
#[cfg(test)]
mod tests;
mod unpack;
mod writer;

/// How often the progress callback is called.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
const BUFFER: usize = 1 << 20;
/// Compression costs more time than the network at higher levels.
const GZIP_LEVEL: u32 = 4;
const ZSTD_LEVEL: i32 = 3;

/// The format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ArchiveFormat {
    /// Not compressed; readable by csi-driver-nfs.
    #[serde(rename = "tar")]
    Tar,
    /// gzip; readable by csi-driver-nfs.
    #[serde(rename = "tar.gz")]
    TarGz,
    /// Zstandard; only for this driver and for tar programs.
    #[serde(rename = "tar.zst")]
    TarZst,
}

impl ArchiveFormat {
    /// The end of the archive's file name.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::TarGz => "tar.gz",
            Self::TarZst => "tar.zst",
        }
    }

    /// Whether csi-driver-nfs must be able to restore it.
    fn is_compatible(self) -> bool {
        match self {
            Self::Tar | Self::TarGz => true,
            Self::TarZst => false,
        }
    }
}

/// A complete archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedArchive {
    /// What it contains.
    pub report: CopyReport,
    /// The size of the archive file.
    pub size: u64,
    /// The SHA-256 of the archive file, in hexadecimal digits.
    pub sha256: String,
}

/// How to unpack.
#[derive(Debug, Clone)]
pub struct UnpackOptions {
    /// What to do about an attribute that cannot be set.
    pub keep: Keep,
    /// The SHA-256 of the archive file, if it is known.
    pub sha256: Option<String>,
}

impl Default for UnpackOptions {
    fn default() -> Self {
        Self { keep: Keep::Exact, sha256: None }
    }
}

/// Packs the directory `from` into the empty file `out`. When the function returns without an error, the archive is complete
/// and on stable storage. Names in `exclude` are skipped in the root.
pub fn pack(
    from: BorrowedFd<'_>,
    out: &File,
    format: ArchiveFormat,
    exclude: &[OsString],
    progress: &dyn Fn(Progress) -> ControlFlow<()>,
) -> Result<PackedArchive, CopyError> {
    let error = |step| move |source: io::Error| CopyError::call(step, "the archive", source);
    let mut file = Hashing::new(out);
    let report = {
        let buffered = BufWriter::with_capacity(BUFFER, &mut file);
        let packer = |out: &mut dyn Write| pack::pack(from, out, format.is_compatible(), exclude, progress);
        // Every layer is finished by name: a destructor would swallow the error of the last write.
        let (report, mut buffered) = match format {
            ArchiveFormat::Tar => {
                let mut buffered = buffered;
                (packer(&mut buffered)?, buffered)
            }
            ArchiveFormat::TarGz => {
                let mut encoder = GzEncoder::new(buffered, Compression::new(GZIP_LEVEL));
                let report = packer(&mut encoder)?;
                (report, encoder.finish().map_err(error("write"))?)
            }
            ArchiveFormat::TarZst => {
                let mut encoder = zstd::Encoder::new(buffered, ZSTD_LEVEL).map_err(error("write"))?;
                encoder.include_checksum(true).map_err(error("write"))?;
                let report = packer(&mut encoder)?;
                (report, encoder.finish().map_err(error("write"))?)
            }
        };
        buffered.flush().map_err(error("write"))?;
        report
    };
    // Over NFS, errors of earlier writes are reported here at the latest. Nothing is left for close to report.
    out.sync_all().map_err(error("sync"))?;
    let found = out.metadata().map_err(error("read"))?.len();
    if found != file.bytes {
        let reason = format!("it has {found} bytes instead of {}", file.bytes);
        return Err(CopyError::Mismatch { path: "the archive".into(), reason });
    }
    Ok(PackedArchive { report, size: file.bytes, sha256: file.digest() })
}

/// Unpacks an archive into the empty directory `to`. When the function returns without an error, the whole archive was read,
/// its checksums are correct, and the tree is on stable storage. After an error the tree is incomplete: remove it.
pub fn unpack(
    input: File,
    format: ArchiveFormat,
    to: BorrowedFd<'_>,
    options: &UnpackOptions,
    progress: &dyn Fn(Progress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    let error = |source: io::Error| CopyError::call("read", "the archive", source);
    let mut file = Hashing::new(input);
    let report = {
        let buffered = BufReader::with_capacity(BUFFER, &mut file);
        let unpacker = |input: &mut dyn Read| unpack::unpack(input, to, options.keep, progress);
        match format {
            ArchiveFormat::Tar => unpacker(&mut { buffered })?,
            ArchiveFormat::TarGz => unpacker(&mut MultiGzDecoder::new(buffered))?,
            ArchiveFormat::TarZst => unpacker(&mut zstd::Decoder::with_buffer(buffered).map_err(error)?)?,
        }
    };
    // The unpacker has read the uncompressed data to its end, which checks the compressor's checksums.
    io::copy(&mut file, &mut io::sink()).map_err(error)?;
    let (offset, found) = (file.bytes, file.digest());
    match &options.sha256 {
        Some(expected) if *expected != found => {
            let reason = format!("its SHA-256 is {found} instead of {expected}");
            Err(CopyError::Archive { offset, reason })
        }
        _ => Ok(report),
    }
}

/// A file whose bytes are hashed and counted as they pass.
struct Hashing<F> {
    file: F,
    hash: Sha256,
    bytes: u64,
}

impl<F> Hashing<F> {
    fn new(file: F) -> Self {
        Self { file, hash: Sha256::new(), bytes: 0 }
    }

    fn digest(self) -> String {
        base16ct::lower::encode_string(&self.hash.finalize())
    }
}

impl Write for Hashing<&File> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Read for Hashing<File> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.hash.update(&bytes[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Calls the progress callback now and then.
struct Reporter<'a> {
    progress: &'a dyn Fn(Progress) -> ControlFlow<()>,
    done: Progress,
    last: Instant,
}

impl<'a> Reporter<'a> {
    fn new(progress: &'a dyn Fn(Progress) -> ControlFlow<()>) -> Self {
        Self { progress, done: Progress::default(), last: Instant::now() }
    }

    fn advance(&mut self, entries: u64, bytes: u64) -> Result<(), CopyError> {
        self.done.entries += entries;
        self.done.bytes += bytes;
        if self.last.elapsed() < PROGRESS_INTERVAL {
            return Ok(());
        }
        self.last = Instant::now();
        self.report()
    }

    fn report(&self) -> Result<(), CopyError> {
        match (self.progress)(self.done) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CopyError::Cancelled),
        }
    }
}
