//! What a job copies: a volume into a snapshot, or a volume or snapshot into a new volume.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use wharf_driver::backend::VolumeContentSource;

use super::error::{During as _, classify};
use super::files::EntryKind;
use super::job::{OwnedJob, in_staging};
use super::record::{VolumeRecord, VolumeState};
use super::root::own;
use super::snapshot_record::{JobKey, JobResult, SnapshotRecord, SnapshotState};
use super::snapshot_upstream::{archive_path, safe_handle};
use super::{ErrorKind, Share, ShareError};
use crate::archive::{self, ArchiveFormat, UnpackOptions};
use crate::copy::{self, CopyError, CopyOptions, CopyReport, Progress};
use crate::handle::VolumeHandle;

/// Something that can be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ContentSource {
    /// A directory that is in use.
    Volume { path: PathBuf, file_id: u64 },
    /// A directory that no process changes.
    Tree { path: PathBuf, report: CopyReport, by_agent: bool },
    /// An archive.
    Archive { path: PathBuf, format: ArchiveFormat, sha256: Option<String>, report: Option<CopyReport> },
}

/// A directory that was copied.
struct CopiedTree {
    report: CopyReport,
    /// Whether the server's agent copied it.
    by_agent: bool,
}

impl ContentSource {
    /// The bytes to copy, if they are known.
    fn total(&self) -> Option<u64> {
        match self {
            Self::Volume { .. } => None,
            Self::Tree { report, .. } => Some(report.bytes),
            Self::Archive { report, .. } => report.as_ref().map(|report| report.bytes),
        }
    }
}

impl Share {
    /// Runs a job to its end. A job that is complete, or whose object is gone, is success.
    pub(super) fn run_job(&self, job: &JobKey) -> Result<(), ShareError> {
        match job {
            JobKey::Snapshot(name) => {
                let slot = self.read_record::<SnapshotRecord>(name)?;
                let Some(snapshot) = slot.record.filter(|record| record.state == SnapshotState::Creating)
                else {
                    return Ok(());
                };
                self.run_copy(
                    job,
                    &VolumeContentSource::Volume(snapshot.source.clone()),
                    |source, owned| self.copy_to_snapshot(&snapshot, source, owned),
                )?;
                self.finish_snapshot(&snapshot).map(drop)
            }
            JobKey::Volume(handle) => {
                let slot = self.read_record::<VolumeRecord>(handle)?;
                let Some(volume) = slot.record.filter(|record| record.state == VolumeState::Creating) else {
                    return Ok(());
                };
                let Some(source) = volume.source.clone() else { return Ok(()) };
                self.run_copy(job, &source, |source, owned| self.copy_to_volume(&volume, source, owned))
            }
        }
    }

    fn run_copy(
        &self,
        job: &JobKey,
        source: &VolumeContentSource,
        copy: impl FnOnce(&ContentSource, &OwnedJob) -> Result<JobResult, ShareError>,
    ) -> Result<(), ShareError> {
        let found = self.find_source(source);
        let total = found.as_ref().ok().and_then(ContentSource::total);
        let Some(owned) = self.claim_job(job, total)? else { return Ok(()) };
        let result = found.and_then(|source| {
            let result = copy(&source, &owned)?;
            self.check_unchanged(&source, &result.report)?;
            Ok(result)
        });
        self.end_job(&owned, result)
    }

    /// Where the content of a new volume or snapshot comes from. A missing one is [`ErrorKind::NotFound`].
    pub(super) fn find_source(&self, source: &VolumeContentSource) -> Result<ContentSource, ShareError> {
        match source {
            VolumeContentSource::Volume(handle) => self.find_volume(handle),
            VolumeContentSource::Snapshot(handle) => self.find_snapshot(handle),
        }
    }

    fn find_volume(&self, handle: &str) -> Result<ContentSource, ShareError> {
        let missing =
            || ShareError::new(ErrorKind::NotFound, format!("source volume {handle} does not exist"));
        let path = match self.read_record::<VolumeRecord>(handle)?.record {
            Some(VolumeRecord { state: VolumeState::Ready, path, .. }) => path,
            Some(_) => return Err(missing()),
            // A static volume, or one of csi-driver-nfs. Reading needs no proof of ownership.
            None => {
                VolumeHandle::parse(handle).and_then(|handle| handle.location()).map_err(|_| missing())?.path
            }
        };
        match self.stat(path.as_path())? {
            Some(entry) if entry.kind == EntryKind::Directory => {
                Ok(ContentSource::Volume { path: path.as_path().to_owned(), file_id: entry.file_id })
            }
            _ => Err(missing()),
        }
    }

    fn find_snapshot(&self, handle: &str) -> Result<ContentSource, ShareError> {
        let missing =
            || ShareError::new(ErrorKind::NotFound, format!("source snapshot {handle} does not exist"));
        let parsed = safe_handle(handle).ok_or_else(missing)?;
        let Some(record) = self.read_record::<SnapshotRecord>(&parsed.name)?.record else {
            return self.find_upstream_archive(&parsed)?.ok_or_else(missing);
        };
        if record.handle != handle || record.state != SnapshotState::Ready {
            return Err(missing());
        }
        let content = record.content.ok_or_else(missing)?;
        let JobResult { report, sha256, by_agent, .. } = content.result;
        let path = match &content.attempt {
            Some(attempt) => own(["content", attempt, &record.format.file_name()]),
            None => archive_path(&parsed, record.format)?,
        };
        if self.stat(&path)?.is_none() {
            return Err(missing());
        }
        Ok(match record.format.archive() {
            None => ContentSource::Tree { path, report, by_agent },
            Some(format) => ContentSource::Archive { path, format, sha256, report: Some(report) },
        })
    }

    fn copy_to_snapshot(
        &self,
        snapshot: &SnapshotRecord,
        source: &ContentSource,
        job: &OwnedJob,
    ) -> Result<JobResult, ShareError> {
        let ContentSource::Volume { path, .. } = source else {
            return Err(ShareError::new(ErrorKind::Internal, "the source of a snapshot must be a volume"));
        };
        let target = in_staging(&job.attempt, &snapshot.format.file_name());
        let Some(format) = snapshot.format.archive() else {
            let copied = self.copy_directory(path, &target, &snapshot.name, job)?;
            return Ok(JobResult { by_agent: copied.by_agent, ..self.job_done(copied.report, None, false)? });
        };
        let step = "create an archive for";
        let from = self.files.open_dir(path).during("open the source of", &snapshot.name)?;
        let out = match self.files.open_new_file(&target) {
            // The name is random: an own success whose response was lost.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.remove(&target)?;
                self.files.open_new_file(&target).during(step, &snapshot.name)?
            }
            opened => opened.during(step, &snapshot.name)?,
        };
        let packed = archive::pack(from.as_fd(), &out, format, &|progress| self.heartbeat(job, progress))
            .map_err(|error| copy_error("create snapshot", &snapshot.name, &error))?;
        self.job_done(packed.report, Some(packed.sha256), false)
    }

    fn copy_to_volume(
        &self,
        volume: &VolumeRecord,
        source: &ContentSource,
        job: &OwnedJob,
    ) -> Result<JobResult, ShareError> {
        let target = in_staging(&job.attempt, "data");
        self.ensure_dir(&target)?;
        let limited = self.limit_staged(volume, &job.attempt)?;
        let report = match source {
            ContentSource::Volume { path, .. } => {
                self.copy_directory(path, &target, &volume.handle, job)?.report
            }
            ContentSource::Tree { path, by_agent: true, .. } => {
                self.copy_only_by_agent(path, &target, &volume.handle, job)?
            }
            ContentSource::Tree { path, by_agent: false, .. } => {
                self.copy_directory(path, &target, &volume.handle, job)?.report
            }
            ContentSource::Archive { path, format, sha256, .. } => {
                let input = self.files.open_file(path).during("open the snapshot for", &volume.handle)?;
                let to = self.files.open_dir(&target).during("open the new directory of", &volume.handle)?;
                let options = UnpackOptions { sha256: sha256.clone(), ..UnpackOptions::default() };
                archive::unpack(input, *format, to.as_fd(), &options, &|progress| {
                    self.heartbeat(job, progress)
                })
                .map_err(|error| copy_error("restore volume", &volume.handle, &error))?
            }
        };
        if volume.uid.is_some() || volume.gid.is_some() {
            let owned = self.files.set_owner(&target, volume.uid, volume.gid);
            owned.during("set the owner of the directory of", &volume.handle)?;
        }
        // The source's mode is kept, unless the class says another one.
        if let Some(mode) = volume.mode {
            self.files.set_mode(&target, mode).during("set the mode of the directory of", &volume.handle)?;
        }
        self.files.sync(&target).during("sync the directory of", &volume.handle)?;
        self.job_done(report, None, limited)
    }

    fn copy_directory(
        &self,
        from: &Path,
        to: &Path,
        object: &str,
        job: &OwnedJob,
    ) -> Result<CopiedTree, ShareError> {
        self.ensure_dir(to)?;
        let progress = |progress: Progress| self.heartbeat(job, progress);
        if let Some(report) = self.copy_by_agent(from, to, object, &progress)? {
            return Ok(CopiedTree { report, by_agent: true });
        }
        let from = self.files.open_dir(from).during("open the source of", object)?;
        let to = self.files.open_dir(to).during("open the copy for", object)?;
        let report = copy::copy_tree(from.as_fd(), to.as_fd(), &CopyOptions::default(), &progress)
            .map_err(|error| copy_error("copy the content of", object, &error))?;
        Ok(CopiedTree { report, by_agent: false })
    }

    /// Copies a tree that the agent made. Over NFS, its POSIX ACLs and trusted attributes would be lost.
    fn copy_only_by_agent(
        &self,
        from: &Path,
        to: &Path,
        object: &str,
        job: &OwnedJob,
    ) -> Result<CopyReport, ShareError> {
        let progress = |progress: Progress| self.heartbeat(job, progress);
        self.copy_by_agent(from, to, object, &progress)?.ok_or_else(|| {
            let message = format!(
                "failed to restore volume {object}: the NFS server's agent made the snapshot, with attributes that only it can \
                 restore, and it does not answer: check `wharf nfs-server` and --server-agent"
            );
            ShareError::new(ErrorKind::Unavailable, message)
        })
    }

    fn job_done(
        &self,
        report: CopyReport,
        sha256: Option<String>,
        limited: bool,
    ) -> Result<JobResult, ShareError> {
        let now = self.server_time()?.duration_since(SystemTime::UNIX_EPOCH);
        Ok(JobResult {
            report,
            sha256,
            finished: now.map_or(0, |now| now.as_secs()),
            limited,
            by_agent: false,
        })
    }

    /// Whether the source was there until the end. While a directory is deleted, its entries vanish one by one, and the copy
    /// would be incomplete without an error.
    fn check_unchanged(&self, source: &ContentSource, copied: &CopyReport) -> Result<(), ShareError> {
        match source {
            ContentSource::Volume { path, file_id } => {
                let found = self.stat(path)?.map(|entry| entry.file_id);
                if found == Some(*file_id) { Ok(()) } else { Err(deleted(path)) }
            }
            ContentSource::Tree { path, report, .. } => {
                let key = |report: &CopyReport| (report.entries(), report.bytes);
                if self.stat(path)?.is_none() {
                    return Err(deleted(path));
                }
                if key(report) == key(copied) && copied.vanished == 0 && copied.changed == 0 {
                    return Ok(());
                }
                let message = format!(
                    "{} has {} entries with {} bytes instead of {} with {}: the snapshot was changed and cannot be restored",
                    path.display(),
                    copied.entries(),
                    copied.bytes,
                    report.entries(),
                    report.bytes
                );
                Err(ShareError::new(ErrorKind::Internal, message))
            }
            // Its checksum proves it.
            ContentSource::Archive { .. } => Ok(()),
        }
    }
}

fn deleted(path: &Path) -> ShareError {
    let message = format!("{} was deleted or replaced while it was copied", path.display());
    ShareError::new(ErrorKind::NotFound, message)
}

/// The error of a copy, with its class.
fn copy_error(step: &str, object: &str, error: &CopyError) -> ShareError {
    let kind = match error {
        CopyError::Call { source, .. } | CopyError::NotKept { source, .. } => classify(source).0,
        CopyError::OtherFileSystem { .. } => ErrorKind::Precondition,
        CopyError::Mismatch { .. } | CopyError::Archive { .. } => ErrorKind::Internal,
        CopyError::Cancelled => ErrorKind::Unavailable,
    };
    ShareError::new(kind, format!("failed to {step} {object}: {error}"))
}
