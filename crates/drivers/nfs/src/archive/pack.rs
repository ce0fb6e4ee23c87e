//! Walks a directory and writes it as an archive.
//!
//! The source can be in use: a file that shrinks is filled with zeroes to its announced size, one that grows is cut, one
//! that vanishes is left out. All of them are counted.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{FileType, Stat};

use super::writer::{HARD_LINK_KEY, NewEntry, TYPE_FIFO, TYPE_KEY, Writer};
use super::{BUFFER, Reporter};
use crate::copy::attributes::{self, Attributes};
use crate::copy::{CopyError, CopyReport, Progress, allocated, beneath, data};

/// Packs `from`. `compatible` archives have directories, symlinks and regular files only.
pub(super) fn pack(
    from: BorrowedFd<'_>,
    out: &mut dyn Write,
    compatible: bool,
    progress: &dyn Fn(Progress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    let mut packer = Packer {
        writer: Writer::new(out),
        compatible,
        report: CopyReport::default(),
        links: HashMap::new(),
        reporter: Reporter::new(progress),
        buffer: vec![0; BUFFER],
    };
    packer.pack_tree(from)?;
    // If the export itself is gone, every entry looks as if it had vanished.
    let flags = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(from, c"", flags, rustix::fs::StatxFlags::BASIC_STATS)
        .map_err(|errno| CopyError::call("read again", "", errno))?;
    packer.reporter.report()?;
    packer.writer.finish().map_err(write_error)?;
    Ok(packer.report)
}

fn write_error(source: io::Error) -> CopyError {
    CopyError::call("write", "the archive", source)
}

struct Packer<'a> {
    writer: Writer<'a>,
    compatible: bool,
    report: CopyReport,
    /// The first path of each inode with several names.
    links: HashMap<(u64, u64), Vec<u8>>,
    reporter: Reporter<'a>,
    buffer: Vec<u8>,
}

/// A directory whose entries are being packed.
struct Level {
    dir: OwnedFd,
    path: Vec<u8>,
    names: Vec<CString>,
}

impl Packer<'_> {
    /// Depth first, so that the number of open directories is the depth of the tree.
    fn pack_tree(&mut self, from: BorrowedFd<'_>) -> Result<(), CopyError> {
        let error = |step| move |source: io::Error| CopyError::call(step, "", source);
        let dir = from.try_clone_to_owned().map_err(error("open"))?;
        let stat = rustix::fs::fstat(&dir).map_err(io::Error::from).map_err(error("read"))?;
        let names = list(dir.as_fd()).map_err(error("list"))?;
        self.write_dir(b".", &dir, &stat)?;
        let mut levels = vec![Level { dir, path: Vec::new(), names }];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let path = join(&level.path, &name);
            match self.pack_entry(&level.dir, &name, &path) {
                Ok(Packed::Done) => self.reporter.advance(1, 0)?,
                Ok(Packed::Directory(next)) => levels.push(next),
                Ok(Packed::Gone) => self.report.vanished += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn pack_entry(&mut self, dir: &OwnedFd, name: &CStr, path: &[u8]) -> Result<Packed, CopyError> {
        let failed = |step: &'static str| {
            move |source: io::Error| match source.kind() {
                _ if beneath::is_gone(&source) => Ok(Packed::Gone),
                io::ErrorKind::CrossesDevices => Err(CopyError::OtherFileSystem { path: display(path) }),
                _ => Err(CopyError::call(step, display(path), source)),
            }
        };
        let stat = match beneath::stat(dir, name) {
            Ok(stat) => stat,
            Err(error) => return failed("read")(error),
        };
        match beneath::kind(&stat) {
            FileType::Directory => match self.enter(dir, name, path) {
                Ok(level) => Ok(Packed::Directory(level?)),
                Err(error) => failed("open")(error),
            },
            FileType::RegularFile => {
                let opened = beneath::open_for_reading(dir, name)
                    .and_then(|fd| Ok((rustix::fs::fstat(&fd)?, File::from(fd))));
                match opened {
                    Ok((stat, file)) if beneath::kind(&stat) == FileType::RegularFile => {
                        self.pack_file(&file, &stat, path)
                    }
                    // Another entry has taken this name since `stat`.
                    Ok(_) => Ok(Packed::Gone),
                    Err(error) => failed("open")(error),
                }
            }
            FileType::Symlink => match rustix::fs::readlinkat(dir, name, Vec::new()) {
                Ok(target) => self.pack_symlink(&stat, path, target.to_bytes()),
                Err(errno) => failed("read")(errno.into()),
            },
            FileType::Fifo => self.pack_fifo(&stat, path),
            FileType::Socket => {
                self.report.sockets += 1;
                Ok(Packed::Done)
            }
            _ => {
                self.report.devices += 1;
                Ok(Packed::Done)
            }
        }
    }

    fn enter(&mut self, dir: &OwnedFd, name: &CStr, path: &[u8]) -> io::Result<Result<Level, CopyError>> {
        let dir = beneath::open_dir(dir, name)?;
        let stat = rustix::fs::fstat(&dir)?;
        let names = list(dir.as_fd())?;
        if let Err(error) = self.write_dir(path, &dir, &stat) {
            return Ok(Err(error));
        }
        self.report.directories += 1;
        Ok(Ok(Level { dir, path: path.to_vec(), names }))
    }

    fn write_dir(&mut self, path: &[u8], dir: &OwnedFd, stat: &Stat) -> Result<(), CopyError> {
        let mut attributes = Attributes::of(stat);
        attributes.xattrs = read_xattrs(dir.as_fd(), path)?;
        self.write_entry(&NewEntry { kind: b'5', ..entry(path, &attributes) })
    }

    fn write_entry(&mut self, entry: &NewEntry<'_>) -> Result<(), CopyError> {
        self.writer.begin(entry).map(drop).map_err(write_error)
    }

    fn pack_symlink(&mut self, stat: &Stat, path: &[u8], target: &[u8]) -> Result<Packed, CopyError> {
        // csi-driver-nfs creates an empty file for a hard link to a symlink, so a compatible archive stores the symlink again.
        if !self.compatible
            && let Some(first) = self.first_path(stat, path)
        {
            return self.write_link(&first, stat, path);
        }
        self.report.symlinks += 1;
        self.write_entry(&NewEntry { kind: b'2', link: target, ..entry(path, &Attributes::of(stat)) })?;
        Ok(Packed::Done)
    }

    fn pack_fifo(&mut self, stat: &Stat, path: &[u8]) -> Result<Packed, CopyError> {
        let attributes = Attributes::of(stat);
        if let Some(first) = self.first_path(stat, path) {
            return match self.compatible {
                false => self.write_link(&first, stat, path),
                true => {
                    self.report.hard_links += 1;
                    let extra: [(&[u8], &[u8]); 2] = [(HARD_LINK_KEY, &first), (TYPE_KEY, TYPE_FIFO)];
                    self.write_entry(&NewEntry { extra: &extra, ..entry(path, &attributes) })?;
                    Ok(Packed::Done)
                }
            };
        }
        self.report.fifos += 1;
        let extra: [(&[u8], &[u8]); 1] = [(TYPE_KEY, TYPE_FIFO)];
        match self.compatible {
            true => self.write_entry(&NewEntry { extra: &extra, ..entry(path, &attributes) })?,
            false => self.write_entry(&NewEntry { kind: b'6', ..entry(path, &attributes) })?,
        }
        Ok(Packed::Done)
    }

    fn write_link(&mut self, first: &[u8], stat: &Stat, path: &[u8]) -> Result<Packed, CopyError> {
        self.report.hard_links += 1;
        self.write_entry(&NewEntry { kind: b'1', link: first, ..entry(path, &Attributes::of(stat)) })?;
        Ok(Packed::Done)
    }

    /// The path under which the archive already contains the inode. Records `path` for an inode that is new.
    fn first_path(&mut self, stat: &Stat, path: &[u8]) -> Option<Vec<u8>> {
        if stat.st_nlink <= 1 {
            return None;
        }
        let key = (stat.st_dev, stat.st_ino);
        let first = self.links.get(&key).cloned();
        if first.is_none() {
            self.links.insert(key, path.to_vec());
        }
        first
    }

    fn pack_file(&mut self, file: &File, stat: &Stat, path: &[u8]) -> Result<Packed, CopyError> {
        let size = stat.st_size.unsigned_abs();
        let mut attributes = Attributes::of(stat);
        attributes.xattrs = match attributes::read_xattrs(file.as_fd()) {
            Err(error) if beneath::is_gone(&error) => return Ok(Packed::Gone),
            result => result.map_err(|source| {
                CopyError::call("read the extended attributes of", display(path), source)
            })?,
        };
        let ranges = match data::data_ranges(file, size) {
            Err(error) if beneath::is_gone(&error) => return Ok(Packed::Gone),
            result => result.map_err(|source| CopyError::call("read", display(path), source))?,
        };
        let first = self.first_path(stat, path);
        match &first {
            Some(first) if !self.compatible => return self.write_link(first, stat, path),
            Some(_) => self.report.hard_links += 1,
            None => {
                self.report.files += 1;
                self.report.bytes += size;
                let blocks = stat.st_blocks.unsigned_abs();
                *self.report.allocated.get_or_insert_default() += allocated(size, blocks);
            }
        }
        let extra: Vec<(&[u8], &[u8])> = first.iter().map(|first| (HARD_LINK_KEY, &first[..])).collect();
        let dense = size == 0 || ranges == [(0, size)];
        let sparse = (!dense).then_some(&ranges[..]);
        let new = NewEntry { size, sparse, extra: &extra, ..entry(path, &attributes) };
        let stored = self.writer.begin(&new).map_err(write_error)?;
        let mut complete = true;
        for (start, end) in if size == 0 { &[][..] } else { &ranges[..] } {
            complete &= self.write_range(file, *start, *end, path)?;
        }
        self.writer.pad(stored).map_err(write_error)?;
        let changed = match rustix::fs::fstat(file) {
            Ok(after) => {
                let key = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
                key(stat) != key(&after)
            }
            Err(_) => true,
        };
        if changed || !complete {
            self.report.changed += 1;
        }
        Ok(Packed::Done)
    }

    /// Writes a range of a file. Bytes that cannot be read because the file shrank or was removed are written as zeroes,
    /// because the header contains the earlier size. Returns whether all bytes could be read.
    fn write_range(&mut self, file: &File, start: u64, end: u64, path: &[u8]) -> Result<bool, CopyError> {
        let (mut at, mut complete) = (start, true);
        while at < end {
            let step = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.buffer.len());
            let read = match file.read_at(&mut self.buffer[..step], at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if beneath::is_gone(&error) => 0,
                result => result.map_err(|source| CopyError::call("read", display(path), source))?,
            };
            let written = if read == 0 {
                complete = false;
                self.buffer[..step].fill(0);
                step
            } else {
                read
            };
            self.writer.write(&self.buffer[..written]).map_err(write_error)?;
            self.reporter.advance(0, written as u64)?;
            at += written as u64;
        }
        Ok(complete)
    }
}

enum Packed {
    Done,
    Directory(Level),
    Gone,
}

/// An empty regular file with these attributes.
fn entry<'a>(path: &'a [u8], attributes: &'a Attributes) -> NewEntry<'a> {
    NewEntry { path, kind: b'0', attributes, link: b"", size: 0, sparse: None, extra: &[] }
}

fn read_xattrs(file: BorrowedFd<'_>, path: &[u8]) -> Result<attributes::Xattrs, CopyError> {
    match attributes::read_xattrs(file) {
        Err(error) if beneath::is_gone(&error) => Ok(Vec::new()),
        result => {
            result.map_err(|source| CopyError::call("read the extended attributes of", display(path), source))
        }
    }
}

fn list(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    beneath::each_entry(dir, |name, _| {
        names.push(name.to_owned());
        Ok::<_, io::Error>(())
    })?;
    Ok(names)
}

fn join(dir: &[u8], name: &CStr) -> Vec<u8> {
    if dir.is_empty() { name.to_bytes().to_vec() } else { [dir, b"/", name.to_bytes()].concat() }
}

fn display(path: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(path))
}
