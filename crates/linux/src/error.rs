//! Errors of the seam: each names the call or program, the object and what the kernel said.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a kernel call or a child process answered.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A kernel call or a child process that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{call} {}: {source}", path.display())]
    Call {
        /// The call.
        call: &'static str,
        /// Its object.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("{program} could not be started: {source}; is it installed?")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A program did not end in time and was killed.
    #[error("{program} on {} did not end within {}s and was killed", path.display(), deadline.as_secs())]
    Deadline {
        /// The program.
        program: String,
        /// Its object.
        path: PathBuf,
        /// How long it had.
        deadline: Duration,
    },
    /// A program ended with a failure.
    #[error("{program} on {} failed ({status}): {stderr}", path.display())]
    Program {
        /// The program.
        program: String,
        /// Its object.
        path: PathBuf,
        /// Exit status or signal, in words.
        status: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// Something was found in a state in which the call would be unsafe or meaningless.
    #[error("{}: {reason}", path.display())]
    State {
        /// The object.
        path: PathBuf,
        /// What is the matter, and what to do.
        reason: String,
    },
    /// Somebody uses it, so it was left as it is.
    #[error("{}: {reason}", path.display())]
    InUse {
        /// The object.
        path: PathBuf,
        /// By whom, as far as that is known, and what to do.
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

/// Why a file system is not fit to be mounted.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The check found damage that it does not repair by itself.
    #[error("{fs} on {} is damaged and was not repaired: {details}", device.display())]
    Damaged {
        /// File system type.
        fs: crate::FsType,
        /// Where.
        device: PathBuf,
        /// What the check said.
        details: String,
    },
    /// The check could not be done.
    #[error(transparent)]
    Check(#[from] Error),
}
