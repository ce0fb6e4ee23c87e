//! Copies a directory tree beneath two open directories. [`copy_tree`] is the entry point.
//!
//! Guarantees: no symlink is followed and no other file system is entered, on either side. The copy keeps owners, modes,
//! times, extended attributes, ACLs, hard links, holes, symlinks and FIFOs, or it fails and names the file. When the
//! function returns without an error, everything is on stable storage, and every write error was seen.
//!
//! The source can be in use. Each file is copied as it is at some moment; files that change or disappear meanwhile are
//! counted in the [`CopyReport`]. The target must be empty, and no other process may write to it.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) mod attributes;
pub(crate) mod beneath;
mod counters;
pub(crate) mod data;
mod links;
mod queue;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod walk;

/// How often the progress callback is called.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Copying small files over NFS waits for the network most of the time.
const DEFAULT_THREADS: usize = 8;

/// How to copy.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Number of threads, at least one.
    pub threads: usize,
    /// What to do about an attribute that cannot be set.
    pub keep: Keep,
    /// How to check the copy.
    pub verify: Verify,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { threads: DEFAULT_THREADS, keep: Keep::Exact, verify: Verify::Sizes }
    }
}

/// What to do about an owner, mode, time or extended attribute that cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// Fail and name the file.
    Exact,
    /// Count it and continue.
    BestEffort,
}

/// How to check a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Compare the number of entries of each directory and the size of each file.
    Sizes,
    /// Also read each file and its copy, and compare the contents.
    Contents,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Entries that are complete.
    pub entries: u64,
    /// Bytes of file contents that are complete.
    pub bytes: u64,
}

/// What a copy, an archive or a restore contains, and what it does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CopyReport {
    /// Directories, without the root.
    pub directories: u64,
    /// Regular files, each inode once.
    pub files: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// FIFOs.
    pub fifos: u64,
    /// Further names of inodes that are counted elsewhere.
    pub hard_links: u64,
    /// Sum of the files' sizes, holes included.
    pub bytes: u64,
    /// The same without holes: what a file system needs for the contents, without metadata. `None` if it was not counted.
    pub allocated: Option<u64>,
    /// Files whose contents share the original's blocks.
    pub cloned: u64,
    /// Files that changed while they were copied.
    pub changed: u64,
    /// Entries that disappeared after their directory was read.
    pub vanished: u64,
    /// Sockets, which are not copied: they mean nothing without the process that listens.
    pub sockets: u64,
    /// Device nodes, which are not copied.
    pub devices: u64,
    /// Attributes that could not be kept, see [`Keep::BestEffort`].
    pub not_kept: u64,
}

/// The bytes of a file that are not holes. A file can also have blocks beyond its end, and small files have whole blocks.
pub(crate) fn allocated(size: u64, blocks: u64) -> u64 {
    const BLOCK: u64 = 512;
    size.min(blocks.saturating_mul(BLOCK))
}

impl CopyReport {
    /// Entries that the result contains.
    pub fn entries(&self) -> u64 {
        self.directories + self.files + self.symlinks + self.fifos + self.hard_links
    }
}

/// Why a tree was not copied, packed or unpacked. Paths are relative to the tree.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A system call failed.
    #[error("failed to {step} {}: {source}{}", show(path), remedy(source))]
    Call {
        /// What was being done.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// An attribute cannot be kept.
    #[error("cannot keep the {what} of {}: {source}{}", show(path), remedy(source))]
    NotKept {
        /// Which attribute.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another file system is mounted in the tree.
    #[error(
        "{} is on another file system (a nested export or mount), which is not copied: use it as a volume of its own",
        show(path)
    )]
    OtherFileSystem {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// The copy differs from the original, although no call failed.
    #[error(
        "the copy of {} is not correct: {reason}; check the server's storage, then try again",
        show(path)
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// An archive is damaged, or contains what no archive of a volume contains.
    #[error("the archive is damaged or not safe to unpack at byte {offset}: {reason}")]
    Archive {
        /// Where in the uncompressed archive.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The progress callback asked to stop.
    #[error("the copy was cancelled")]
    Cancelled,
}

impl CopyError {
    pub(crate) fn call(step: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Call { step, path: path.into(), source: source.into() }
    }

    /// The kernel's error behind this one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Call { source, .. } | Self::NotKept { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A path for a message; of a long one, the end. The users of a volume can make paths of any length, and messages become part of
/// records and of gRPC's headers.
fn show(path: &std::path::Path) -> String {
    const MAX: usize = 1024;
    let text = path.display().to_string();
    match text.len() {
        0 => "the volume's directory".to_owned(),
        1..=MAX => text,
        length => {
            let start = (length - MAX..length).find(|start| text.is_char_boundary(*start));
            format!("…{}", &text[start.unwrap_or(length)..])
        }
    }
}

/// What to do about an error that a user can remove.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; export the share with no_root_squash",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free space on the share",
        _ => "",
    }
}

/// Copies the contents and attributes of the directory `from` to the empty directory `to`.
///
/// `progress` is called on the calling thread about twice per second; `Break` cancels the copy. After an error the target is
/// incomplete: remove it.
pub fn copy_tree(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    options: &CopyOptions,
    progress: &dyn Fn(Progress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    let walk = walk::Walk::new(from, to, options)?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads.max(1)).map(|_| scope.spawn(|| walk.work())).collect();
        // A worker ends before the queue only if it panics; the scope then passes the panic on.
        while !walk.wait(PROGRESS_INTERVAL) && !workers.iter().any(thread::ScopedJoinHandle::is_finished) {
            if progress(walk.progress()).is_break() {
                walk.cancel();
            }
        }
    });
    let report = walk.finish()?;
    // The last call also tells a caller that asks for a copy of an empty tree to stop in time.
    match progress(Progress { entries: report.entries(), bytes: report.bytes }) {
        ControlFlow::Continue(()) => Ok(report),
        ControlFlow::Break(()) => Err(CopyError::Cancelled),
    }
}
