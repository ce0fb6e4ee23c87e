//! An open share: its file operations and where its own files are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::During as _;
use super::files::{LinuxFiles, ShareFiles};
use super::record::{Envelope, ShareRecord, VERSION, to_bytes};
use super::{ErrorKind, Request, Response, ShareError};
use crate::path::RECORDS;

/// What a share takes from the process: randomness and limits.
#[derive(Clone)]
pub struct ShareEnvironment {
    /// Returns a new random ID: a UUID.
    pub new_id: Arc<dyn Fn() -> Result<String, ShareError> + Send + Sync>,
    /// How old something unfinished must be before recovery takes it for abandoned. Longer than any request runs.
    pub grace: Duration,
}

impl Default for ShareEnvironment {
    /// Random UUIDs, and one hour.
    fn default() -> Self {
        let new_id = || {
            wharf_linux::random_uuid().map_err(|error| {
                ShareError::new(ErrorKind::Internal, format!("failed to read a random UUID: {error}"))
            })
        };
        Self { new_id: Arc::new(new_id), grace: Duration::from_secs(3600) }
    }
}

/// An open share.
pub struct Share {
    pub(super) files: Arc<dyn ShareFiles>,
    pub(super) environment: ShareEnvironment,
}

impl Share {
    /// Opens the share that is mounted at `root`. Creates nothing.
    pub fn open(root: &Path, environment: ShareEnvironment) -> Result<Self, ShareError> {
        let files = LinuxFiles::open(root).during("open the root of the share", "")?;
        Ok(Self::with_files(Arc::new(files), environment))
    }

    /// A share with these file operations.
    pub fn with_files(files: Arc<dyn ShareFiles>, environment: ShareEnvironment) -> Self {
        Self { files, environment }
    }

    /// Serves one request.
    pub fn handle(&self, request: Request) -> Response {
        let _ = &request;
        Response::Recover(Err(ShareError::new(ErrorKind::Internal, "not built yet")))
    }

    /// The file operations.
    pub fn files(&self) -> &dyn ShareFiles {
        &*self.files
    }

    pub(super) fn new_id(&self) -> Result<String, ShareError> {
        (self.environment.new_id)()
    }

    /// Creates `.wharf` and its directories, if they do not exist. Only operations that create something call it, so a share
    /// on which the driver has nothing is never written to.
    pub(super) fn ensure_records(&self) -> Result<(), ShareError> {
        let share = own(["share.json"]);
        if self.files.stat(&share).during("read", "the share's record")?.is_some() {
            return Ok(());
        }
        self.ensure_dir(&own([]))?;
        for name in ["volumes", "directories", "staging", "trash", "tmp", "snapshots", "jobs"] {
            self.ensure_dir(&own([name]))?;
        }
        let record = ShareRecord { uuid: self.new_id()? };
        let key = "share".to_owned();
        let envelope = Envelope { version: VERSION, write: record.uuid.clone(), key, record: Some(record) };
        self.publish(&to_bytes(&envelope), &share).map(drop)
    }

    /// Creates one of the driver's own directories; an existing one is success.
    pub(super) fn ensure_dir(&self, dir: &Path) -> Result<(), ShareError> {
        let object = dir.display().to_string();
        match self.files.create_dir(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let entry = self.files.stat(dir).during("read", &object)?;
                match entry.map(|entry| entry.kind) {
                    Some(super::files::EntryKind::Directory) => Ok(()),
                    _ => Err(ShareError::new(
                        ErrorKind::Precondition,
                        format!(
                            "{object} is not a directory: move it away, the driver keeps its records there"
                        ),
                    )),
                }
            }
            created => created.during("create", &object),
        }
    }
}

/// A path in `.wharf`.
pub(super) fn own<const N: usize>(parts: [&str; N]) -> PathBuf {
    let mut path = PathBuf::from(RECORDS);
    path.extend(parts);
    path
}
