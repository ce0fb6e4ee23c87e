//! Errors of the kernel traits. Each names the system call or program, its object and the cause.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of a system call or program.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A system call or program that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{call} {}: {source}", path.display())]
    Call {
        /// Name of the system call.
        call: &'static str,
        /// The file, device or mount point it was made on.
        path: PathBuf,
        /// The error that the kernel returned.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("failed to start {program}: {source}; is it installed?")]
    Spawn {
        /// Name of the program.
        program: String,
        /// The error of the start.
        source: io::Error,
    },
    /// A program did not exit in time.
    #[error(
        "{program} on {} did not exit within {}s and {}", path.display(), deadline.as_secs(),
        if *killed { "was killed" } else { "still runs: retry when it is done" }
    )]
    TimedOut {
        /// Name of the program.
        program: String,
        /// The device or mount point it worked on.
        path: PathBuf,
        /// How long the caller waited.
        deadline: Duration,
        /// Whether the program was killed. One that moves data of a file system is not.
        killed: bool,
    },
    /// A program exited with a failure.
    #[error("{program} on {} failed ({status}): {stderr}", path.display())]
    ProgramFailed {
        /// Name of the program.
        program: String,
        /// The device or mount point it worked on.
        path: PathBuf,
        /// Description of the exit code or signal.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// The object is in a state in which the call would be unsafe or meaningless.
    #[error("{}: {reason}", path.display())]
    InvalidState {
        /// The file, device or mount point.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The object is in use and was not changed.
    #[error("{}: {reason}", path.display())]
    InUse {
        /// The file, device or mount point.
        path: PathBuf,
        /// The user, as far as it is known, and what to do.
        reason: String,
    },
}

impl Error {
    /// A failed system call on `path`.
    pub fn call(call: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Call { call, path: path.to_owned(), source: source.into() }
    }

    /// The errno behind a failed call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// Why a file system cannot be mounted safely.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The check found damage that it does not repair automatically.
    #[error("{fs} on {} is damaged and was not repaired: {details}", device.display())]
    Damaged {
        /// File system type.
        fs: crate::FsType,
        /// The device of the file system.
        device: PathBuf,
        /// The output of the check.
        details: String,
    },
    /// The check could not be run.
    #[error(transparent)]
    Check(#[from] Error),
}
