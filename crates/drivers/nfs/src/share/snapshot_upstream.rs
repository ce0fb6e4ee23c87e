//! Archives at the place where csi-driver-nfs keeps its snapshots: `<name>/<source>.tar.gz`, or `.tar`. It has written some
//! of them, which have no record; this driver writes more, so that the way back is open.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::error::During as _;
use super::files::{Entry, EntryKind};
use super::job::in_staging;
use super::job_copy::ContentSource;
use super::message::SnapshotInfo;
use super::record::DirectoryRecord;
use super::snapshot_record::{JobKey, JobRecord, SnapshotFormat, SnapshotRecord};
use super::{ErrorKind, Share, ShareError};
use crate::archive::ArchiveFormat;
use crate::copy::CopyReport;
use crate::handle::SnapshotHandle;
use crate::path::SharePath;

/// In the order in which csi-driver-nfs looks for them.
const FORMATS: [ArchiveFormat; 2] = [ArchiveFormat::TarGz, ArchiveFormat::Tar];

impl Share {
    /// An archive of csi-driver-nfs, to restore.
    pub(super) fn find_upstream_archive(
        &self,
        handle: &SnapshotHandle,
    ) -> Result<Option<ContentSource>, ShareError> {
        Ok(self.upstream_archive(handle)?.map(|(path, format, _)| ContentSource::Archive {
            path,
            format,
            sha256: None,
            report: None,
        }))
    }

    fn upstream_archive(
        &self,
        handle: &SnapshotHandle,
    ) -> Result<Option<(PathBuf, ArchiveFormat, Entry)>, ShareError> {
        for format in FORMATS {
            let path = archive_file(handle, format)?;
            // A parent that is no directory means the same as a missing file.
            match self.stat(&path) {
                Ok(Some(entry)) if entry.kind == EntryKind::File => return Ok(Some((path, format, entry))),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// A snapshot of csi-driver-nfs.
    pub(super) fn upstream_info(&self, handle: &SnapshotHandle) -> Result<Option<SnapshotInfo>, ShareError> {
        Ok(self.upstream_archive(handle)?.map(|(_, _, entry)| SnapshotInfo {
            handle: handle.to_string(),
            // Its handle has only a part of the volume's handle.
            source: None,
            size: entry.size,
            created: entry.modified.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            report: CopyReport::default(),
        }))
    }

    /// Deletes a snapshot of csi-driver-nfs: the archive by its two known names, then directories that are empty. A directory
    /// with anything else in it, or one that the driver knows as something else, is not touched.
    pub(super) fn delete_upstream(&self, handle: &SnapshotHandle) -> Result<(), ShareError> {
        let name = snapshot_dir(handle)?;
        if self.has_records()? && self.read_record::<DirectoryRecord>(name.as_str())?.record.is_some() {
            return Ok(());
        }
        if !self.has_only(name.as_path(), handle)? {
            return Ok(());
        }
        for format in FORMATS {
            let path = archive_file(handle, format)?;
            match self.stat(&path)? {
                Some(entry) if entry.kind == EntryKind::File => self.remove(&path)?,
                _ => {}
            }
        }
        self.remove_dirs(handle)
    }

    /// Whether a snapshot's directory has nothing but the snapshot's archives and the directories above them.
    fn has_only(&self, dir: &Path, handle: &SnapshotHandle) -> Result<bool, ShareError> {
        let mut known = Vec::new();
        for format in FORMATS {
            known.push(archive_file(handle, format)?);
        }
        match self.stat(dir)? {
            Some(entry) if entry.kind == EntryKind::Directory => {}
            _ => return Ok(false),
        }
        let mut dirs = vec![dir.to_owned()];
        while let Some(dir) = dirs.pop() {
            for name in self.files.list(&dir).during("list", &dir.display().to_string())?.unwrap_or_default()
            {
                let path = dir.join(name);
                if known.contains(&path) {
                    continue;
                }
                if !known.iter().any(|file| file.starts_with(&path)) {
                    return Ok(false);
                }
                dirs.push(path);
            }
        }
        Ok(true)
    }

    /// Refuses a snapshot whose place is taken, before anything is created.
    pub(super) fn check_upstream_place(&self, handle: &str) -> Result<(), ShareError> {
        let parsed = parse(handle)?;
        let name = snapshot_dir(&parsed)?;
        let record = match self.has_records()? {
            true => self.read_record::<DirectoryRecord>(name.as_str())?.record,
            false => None,
        };
        match self.stat(name.as_path())? {
            None if record.is_none() => Ok(()),
            _ => Err(taken(&name)),
        }
    }

    /// Links a complete archive to its place, and returns its file ID; `None` if the archive is gone. Nothing is replaced.
    pub(super) fn place_upstream(
        &self,
        snapshot: &SnapshotRecord,
        attempt: &str,
    ) -> Result<Option<u64>, ShareError> {
        let handle = parse(&snapshot.handle)?;
        let target = archive_path(&handle, snapshot.format)?;
        let staged = in_staging(attempt, &snapshot.format.file_name());
        let Some(entry) = self.stat(&staged)? else { return Ok(None) };
        let name = snapshot_dir(&handle)?;
        if self.read_record::<DirectoryRecord>(name.as_str())?.record.is_some() {
            return Err(taken(&name));
        }
        for dir in dirs(&target) {
            self.ensure_dir(&dir)?;
        }
        if !self.has_only(name.as_path(), &handle)? {
            return Err(taken(&name));
        }
        let linked = self.files.link(&staged, &target);
        match self.stat(&target)? {
            Some(found) if found.file_id == entry.file_id => {}
            Some(_) => return Err(taken(&name)),
            None => {
                linked.during("move the archive to", &target.display().to_string())?;
                return Ok(None);
            }
        }
        for dir in dirs(&target) {
            self.files.sync(&dir).during("sync", &dir.display().to_string())?;
        }
        Ok(Some(entry.file_id))
    }

    /// Removes an archive that this driver has placed: the file with the recorded ID, or the one that is still staged.
    pub(super) fn remove_placed(
        &self,
        snapshot: &SnapshotRecord,
        attempt: Option<&str>,
    ) -> Result<(), ShareError> {
        let handle = parse(&snapshot.handle)?;
        let target = archive_path(&handle, snapshot.format)?;
        let staged = match attempt {
            Some(attempt) => self.stat(&in_staging(attempt, &snapshot.format.file_name()))?,
            None => None,
        };
        let own_ids = [
            snapshot.content.as_ref().and_then(|content| content.file_id),
            staged.map(|entry| entry.file_id),
        ];
        match self.stat(&target)? {
            Some(found) if own_ids.contains(&Some(found.file_id)) => self.remove(&target)?,
            Some(_) => {
                tracing::warn!(snapshot_handle = %snapshot.handle, "did not remove archive: it is not the one that this driver created");
                return Ok(());
            }
            None => {}
        }
        self.remove_dirs(&handle)
    }

    /// Removes the snapshot's directory and those in it, as long as they are empty. They can be only a crash's or the
    /// snapshot's: the name was free when it was created.
    fn remove_dirs(&self, handle: &SnapshotHandle) -> Result<(), ShareError> {
        let file = archive_file(handle, ArchiveFormat::TarGz)?;
        for dir in dirs(&file).into_iter().rev() {
            if !self.remove_own_dir(&dir)? {
                break;
            }
        }
        Ok(())
    }

    /// The staging directory's ID of a job.
    pub(super) fn job_attempt(&self, job: &JobKey) -> Result<Option<String>, ShareError> {
        let slot = self.read_record::<JobRecord>(&job.to_string())?;
        Ok(slot.record.as_ref().and_then(JobRecord::attempt).map(str::to_owned))
    }
}

/// The place of a snapshot's archive.
pub(super) fn archive_path(handle: &SnapshotHandle, format: SnapshotFormat) -> Result<PathBuf, ShareError> {
    archive_file(handle, format.archive().unwrap_or(ArchiveFormat::TarGz))
}

/// A snapshot handle whose parts are safe to use; `None` for any other text.
pub(super) fn safe_handle(handle: &str) -> Option<SnapshotHandle> {
    let parsed = SnapshotHandle::parse(handle).ok()?;
    let safe = parsed.location().is_ok() && archive_file(&parsed, ArchiveFormat::TarGz).is_ok();
    safe.then_some(parsed)
}

fn archive_file(handle: &SnapshotHandle, format: ArchiveFormat) -> Result<PathBuf, ShareError> {
    let path = format!("{}/{}.{}", handle.name, handle.source, format.extension());
    SharePath::new(&path).map(|path| path.as_path().to_owned()).map_err(invalid)
}

fn snapshot_dir(handle: &SnapshotHandle) -> Result<SharePath, ShareError> {
    handle.location().map(|location| location.path).map_err(invalid)
}

fn parse(handle: &str) -> Result<SnapshotHandle, ShareError> {
    SnapshotHandle::parse(handle).map_err(invalid)
}

/// The directories above a file, from the top.
fn dirs(file: &Path) -> Vec<PathBuf> {
    let above = file.ancestors().skip(1).filter(|dir| *dir != Path::new(""));
    let mut dirs: Vec<_> = above.map(Path::to_owned).collect();
    dirs.reverse();
    dirs
}

fn invalid(error: impl std::fmt::Display) -> ShareError {
    ShareError::new(ErrorKind::Invalid, error.to_string())
}

fn taken(name: &SharePath) -> ShareError {
    let message =
        format!("{name} exists in the share and is not this snapshot's: use another snapshot name or format");
    ShareError::new(ErrorKind::AlreadyExists, message)
}
