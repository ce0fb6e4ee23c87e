//! The agent: its exports, and what it does with them.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use wharf_linux::{ProjectQuotaState, ProjectUsage};

use super::copies::Copies;
use super::message::{
    AgentError, AgentErrorKind, Answer, Call, ExportInfo, Operation, QuotaInfo, QuotaSupport, Tree,
};
use super::quota::{Quotas, projects};
use super::rules::{self, Assignment};
use crate::copy::beneath;
use crate::path::RECORDS;
use crate::share::files::{EntryKind, LinuxFiles, ShareFiles as _, none_if_missing};
use crate::share::record::{Envelope, ShareRecord};

/// How many numbers are tried for a new project.
const MAX_CANDIDATES: usize = 10_000;

/// The largest record of a share that is read.
const MAX_RECORD: u64 = 64 * 1024;

/// The agent of one machine.
pub struct Agent {
    exports: Vec<PathBuf>,
    quotas: Arc<dyn Quotas>,
    /// Held while a project is assigned or a limit removed: both decide by what is in use.
    projects: Mutex<()>,
    copies: Copies,
}

/// An export that is open for one call.
struct OpenExport {
    files: LinuxFiles,
    root: OwnedFd,
    share: String,
}

impl Agent {
    /// An agent for these directories: each is the root of a share.
    pub fn new(exports: Vec<PathBuf>, quotas: Arc<dyn Quotas>) -> Self {
        Self { exports, quotas, projects: Mutex::default(), copies: Copies::default() }
    }

    /// Serves one call.
    pub fn handle(&self, call: &Call) -> Result<Answer, AgentError> {
        let export = self.find(&call.share)?;
        match &call.operation {
            Operation::SetQuota { tree, file_id, bytes } => {
                self.set_quota(&export, tree, *file_id, *bytes).map(Answer::Quota)
            }
            Operation::GetUsage { tree, file_id } => self.usage(&export, tree, *file_id).map(Answer::Quota),
            Operation::Capacity => self.capacity(&export),
            Operation::Copy { from, from_file_id, to, to_file_id } => {
                let key = (call.share.clone(), String::from(to.clone()));
                let status = self.copies.status(key, || {
                    let target = Tree::Staging(to.clone()).path();
                    let from = directory(&export, &from.path(), *from_file_id)?;
                    let to = directory(&export, &target, *to_file_id)?;
                    match is_empty(to.as_fd()).map_err(|error| failed("list", &target, &error))? {
                        true => Ok((from, to)),
                        false => Err(refused(&target, "it is not empty")),
                    }
                });
                status.map(Answer::Copy)
            }
        }
    }

    /// The exports and what they can do.
    pub fn describe(&self) -> Vec<ExportInfo> {
        let describe = |directory: &PathBuf| {
            let opened = open(directory).and_then(|(files, root)| {
                let share = share_of(directory, &files)?;
                let state =
                    self.quotas.state(root.as_fd()).map_err(|error| failed("read", directory, &error))?;
                Ok((share, state))
            });
            let (share, state, problem) = match opened {
                Ok((share, state)) => (share, state, None),
                Err(error) => (None, ProjectQuotaState::Off, Some(error.message)),
            };
            let quota = match state {
                ProjectQuotaState::Enforced => QuotaSupport::Enforced,
                ProjectQuotaState::Counted | ProjectQuotaState::Off => QuotaSupport::NotEnforced,
            };
            ExportInfo { directory: directory.clone(), share, quota, problem }
        };
        self.exports.iter().map(describe).collect()
    }

    /// Removes the limits of directories that were removed. Returns how many.
    pub fn remove_left_over_limits(&self) -> u64 {
        let mut devices = BTreeSet::new();
        let mut removed = 0;
        for export in &self.exports {
            let swept = open(export).and_then(|(_, root)| {
                let fail = |error: io::Error| failed("read the quotas of", export, &error);
                let device = rustix::fs::fstat(&root).map_err(|errno| fail(errno.into()))?.st_dev;
                let enforced = self.quotas.state(root.as_fd()).map_err(fail)? == ProjectQuotaState::Enforced;
                // Several exports can be on one file system.
                if !enforced || !devices.insert(device) {
                    return Ok(0);
                }
                self.sweep(&root).map_err(fail)
            });
            match swept {
                Ok(count) => removed += count,
                Err(error) => {
                    tracing::warn!(export = %export.display(), %error, "failed to remove limits of deleted volumes");
                }
            }
        }
        removed
    }

    fn sweep(&self, root: &OwnedFd) -> io::Result<u64> {
        let _lock = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_over = Vec::new();
        for found in projects(&*self.quotas, root.as_fd(), *rules::PROJECTS.start()) {
            let (id, usage) = found?;
            if id > *rules::PROJECTS.end() {
                break;
            }
            if rules::is_left_over(id, &usage) {
                left_over.push(id);
            }
        }
        // Not before all are found: a project without a limit is no longer known.
        for id in &left_over {
            self.quotas.set_limit(root.as_fd(), *id, 0)?;
        }
        Ok(left_over.len() as u64)
    }

    /// The export with this share.
    fn find(&self, share: &str) -> Result<OpenExport, AgentError> {
        let (mut found, mut problems) = (Vec::new(), String::new());
        for export in &self.exports {
            match open(export).and_then(|(files, root)| Ok((share_of(export, &files)?, files, root))) {
                Ok((Some(uuid), files, root)) if uuid == share => {
                    found.push((export, OpenExport { files, root, share: uuid }));
                }
                Ok(_) => {}
                Err(error) => problems = format!("{problems}; {}", error.message),
            }
        }
        if let [(first, _), (second, _), ..] = found.as_slice() {
            let message = format!(
                "share {share:?} is refused, because two exports have its UUID: {} and {}; one may be a copy of the other: \
                 remove it from --export of `wharf nfs-server`",
                first.display(),
                second.display()
            );
            return Err(AgentError::new(AgentErrorKind::Refused, message));
        }
        if let Some((_, export)) = found.pop() {
            return Ok(export);
        }
        let message = format!(
            "this agent has no export with share {share:?}: check the address of the agent, and --export of \
             `wharf nfs-server`{problems}"
        );
        // An export that cannot be read may have the share.
        let kind = if problems.is_empty() { AgentErrorKind::UnknownShare } else { AgentErrorKind::Failed };
        Err(AgentError::new(kind, message))
    }

    fn set_quota(
        &self,
        export: &OpenExport,
        tree: &Tree,
        file_id: u64,
        bytes: u64,
    ) -> Result<QuotaInfo, AgentError> {
        let path = tree.path();
        let directory = self.limited_directory(export, &path, file_id)?;
        let fail = |step: &str, error: io::Error| failed(step, &path, &error);
        let _lock = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        let project =
            self.quotas.project(directory.as_fd()).map_err(|error| fail("read the project of", error))?;
        let empty = is_empty(directory.as_fd()).map_err(|error| fail("list", error))?;
        let assignment =
            rules::assignment(project, empty).map_err(|refusal| refused(&path, &refusal.to_string()))?;
        let id = match assignment {
            Assignment::Keep(id) => id,
            Assignment::New => {
                let id = self.unused_project(export, file_id)?;
                let assigned = self.quotas.set_project(directory.as_fd(), id);
                assigned.map_err(|error| fail("set the project of", error))?;
                id
            }
        };
        let root = export.root.as_fd();
        let read = |step| self.quotas.usage(root, id).map_err(|error| fail(step, error));
        let before = read("read the quota of")?;
        let limit = rules::next_limit(before.limit, bytes)
            .ok_or_else(|| refused(&path, &format!("{bytes} bytes cannot be a limit")))?;
        if limit != before.limit {
            let set = self.quotas.set_limit(root, id, limit);
            set.map_err(|error| fail("set the quota of", error))?;
        }
        let after = read("read back the quota of")?;
        if !rules::is_set(limit, after.limit) {
            let message = format!(
                "failed to set the quota of {}: it is {} bytes, not {limit}",
                path.display(),
                after.limit
            );
            return Err(AgentError::new(AgentErrorKind::Failed, message));
        }
        Ok(QuotaInfo { limit: after.limit, used: after.used })
    }

    fn usage(&self, export: &OpenExport, tree: &Tree, file_id: u64) -> Result<QuotaInfo, AgentError> {
        let path = tree.path();
        let directory = self.limited_directory(export, &path, file_id)?;
        let fail = |error: io::Error| failed("read the quota of", &path, &error);
        let project = self.quotas.project(directory.as_fd()).map_err(fail)?;
        let usage = match rules::assignment(project, false) {
            Ok(Assignment::Keep(id)) => self.quotas.usage(export.root.as_fd(), id).map_err(fail)?,
            Ok(Assignment::New) | Err(_) => ProjectUsage::default(),
        };
        Ok(QuotaInfo { limit: usage.limit, used: usage.used })
    }

    /// Opens a directory on a file system that enforces limits, if it is the one that the caller means.
    fn limited_directory(
        &self,
        export: &OpenExport,
        path: &Path,
        file_id: u64,
    ) -> Result<OwnedFd, AgentError> {
        let fail = |step: &str, error: io::Error| failed(step, path, &error);
        match self.quotas.state(export.root.as_fd()).map_err(|error| fail("read the quotas of", error))? {
            ProjectQuotaState::Enforced => {}
            ProjectQuotaState::Counted | ProjectQuotaState::Off => {
                let message = "the file system of the export enforces no project quotas: use xfs, mounted with prjquota, or \
                               ext4 with the features quota and project, mounted with prjquota, and Linux 5.14";
                return Err(AgentError::new(AgentErrorKind::Unsupported, message));
            }
        }
        directory(export, path, file_id)
    }

    fn unused_project(&self, export: &OpenExport, file_id: u64) -> Result<u32, AgentError> {
        for id in rules::candidates(&export.share, file_id).take(MAX_CANDIDATES) {
            let usage = self.quotas.usage(export.root.as_fd(), id);
            let usage = usage.map_err(|error| failed("read the quota of project", id.to_string(), &error))?;
            if rules::is_unused(&usage) {
                return Ok(id);
            }
        }
        let message = "failed to find an unused project number: too many volumes on one file system";
        Err(AgentError::new(AgentErrorKind::Failed, message))
    }

    fn capacity(&self, export: &OpenExport) -> Result<Answer, AgentError> {
        let fail = |error: io::Error| failed("read the capacity of", "the export", &error);
        let root = export.root.as_fd();
        let capacity = export.files.capacity().map_err(fail)?;
        let promised: Vec<ProjectUsage> = match self.quotas.state(root).map_err(fail)? {
            ProjectQuotaState::Enforced => projects(&*self.quotas, root, 1)
                .map(|found| found.map(|(_, usage)| usage))
                .collect::<io::Result<_>>()
                .map_err(fail)?,
            ProjectQuotaState::Counted | ProjectQuotaState::Off => Vec::new(),
        };
        let available = rules::unpromised(capacity.available, promised);
        Ok(Answer::Capacity { total: capacity.total, available })
    }
}

/// Opens a directory, if it is the one that the caller means.
fn directory(export: &OpenExport, path: &Path, file_id: u64) -> Result<OwnedFd, AgentError> {
    let directory = match export.files.open_dir(path) {
        // What the kernel answers for a path that does not exist, or that has a symlink, a file or a mount in it.
        Err(error) => return Err(refused(path, &format!("it cannot be opened: {error}"))),
        Ok(directory) => directory,
    };
    let found = rustix::fs::fstat(&directory).map_err(|errno| failed("read", path, &errno.into()))?.st_ino;
    match found == file_id {
        true => Ok(directory),
        false => Err(refused(path, &format!("its file ID is {found}, not {file_id}"))),
    }
}

/// Whether a directory has no entry. Reads only the first ones: it can have millions.
fn is_empty(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let listed = beneath::each_entry(directory, |_, _| Err(Listed::Entry));
    match listed {
        Ok(()) => Ok(true),
        Err(Listed::Entry) => Ok(false),
        Err(Listed::Failed(error)) => Err(error),
    }
}

/// How the listing of a directory ended.
enum Listed {
    Entry,
    Failed(io::Error),
}

impl From<io::Error> for Listed {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Opens the root of an export.
fn open(export: &Path) -> Result<(LinuxFiles, OwnedFd), AgentError> {
    let opened = LinuxFiles::open(export).and_then(|files| {
        let root = files.open_dir(Path::new("."))?;
        Ok((files, root))
    });
    opened.map_err(|error| failed("open", export, &error))
}

/// The UUID of the share in an open export; `None` before its first volume. The driver's records are accepted only where the
/// driver accepts them: anybody who can write to the root of the export could have created others.
fn share_of(export: &Path, files: &LinuxFiles) -> Result<Option<String>, AgentError> {
    let (records, file) = (Path::new(RECORDS), Path::new(RECORDS).join("share.json"));
    let fail = |error: &io::Error| failed("read", export.join(&file), error);
    let untrusted = |problem: String| Err(fail(&io::Error::other(format!("{RECORDS} {problem}"))));
    match files.stat(records).map_err(|error| fail(&error))? {
        None => return Ok(None),
        Some(entry) if entry.kind != EntryKind::Directory => {
            return untrusted("is not a directory".to_owned());
        }
        Some(entry) if entry.mode & 0o077 != 0 => {
            return untrusted(format!("has mode {:o}, not 700", entry.mode));
        }
        Some(_) => {}
    }
    let Some(open) = none_if_missing(files.open_file(&file)).map_err(|error| fail(&error))? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    open.take(MAX_RECORD + 1).read_to_end(&mut bytes).map_err(|error| fail(&error))?;
    if bytes.len() as u64 > MAX_RECORD {
        return Err(fail(&io::Error::other(format!("it has more than {} KiB", MAX_RECORD / 1024))));
    }
    let envelope: Envelope<ShareRecord> =
        serde_json::from_slice(&bytes).map_err(|error| fail(&io::Error::other(error)))?;
    Ok(envelope.record.map(|record| record.uuid))
}

fn refused(path: &Path, problem: &str) -> AgentError {
    AgentError::new(AgentErrorKind::Refused, format!("directory {} is refused: {problem}", path.display()))
}

fn failed(step: &str, object: impl AsRef<Path>, error: &io::Error) -> AgentError {
    let message = format!("failed to {step} {}: {error}", object.as_ref().display());
    AgentError::new(AgentErrorKind::Failed, message)
}
