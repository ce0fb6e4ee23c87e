//! Creates the entries of an archive beneath an open directory.
//!
//! Symlinks and hard links are created after everything else, directories get their attributes last. No path is
//! followed through a symlink, and nothing that exists is replaced, so an archive cannot reach outside the directory
//! whatever it contains.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::io::Errno;

use super::reader::{Entry, Kind, Reader};
use super::{BUFFER, Reporter};
use crate::copy::attributes::{self, Attributes, NotKept};
use crate::copy::{CopyError, CopyReport, Keep, Progress, beneath};

/// `f_type` of NFS.
const NFS_MAGIC: i64 = 0x6969;

/// Unpacks a stream to its end.
pub(super) fn unpack(
    input: &mut dyn Read,
    to: BorrowedFd<'_>,
    keep: Keep,
    progress: &dyn Fn(Progress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    let error = |step| move |source: io::Error| CopyError::call(step, "", source);
    if beneath::count_entries(to).map_err(error("list"))? != 0 {
        let source = io::Error::from(io::ErrorKind::DirectoryNotEmpty);
        return Err(CopyError::call("unpack to an empty directory", "", source));
    }
    attributes::remove_inherited_acls(to).map_err(error("remove inherited ACLs from"))?;
    let file_system = rustix::fs::fstatfs(to).map_err(io::Error::from).map_err(error("read"))?;
    let mut unpacker = Unpacker {
        root: to,
        keep,
        sync_each: file_system.f_type == NFS_MAGIC,
        report: CopyReport::default(),
        reporter: Reporter::new(progress),
        chain: Vec::new(),
        directories: Vec::new(),
        symlinks: Vec::new(),
        hard_links: Vec::new(),
        buffer: vec![0; BUFFER],
    };
    let mut reader = Reader::new(input);
    while let Some(entry) = reader.next()? {
        unpacker.create(&mut reader, entry)?;
        unpacker.reporter.advance(1, 0)?;
    }
    unpacker.finish()
}

type Path = Vec<CString>;

struct Unpacker<'a> {
    root: BorrowedFd<'a>,
    keep: Keep,
    sync_each: bool,
    report: CopyReport,
    reporter: Reporter<'a>,
    /// The open directories of the last path.
    chain: Vec<(CString, OwnedFd)>,
    directories: Vec<(Path, Attributes)>,
    symlinks: Vec<(Path, CString, Attributes)>,
    hard_links: Vec<(Path, Path)>,
    buffer: Vec<u8>,
}

impl Unpacker<'_> {
    fn create(&mut self, reader: &mut Reader<'_>, entry: Entry) -> Result<(), CopyError> {
        let path = to_names(entry.path, reader)?;
        match entry.kind {
            Kind::Directory => {
                self.open(&path, true)?;
                self.directories.push((path, entry.attributes));
                Ok(())
            }
            Kind::Symlink(target) => {
                let target =
                    CString::new(target).map_err(|_| reader.error("a symlink's target has a NUL"))?;
                self.symlinks.push((path, target, entry.attributes));
                Ok(())
            }
            Kind::HardLink(first) => {
                let first = to_names(first, reader)?;
                self.hard_links.push((path, first));
                Ok(())
            }
            Kind::Fifo => {
                let error = call("create", &path);
                let (dir, name) = self.parent(&path, true)?;
                let fifo = beneath::create_fifo(dir, name).map_err(error)?;
                self.report.fifos += 1;
                self.apply(&entry.attributes, fifo.as_fd(), &path)
            }
            Kind::File => self.create_file(reader, &entry.attributes, entry.size, &entry.pieces, &path),
        }
    }

    fn create_file(
        &mut self,
        reader: &mut Reader<'_>,
        attributes: &Attributes,
        size: u64,
        pieces: &[(u64, u64)],
        path: &[CString],
    ) -> Result<(), CopyError> {
        let (dir, name) = self.parent(path, true)?;
        let file =
            beneath::create_file(dir, name, attributes.creation_mode()).map_err(call("create", path))?;
        let file = File::from(file);
        for (start, length) in pieces {
            let (mut at, mut left) = (*start, *length);
            while left > 0 {
                let step = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
                let read = reader.read(&mut self.buffer[..step])?;
                if read == 0 {
                    return Err(reader.error("a file has less data than announced"));
                }
                file.write_all_at(&self.buffer[..read], at).map_err(call("write", path))?;
                self.reporter.advance(0, read as u64)?;
                at += read as u64;
                left -= read as u64;
            }
        }
        // For a hole at the end. The last piece can be empty.
        let end = pieces.iter().filter(|(_, length)| *length > 0).map(|(start, length)| start + length).max();
        if end.unwrap_or(0) < size {
            file.set_len(size).map_err(call("set the size of", path))?;
        }
        self.apply(attributes, file.as_fd(), path)?;
        if self.sync_each {
            file.sync_all().map_err(call("sync", path))?;
        }
        let found = file.metadata().map_err(call("read", path))?.len();
        if found != size {
            let reason = format!("it has {found} bytes instead of {size}");
            return Err(CopyError::Mismatch { path: display(path), reason });
        }
        self.report.files += 1;
        self.report.bytes += size;
        Ok(())
    }

    fn finish(mut self) -> Result<CopyReport, CopyError> {
        for (path, target, attributes) in std::mem::take(&mut self.symlinks) {
            let error = call("create", &path);
            let (keep, mut not_kept) = (self.keep, 0);
            let (dir, name) = self.parent(&path, true)?;
            beneath::create_symlink(dir, name, &target).map_err(error)?;
            attributes.apply_to_symlink(dir, name, |problem| check(keep, &mut not_kept, problem, &path))?;
            self.report.not_kept += not_kept;
            self.report.symlinks += 1;
            self.reporter.advance(0, 0)?;
        }
        for (path, first) in std::mem::take(&mut self.hard_links) {
            let error = call("link", &path);
            let (first_dir, first_name) = self.parent(&first, false)?;
            let first_dir = first_dir.try_clone_to_owned().map_err(call("open", &first))?;
            let (dir, name) = self.parent(&path, true)?;
            beneath::create_link(first_dir, first_name, dir, name).map_err(error)?;
            self.report.hard_links += 1;
            self.reporter.advance(0, 0)?;
        }
        // Children before their parents: a parent's mode can forbid to enter it.
        let mut directories = std::mem::take(&mut self.directories);
        directories.sort_by(|one, other| other.0.cmp(&one.0));
        for (path, attributes) in directories {
            let dir = self.open(&path, false)?.try_clone_to_owned().map_err(call("open", &path))?;
            self.apply(&attributes, dir.as_fd(), &path)?;
            if self.sync_each {
                rustix::fs::fsync(&dir).map_err(|errno| call("sync", &path)(errno.into()))?;
            }
            self.reporter.advance(0, 0)?;
        }
        if !self.sync_each {
            rustix::fs::syncfs(self.root).map_err(|errno| CopyError::call("sync", "", errno))?;
        }
        self.reporter.report()?;
        Ok(self.report)
    }

    fn apply(
        &mut self,
        attributes: &Attributes,
        file: BorrowedFd<'_>,
        path: &[CString],
    ) -> Result<(), CopyError> {
        let not_kept = &mut self.report.not_kept;
        attributes.apply(file, |problem| check(self.keep, not_kept, problem, path))
    }

    /// The directory of an entry, and the entry's name.
    fn parent<'p>(
        &mut self,
        path: &'p [CString],
        create: bool,
    ) -> Result<(BorrowedFd<'_>, &'p CString), CopyError> {
        let Some((name, parent)) = path.split_last() else {
            let source = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(CopyError::call("create", "", source));
        };
        Ok((self.open(parent, create)?, name))
    }

    /// Opens a directory, one component at a time. The directories of the last path stay open: archives are in the order of
    /// a walk.
    fn open(&mut self, path: &[CString], create: bool) -> Result<BorrowedFd<'_>, CopyError> {
        let same = self.chain.iter().zip(path).take_while(|((open, _), name)| open == *name).count();
        self.chain.truncate(same);
        for depth in same..path.len() {
            let name = &path[depth];
            let dir = self.chain.last().map_or(self.root, |(_, dir)| dir.as_fd());
            let here = &path[..=depth];
            let opened = match beneath::open_dir(dir, name) {
                Err(error) if create && beneath::is_errno(&error, Errno::NOENT) => {
                    self.report.directories += 1;
                    beneath::create_dir(dir, name).map_err(call("create", here))?
                }
                result => result.map_err(call("open", here))?,
            };
            self.chain.push((name.clone(), opened));
        }
        Ok(self.chain.last().map_or(self.root, |(_, dir)| dir.as_fd()))
    }
}

fn check(keep: Keep, count: &mut u64, problem: NotKept, path: &[CString]) -> Result<(), CopyError> {
    match keep {
        Keep::Exact => {
            Err(CopyError::NotKept { what: problem.what, path: display(path), source: problem.source })
        }
        Keep::BestEffort => {
            *count += 1;
            Ok(())
        }
    }
}

fn to_names(path: Vec<Vec<u8>>, reader: &Reader<'_>) -> Result<Path, CopyError> {
    let names = path.into_iter().map(|name| CString::new(name).map_err(|_| reader.error("a name has a NUL")));
    names.collect()
}

fn call(step: &'static str, path: &[CString]) -> impl Fn(io::Error) -> CopyError + use<> {
    let path = display(path);
    move |source| CopyError::call(step, path.clone(), source)
}

fn display(path: &[CString]) -> PathBuf {
    path.iter().map(|name| OsStr::from_bytes(name.to_bytes())).collect()
}
