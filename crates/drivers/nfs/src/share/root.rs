//! An open share: its file operations and where its own files are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::error::During as _;
use super::files::{Entry, EntryKind, LinuxFiles, ShareFiles};
use super::record::{Envelope, ShareRecord, VERSION, to_bytes};
use super::{ErrorKind, Request, Response, ShareError};
use crate::agent::ServerAgent;
use crate::path::RECORDS;

/// What a share takes from the process: randomness and limits.
#[derive(Clone)]
pub struct ShareEnvironment {
    /// Returns a new random ID: a UUID.
    pub new_id: Arc<dyn Fn() -> Result<String, ShareError> + Send + Sync>,
    /// How old something unfinished must be before recovery takes it for abandoned. Longer than any request runs.
    pub grace: Duration,
    /// How often a copy shows that it is alive. After three times this long without a sign it is taken over.
    pub lease: Duration,
    /// The agent beside the NFS server, which sets quotas.
    pub agent: Option<Arc<dyn ServerAgent>>,
}

impl Default for ShareEnvironment {
    /// Random UUIDs, one hour, 20 seconds, and no agent.
    fn default() -> Self {
        let new_id = || {
            wharf_linux::random_uuid().map_err(|error| {
                ShareError::new(ErrorKind::Internal, format!("failed to read a random UUID: {error}"))
            })
        };
        Self {
            new_id: Arc::new(new_id),
            grace: Duration::from_secs(3600),
            lease: Duration::from_secs(20),
            agent: None,
        }
    }
}

/// An open share.
pub struct Share {
    pub(super) files: Arc<dyn ShareFiles>,
    pub(super) environment: ShareEnvironment,
    verified: AtomicBool,
    progress: AtomicU64,
}

impl Share {
    /// Opens the share that is mounted at `root`. Creates nothing.
    pub fn open(root: &Path, environment: ShareEnvironment) -> Result<Self, ShareError> {
        let files = LinuxFiles::open(root).during("open the root of the share", "")?;
        Ok(Self::with_files(Arc::new(files), environment))
    }

    /// A share with these file operations.
    pub fn with_files(files: Arc<dyn ShareFiles>, environment: ShareEnvironment) -> Self {
        Self { files, environment, verified: AtomicBool::new(false), progress: AtomicU64::new(0) }
    }

    /// Serves one request.
    pub fn handle(&self, request: Request) -> Response {
        let trusted = || self.verify_records();
        match request {
            Request::CreateVolume(request) => {
                Response::CreateVolume(trusted().and_then(|()| self.create_volume(&request)))
            }
            Request::DeleteVolume(request) => Response::DeleteVolume(
                self.with_reserve(|| trusted().and_then(|()| self.delete_volume(&request))),
            ),
            Request::GetVolume(request) => Response::GetVolume(self.get_volume(&request)),
            Request::ExpandVolume(request) => {
                Response::ExpandVolume(trusted().and_then(|()| self.expand_volume(&request)))
            }
            Request::Capacity => Response::Capacity(self.capacity()),
            Request::Recover => {
                Response::Recover(self.with_reserve(|| trusted().and_then(|()| self.recover())))
            }
            Request::PurgeTrash(request) => {
                Response::PurgeTrash(trusted().and_then(|()| self.purge_trash(&request)))
            }
            Request::Adopt(request) => Response::Adopt(trusted().and_then(|()| self.adopt(&request))),
            Request::CreateSnapshot(request) => {
                Response::CreateSnapshot(trusted().and_then(|()| self.create_snapshot(&request)))
            }
            Request::DeleteSnapshot(request) => Response::DeleteSnapshot(
                self.with_reserve(|| trusted().and_then(|()| self.delete_snapshot(&request.handle))),
            ),
            Request::GetSnapshot(request) => {
                Response::GetSnapshot(trusted().and_then(|()| self.get_snapshot(&request.handle)))
            }
            Request::ListSnapshots => Response::ListSnapshots(trusted().and_then(|()| self.list_snapshots())),
            Request::RunJob(request) => Response::RunJob(trusted().and_then(|()| self.run_job(&request.job))),
        }
    }

    /// The file operations.
    pub fn files(&self) -> &dyn ShareFiles {
        &*self.files
    }

    /// Shows that a background job makes progress.
    pub(super) fn tick(&self) {
        crate::worker::report_progress(self.progress.fetch_add(1, Ordering::Relaxed) + 1);
    }

    pub(super) fn new_id(&self) -> Result<String, ShareError> {
        (self.environment.new_id)()
    }

    /// Creates `.wharf` and its directories, if they do not exist. Only operations that create something call it, so a share
    /// on which the driver has nothing is never written to.
    pub(super) fn ensure_records(&self) -> Result<(), ShareError> {
        let share = own([SHARE_RECORD]);
        if self.has_records()? {
            return Ok(());
        }
        self.ensure_dir(&own([]))?;
        for name in ["volumes", "names", "directories", "staging", "trash", "tmp", "snapshots", "jobs"] {
            self.ensure_dir(&own([name]))?;
        }
        let record = ShareRecord { uuid: self.new_id()? };
        let key = "share".to_owned();
        let envelope = Envelope { version: VERSION, write: record.uuid.clone(), key, record: Some(record) };
        self.publish(&to_bytes(&envelope), &share)?;
        self.ensure_reserve()
    }

    /// Whether the driver has records on this share.
    pub(super) fn has_records(&self) -> Result<bool, ShareError> {
        Ok(self.files.stat(&own([SHARE_RECORD])).during("read", "the share's record")?.is_some())
    }

    /// The server's clock: ages of files are compared with it, since clocks of controllers differ.
    pub(super) fn server_time(&self) -> Result<SystemTime, ShareError> {
        self.probe().map(|entry| entry.modified)
    }

    /// The attributes of a new file of the driver: the server's clock, and the user that the server maps the driver to.
    fn probe(&self) -> Result<Entry, ShareError> {
        let probe = own(["tmp", &self.new_id()?]);
        match self.files.create_file(&probe, b"") {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            created => created.during("create", "a file to read the server's clock")?,
        }
        let entry = self.files.stat(&probe).during("read", "the server's clock")?;
        self.remove(&probe)?;
        entry.ok_or_else(|| {
            let message = "failed to read the server's clock: the file is gone; try again";
            ShareError::new(ErrorKind::Unavailable, message)
        })
    }

    /// Records decide what is deleted, so they must be the driver's own: a user who can write to the root of the share could
    /// have created `.wharf`. Checked once; without records there is nothing to check.
    fn verify_records(&self) -> Result<(), ShareError> {
        if self.verified.load(Ordering::Relaxed) || !self.has_records()? {
            return Ok(());
        }
        let refused = |problem: String| {
            let message = format!(
                "{RECORDS} in the share's root {problem}, so its records are not trusted: check who created it, then correct \
                 it with chown -R and chmod, or remove it"
            );
            Err(ShareError::new(ErrorKind::Precondition, message))
        };
        let entry = self.files.stat(&own([])).during("read", RECORDS)?;
        let Some(entry) = entry.filter(|entry| entry.kind == EntryKind::Directory) else {
            return refused("is not a directory".to_owned());
        };
        if entry.mode & 0o077 != 0 {
            return refused(format!("has mode {:o}, not 700", entry.mode));
        }
        let uid = self.probe()?.uid;
        if entry.uid != uid {
            return refused(format!(
                "belongs to user {}, not to {uid}, who the driver is for the server",
                entry.uid
            ));
        }
        self.verified.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether one of the driver's own files was last changed before the grace period. A missing one is not abandoned.
    pub(super) fn is_abandoned(&self, path: &Path, now: SystemTime) -> Result<bool, ShareError> {
        let entry = self.files.stat(path).during("read", &path.display().to_string())?;
        Ok(entry.is_some_and(|entry| entry.modified + self.environment.grace <= now))
    }

    /// Creates one of the driver's own directories; an existing one is success.
    pub(super) fn ensure_dir(&self, dir: &Path) -> Result<(), ShareError> {
        let object = dir.display().to_string();
        match self.files.create_dir(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let entry = self.files.stat(dir).during("read", &object)?;
                match entry.map(|entry| entry.kind) {
                    Some(EntryKind::Directory) => Ok(()),
                    None => {
                        let message = format!("another controller removed {object}; try again");
                        Err(ShareError::new(ErrorKind::Unavailable, message))
                    }
                    Some(_) => Err(ShareError::new(
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

/// The record of the share itself, in its directory of records.
pub(super) const SHARE_RECORD: &str = "share.json";

/// A path in `.wharf`.
pub(super) fn own<const N: usize>(parts: [&str; N]) -> PathBuf {
    let mut path = PathBuf::from(RECORDS);
    path.extend(parts);
    path
}
