//! Walks the source with several threads and copies each entry.
//!
//! A directory gets its attributes when everything in it is complete: creating an entry changes its times, and its mode
//! can forbid it. [`Node`] counts what is open.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};

use super::attributes::{self, Attributes, NotKept};
use super::counters::{Counters, add, count};
use super::data::{self, Methods};
use super::links::{Claim, Links};
use super::queue::Queue;
use super::{CopyError, CopyOptions, Keep, Progress, beneath};

mod file;

/// Entries that one thread copies before it looks for other work.
const BATCH: usize = 32;

/// The maximum depth of a tree. PATH_MAX lets programs reach 2047 levels. Each level needs two open files and a stack frame.
const MAX_DEPTH: usize = 2048;

/// How often an entry is examined again if its type changes during the copy.
const ATTEMPTS: usize = 3;

/// `f_type` of NFS.
const NFS_MAGIC: i64 = 0x6969;

type Name = (CString, FileType);

pub(super) struct Walk<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    options: &'a CopyOptions,
    queue: Queue<Task, CopyError>,
    links: Links<(Arc<Node>, CString)>,
    methods: Methods,
    counters: Counters,
    /// On NFS each file is synced when it is complete: closing it would flush it anyway, and the error belongs to a file.
    /// Elsewhere one syncfs at the end is much faster.
    sync_each: bool,
}

enum Task {
    /// Read a directory.
    Scan(Arc<Node>),
    /// Copy entries of a directory.
    Entries(Arc<Node>, Vec<Name>),
}

/// A directory that is being copied.
struct Node {
    parent: Option<Arc<Node>>,
    name: CString,
    from: OwnedFd,
    to: OwnedFd,
    stat: Stat,
    depth: usize,
    /// Tasks, waiting links and child directories that are not complete.
    open: AtomicUsize,
    /// Entries that were created in the copy.
    created: AtomicU64,
}

impl Node {
    fn names(&self) -> Vec<CString> {
        let mut names = self.parent.as_ref().map(|parent| parent.names()).unwrap_or_default();
        if self.parent.is_some() {
            names.push(self.name.clone());
        }
        names
    }

    fn path(&self) -> PathBuf {
        beneath::display_path(self.names().iter().map(CString::as_c_str))
    }

    fn path_of(&self, name: &CStr) -> PathBuf {
        self.path().join(OsStr::from_bytes(name.to_bytes()))
    }

    fn error(&self, step: &'static str, name: &CStr) -> impl FnOnce(io::Error) -> CopyError {
        let path = self.path_of(name);
        move |source| match source.kind() {
            io::ErrorKind::CrossesDevices => CopyError::OtherFileSystem { path },
            _ => CopyError::Call { step, path, source },
        }
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        from: BorrowedFd<'a>,
        to: BorrowedFd<'a>,
        options: &'a CopyOptions,
    ) -> Result<Self, CopyError> {
        let error = |step| move |source: io::Error| CopyError::call(step, "", source);
        let stat = rustix::fs::fstat(from).map_err(io::Error::from).map_err(error("read"))?;
        if beneath::count_entries(to).map_err(error("list the copy of"))? != 0 {
            let source = io::Error::from(io::ErrorKind::DirectoryNotEmpty);
            return Err(CopyError::call("copy to an empty directory", "", source));
        }
        attributes::remove_inherited_acls(to).map_err(error("remove inherited ACLs from the copy of"))?;
        let file_system = rustix::fs::fstatfs(to).map_err(io::Error::from).map_err(error("read"))?;
        let root = Node {
            parent: None,
            name: CString::default(),
            from: from.try_clone_to_owned().map_err(error("open"))?,
            to: to.try_clone_to_owned().map_err(error("open"))?,
            stat,
            depth: 0,
            open: AtomicUsize::new(1),
            created: AtomicU64::new(0),
        };
        Ok(Self {
            from,
            to,
            options,
            queue: Queue::new(Task::Scan(Arc::new(root))),
            links: Links::default(),
            methods: Methods::default(),
            counters: Counters::default(),
            sync_each: file_system.f_type == NFS_MAGIC,
        })
    }

    /// Works until everything is copied, or something failed.
    pub(super) fn work(&self) {
        let mut buffer = vec![0; data::BUFFER];
        self.queue.work(|task| match task {
            Task::Scan(node) => {
                self.scan(&node)?;
                self.release(&node)
            }
            Task::Entries(node, names) => {
                for (name, kind) in names {
                    if self.queue.has_ended() {
                        return Ok(());
                    }
                    self.copy_entry(&node, &name, kind, &mut buffer)?;
                }
                self.release(&node)
            }
        });
    }

    pub(super) fn wait(&self, limit: Duration) -> bool {
        self.queue.wait(limit)
    }

    pub(super) fn progress(&self) -> Progress {
        self.counters.progress()
    }

    pub(super) fn cancel(&self) {
        self.queue.fail(CopyError::Cancelled);
    }

    pub(super) fn finish(self) -> Result<super::CopyReport, CopyError> {
        self.queue.into_result()?;
        // If the export itself is gone, every entry looks as if it had vanished.
        rustix::fs::statx(
            self.from,
            c"",
            AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC,
            StatxFlags::BASIC_STATS,
        )
        .map_err(|errno| CopyError::call("read again", "", errno))?;
        if !self.sync_each {
            rustix::fs::syncfs(self.to).map_err(|errno| CopyError::call("sync the copy of", "", errno))?;
        }
        Ok(self.counters.report())
    }

    fn scan(&self, node: &Arc<Node>) -> Result<(), CopyError> {
        let mut batch: Vec<Name> = Vec::with_capacity(BATCH);
        let push = |names: Vec<Name>| {
            node.open.fetch_add(1, Ordering::Relaxed);
            self.queue.push([Task::Entries(node.clone(), names)]);
        };
        let result = beneath::each_entry(node.from.as_fd(), |name, kind| {
            // Each directory is a task of its own: it stays open until its turn is over.
            if kind == FileType::Directory {
                push(vec![(name.to_owned(), kind)]);
                return Ok::<_, io::Error>(());
            }
            batch.push((name.to_owned(), kind));
            if batch.len() == BATCH {
                push(std::mem::take(&mut batch));
            }
            Ok(())
        });
        if !batch.is_empty() {
            push(batch);
        }
        match result {
            // The directory was removed while it was read.
            Err(error) if beneath::is_gone(&error) && node.parent.is_some() => {
                count(&self.counters.vanished);
                Ok(())
            }
            result => result.map_err(|source| CopyError::call("list", node.path(), source)),
        }
    }

    /// One thing in the directory is complete. After the last one, the directory is complete too.
    fn release(&self, node: &Arc<Node>) -> Result<(), CopyError> {
        let mut node = node;
        while node.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete_dir(node)?;
            match &node.parent {
                Some(parent) => node = parent,
                None => break,
            }
        }
        Ok(())
    }

    fn complete_dir(&self, node: &Node) -> Result<(), CopyError> {
        let error = |step| move |source: io::Error| CopyError::call(step, node.path(), source);
        let expected = node.created.load(Ordering::Relaxed);
        let found = beneath::count_entries(node.to.as_fd()).map_err(error("list the copy of"))?;
        if found != expected {
            let reason = format!("it has {found} entries instead of {expected}");
            return Err(CopyError::Mismatch { path: node.path(), reason });
        }
        let mut attributes = Attributes::of(&node.stat);
        attributes.xattrs = match attributes::read_xattrs(node.from.as_fd()) {
            Err(gone) if beneath::is_gone(&gone) => Vec::new(),
            result => result.map_err(error("read the extended attributes of"))?,
        };
        attributes.apply(node.to.as_fd(), |problem| self.not_kept(problem, || node.path()))?;
        if self.sync_each {
            rustix::fs::fsync(&node.to).map_err(|errno| error("sync the copy of")(errno.into()))?;
        }
        Ok(())
    }

    fn not_kept(&self, problem: NotKept, path: impl FnOnce() -> PathBuf) -> Result<(), CopyError> {
        match self.options.keep {
            Keep::Exact => {
                Err(CopyError::NotKept { what: problem.what, path: path(), source: problem.source })
            }
            Keep::BestEffort => {
                count(&self.counters.not_kept);
                Ok(())
            }
        }
    }

    fn copy_entry(
        &self,
        node: &Arc<Node>,
        name: &CStr,
        kind: FileType,
        buffer: &mut [u8],
    ) -> Result<(), CopyError> {
        let mut kind = kind;
        for _ in 0..ATTEMPTS {
            let result = match kind {
                FileType::Directory => self.enter_dir(node, name)?,
                FileType::RegularFile => self.copy_file(node, name, buffer)?,
                FileType::Socket => {
                    count(&self.counters.sockets);
                    Outcome::Done
                }
                FileType::CharacterDevice | FileType::BlockDevice => {
                    count(&self.counters.devices);
                    Outcome::Done
                }
                FileType::Symlink => self.copy_symlink(node, name)?,
                FileType::Fifo => self.copy_fifo(node, name)?,
                FileType::Unknown => Outcome::OtherType,
            };
            match result {
                Outcome::Done => return Ok(()),
                Outcome::Gone => break,
                Outcome::OtherType => match beneath::stat(&node.from, name) {
                    Ok(stat) => kind = beneath::kind(&stat),
                    Err(error) if beneath::is_gone(&error) => break,
                    Err(error) => return Err(node.error("read", name)(error)),
                },
            }
        }
        count(&self.counters.vanished);
        Ok(())
    }

    fn enter_dir(&self, node: &Arc<Node>, name: &CStr) -> Result<Outcome, CopyError> {
        if node.depth == MAX_DEPTH {
            let problem = format!("directories deeper than {MAX_DEPTH} levels are not copied");
            return Err(node.error("enter", name)(io::Error::other(problem)));
        }
        let from = match beneath::open_dir(&node.from, name) {
            Ok(from) => from,
            Err(error) => return Outcome::of(error).map_err(node.error("open", name)),
        };
        let stat = match rustix::fs::fstat(&from).map_err(io::Error::from) {
            Ok(stat) => stat,
            Err(error) => return Outcome::of(error).map_err(node.error("read", name)),
        };
        let to = beneath::create_dir(&node.to, name).map_err(node.error("create the copy of", name))?;
        node.created.fetch_add(1, Ordering::Relaxed);
        node.open.fetch_add(1, Ordering::Relaxed);
        count(&self.counters.directories);
        let child = Node {
            parent: Some(node.clone()),
            name: name.to_owned(),
            from,
            to,
            stat,
            depth: node.depth + 1,
            open: AtomicUsize::new(1),
            created: AtomicU64::new(0),
        };
        self.queue.push([Task::Scan(Arc::new(child))]);
        Ok(Outcome::Done)
    }

    fn copy_symlink(&self, node: &Arc<Node>, name: &CStr) -> Result<Outcome, CopyError> {
        let read = || {
            let stat = beneath::stat(&node.from, name)?;
            if beneath::kind(&stat) != FileType::Symlink {
                return Ok(None);
            }
            let target = rustix::fs::readlinkat(&node.from, name, Vec::new())?;
            Ok(Some((stat, target)))
        };
        let (stat, target) = match read() {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Outcome::OtherType),
            Err(error) => return Outcome::of(error).map_err(node.error("read", name)),
        };
        self.once(node, name, &stat, || {
            beneath::create_symlink(&node.to, name, &target)
                .map_err(node.error("create the copy of", name))?;
            count(&self.counters.symlinks);
            Attributes::of(&stat).apply_to_symlink(node.to.as_fd(), name, |problem| {
                self.not_kept(problem, || node.path_of(name))
            })?;
            Ok(true)
        })
    }

    fn copy_fifo(&self, node: &Arc<Node>, name: &CStr) -> Result<Outcome, CopyError> {
        let stat = match beneath::stat(&node.from, name) {
            Ok(stat) if beneath::kind(&stat) == FileType::Fifo => stat,
            Ok(_) => return Ok(Outcome::OtherType),
            Err(error) => return Outcome::of(error).map_err(node.error("read", name)),
        };
        self.once(node, name, &stat, || {
            let to = beneath::create_fifo(&node.to, name).map_err(node.error("create the copy of", name))?;
            count(&self.counters.fifos);
            Attributes::of(&stat)
                .apply(to.as_fd(), |problem| self.not_kept(problem, || node.path_of(name)))?;
            Ok(true)
        })
    }

    /// Runs `copy` unless the inode has a copy already; then this name is linked to it. `copy` returns false if the
    /// entry vanished.
    fn once(
        &self,
        node: &Arc<Node>,
        name: &CStr,
        stat: &Stat,
        copy: impl FnOnce() -> Result<bool, CopyError>,
    ) -> Result<Outcome, CopyError> {
        if stat.st_nlink <= 1 {
            return self.created(node, copy()?);
        }
        let path = || [node.names(), vec![name.to_owned()]].concat();
        let waiter = || {
            node.open.fetch_add(1, Ordering::Relaxed);
            (node.clone(), name.to_owned())
        };
        match self.links.claim(stat, path, waiter) {
            Claim::Wait => Ok(Outcome::Done),
            Claim::Link(path) => {
                self.link(&path, node, name)?;
                Ok(Outcome::Done)
            }
            Claim::Copy if copy()? => {
                let (path, waiting) = self.links.complete(stat);
                let outcome = self.created(node, true)?;
                for (node, name) in waiting {
                    self.link(&path, &node, &name)?;
                    self.release(&node)?;
                }
                Ok(outcome)
            }
            Claim::Copy => {
                // The other names hold their directory open; their task takes over.
                let kind = beneath::kind(stat);
                let again = self.links.abandon(stat).into_iter();
                self.queue.push(again.map(|(node, name)| Task::Entries(node, vec![(name, kind)])));
                Ok(Outcome::Gone)
            }
        }
    }

    fn created(&self, node: &Node, created: bool) -> Result<Outcome, CopyError> {
        if !created {
            return Ok(Outcome::Gone);
        }
        node.created.fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::Done)
    }

    fn link(&self, path: &[CString], node: &Node, name: &CStr) -> Result<(), CopyError> {
        let error = node.error("link the copy of", name);
        let Some((first, dirs)) = path.split_last() else { return Ok(()) };
        let result = beneath::open_dir_path(self.to, dirs)
            .and_then(|dir| beneath::create_link(dir, first, &node.to, name));
        result.map_err(error)?;
        node.created.fetch_add(1, Ordering::Relaxed);
        count(&self.counters.hard_links);
        Ok(())
    }

    fn advance(&self, bytes: u64) -> bool {
        add(&self.counters.done, bytes);
        !self.queue.has_ended()
    }
}

/// What happened to one entry.
enum Outcome {
    /// It was copied or counted, or another thread will do so.
    Done,
    /// It does not exist any more.
    Gone,
    /// Its type is not the one that the directory entry had.
    OtherType,
}

impl Outcome {
    /// Judges the error of opening or reading an entry of the source.
    fn of(error: io::Error) -> Result<Self, io::Error> {
        use rustix::io::Errno;
        if beneath::is_gone(&error) {
            return Ok(Self::Gone);
        }
        let other = [Errno::LOOP, Errno::NOTDIR, Errno::NXIO, Errno::NODEV];
        if other.iter().any(|errno| beneath::is_errno(&error, *errno)) {
            Ok(Self::OtherType)
        } else {
            Err(error)
        }
    }
}
