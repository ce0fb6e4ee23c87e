//! Queries for any block device: size, number, and the bytes on the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::{Linux, loops};
use crate::{BlockDevices, Error, FileId, LoopDevice, LoopOptions, PathBeneath, Result, sys};

/// Alignment of direct reads: no disk has larger sectors.
const ALIGNMENT: u64 = 4096;

/// The size of one read.
const CHUNK: u64 = 1 << 20;

impl BlockDevices for Linux {
    fn loop_attach(&self, image: &PathBeneath<'_>, options: &LoopOptions) -> Result<LoopDevice> {
        loops::attach(image, options)
    }

    fn loop_devices(&self) -> Result<Vec<LoopDevice>> {
        loops::list()
    }

    fn loop_refresh(&self, device: &Path) -> Result<()> {
        loops::refresh(device)
    }

    fn loop_hold(&self, device: &Path, label: &str) -> Result<LoopDevice> {
        loops::hold(device, label)
    }

    fn loop_reset(&self, device: &Path, label: &str) -> Result<()> {
        loops::reset(device, label)
    }

    fn loop_detach(&self, device: &Path, image: Option<FileId>) -> Result<()> {
        loops::detach(device, image)
    }

    fn loop_disable_discard(&self, device: &Path) -> Result<()> {
        loops::disable_discard(device)
    }

    fn device_size(&self, device: &Path) -> Result<u64> {
        size_of(&open(device, false)?, device)
    }

    fn device_number(&self, device: &Path) -> Result<(u32, u32)> {
        let metadata = std::fs::metadata(device).map_err(|error| Error::call("stat", device, error))?;
        if !metadata.file_type().is_block_device() {
            return Err(not_a_device(device));
        }
        Ok((rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())))
    }

    fn read_device(&self, device: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
        Reader::open(device)?.read(offset, buffer)
    }
}

/// A device opened for reading, with direct I/O where possible: a probe must read the disk, not page cache content from
/// before another node's writes.
pub(super) struct Reader<'a> {
    path: &'a Path,
    file: File,
    size: u64,
    /// Larger than a chunk, so that an aligned part of it can be used.
    scratch: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self> {
        let file = match open(path, true) {
            Err(error) if error.errno() == Some(libc::EINVAL) => open(path, false)?,
            result => result?,
        };
        let size = size_of(&file, path)?;
        Ok(Self { path, file, size, scratch: vec![0; (CHUNK + 2 * ALIGNMENT) as usize] })
    }

    /// The device's size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Fills `buffer` from `offset`.
    pub(super) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(buffer.len() as u64);
        if end > self.size {
            let reason = format!("cannot read bytes {offset}..{end}: the device has {} bytes", self.size);
            return Err(Error::InvalidState { path: self.path.to_owned(), reason });
        }
        let mut at = offset;
        for part in buffer.chunks_mut(CHUNK as usize) {
            self.read_chunk(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Reads the aligned range around `offset..offset + part.len()` and copies the requested part.
    fn read_chunk(&mut self, offset: u64, part: &mut [u8]) -> Result<()> {
        let start = offset - offset % ALIGNMENT;
        let before = (offset - start) as usize;
        let wanted = before + part.len();
        let length = wanted.next_multiple_of(ALIGNMENT as usize);
        let skip = self.scratch.as_ptr().align_offset(ALIGNMENT as usize);
        let aligned = &mut self.scratch[skip..skip + length];
        let mut filled = 0;
        while filled < wanted {
            match self.file.read_at(&mut aligned[filled..], start + filled as u64) {
                Ok(0) => {
                    return Err(Error::call(
                        "read",
                        self.path,
                        io::Error::from(io::ErrorKind::UnexpectedEof),
                    ));
                }
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    // Direct reads are not possible on this device: read through the page cache from now on.
                    let buffered = open(self.path, false)?;
                    buffered
                        .read_exact_at(part, offset)
                        .map_err(|error| Error::call("read", self.path, error))?;
                    self.file = buffered;
                    return Ok(());
                }
                Err(error) => return Err(Error::call("read", self.path, error)),
            }
        }
        part.copy_from_slice(&aligned[before..wanted]);
        Ok(())
    }
}

fn open(path: &Path, direct: bool) -> Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    // Without O_NONBLOCK, opening a path that turns out to be a FIFO would block.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| Error::call("open", path, error))?;
    let metadata = file.metadata().map_err(|error| Error::call("fstat", path, error))?;
    if metadata.file_type().is_block_device() { Ok(file) } else { Err(not_a_device(path)) }
}

fn size_of(file: &File, path: &Path) -> Result<u64> {
    sys::block_size64(file).map_err(|error| Error::call("BLKGETSIZE64", path, error))
}

fn not_a_device(path: &Path) -> Error {
    Error::InvalidState { path: path.to_owned(), reason: "is not a block device".to_owned() }
}
