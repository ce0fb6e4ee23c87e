//! The records of snapshots and jobs: plain data.
//!
//! | Path in `.wharf` | Content |
//! |---|---|
//! | `snapshots/<sha256 of the name>/<generation>.json` | [`SnapshotRecord`] |
//! | `jobs/<sha256 of the key>/<generation>.json` | [`JobRecord`]; its modification time is the heartbeat |
//! | `staging/<attempt>/` | What a job writes: `data/`, or an archive |
//! | `content/<attempt>/` | The same, complete: the content of a snapshot |

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ShareError;
use super::record::Record;
use crate::archive::ArchiveFormat;
use crate::copy::{CopyReport, Progress};

/// How a snapshot is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SnapshotFormat {
    /// A copy of the directory, in the driver's own directory.
    Tree,
    /// A tar.zst archive, in the driver's own directory.
    TarZst,
    /// A tar.gz archive where csi-driver-nfs keeps its snapshots: `<name>/<source>.tar.gz`.
    TarGz,
}

impl SnapshotFormat {
    /// The format that a snapshot class names; a tree without one.
    pub fn parse(format: Option<&str>) -> Option<Self> {
        match format {
            None | Some("tree") => Some(Self::Tree),
            Some("tar.zst") => Some(Self::TarZst),
            Some("tar.gz") => Some(Self::TarGz),
            Some(_) => None,
        }
    }

    /// The archive's format; `None` for a tree.
    pub fn archive(self) -> Option<ArchiveFormat> {
        match self {
            Self::Tree => None,
            Self::TarZst => Some(ArchiveFormat::TarZst),
            Self::TarGz => Some(ArchiveFormat::TarGz),
        }
    }

    /// Whether the archive is where csi-driver-nfs looks for it.
    pub fn is_upstream(self) -> bool {
        self == Self::TarGz
    }

    /// The name of the copy in its staging directory.
    pub(super) fn file_name(self) -> String {
        self.archive().map_or_else(|| "data".to_owned(), |format| format!("data.{}", format.extension()))
    }
}

/// Where a snapshot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SnapshotState {
    /// Its job copies the source.
    Creating,
    /// Complete.
    Ready,
    /// DeleteSnapshot was called; finished by repeats and by recovery.
    Deleting,
}

/// A snapshot, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRecord {
    /// The name of the CSI request.
    pub name: String,
    /// The snapshot handle.
    pub handle: String,
    /// The handle of the source volume.
    pub source: String,
    /// How it is stored.
    pub format: SnapshotFormat,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// What it contains; `None` while it is being created.
    pub content: Option<SnapshotContent>,
}

/// The content of a complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotContent {
    /// `content/<attempt>`; `None` for an archive at the place of csi-driver-nfs.
    pub attempt: Option<String>,
    /// The file ID of an archive at the place of csi-driver-nfs.
    pub file_id: Option<u64>,
    /// What was copied.
    pub result: JobResult,
    /// The recorded size of the source volume then, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_size: Option<u64>,
}

impl SnapshotContent {
    /// The smallest size of a volume that the snapshot can be restored to: without holes, and not more than its volume had.
    pub(super) fn restore_size(&self) -> u64 {
        let report = &self.result.report;
        let content = report.allocated.unwrap_or(report.bytes);
        self.volume_size.map_or(content, |size| content.min(size))
    }
}

/// What a complete job has copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResult {
    /// Counters.
    pub report: CopyReport,
    /// SHA-256 of the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// When the copy was complete, by the server's clock: seconds since 1970.
    pub finished: u64,
    /// Whether the server's agent limits the directory.
    #[serde(default)]
    pub limited: bool,
    /// Whether the server's agent made the copy, with attributes that are not visible over NFS.
    #[serde(default)]
    pub by_agent: bool,
}

impl Record for SnapshotRecord {
    const STORE: &'static str = "snapshots";

    fn key(&self) -> &str {
        &self.name
    }
}

/// What a job is for. There is at most one job for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobKey {
    /// The snapshot with this name.
    Snapshot(String),
    /// The content of the volume with this handle.
    Volume(String),
}

impl JobKey {
    /// The inverse of [`fmt::Display`].
    pub(super) fn parse(key: &str) -> Option<Self> {
        let (kind, object) = key.split_once(' ')?;
        match kind {
            "snapshot" => Some(Self::Snapshot(object.to_owned())),
            "volume" => Some(Self::Volume(object.to_owned())),
            _ => None,
        }
    }
}

/// The key of the job's record.
impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(name) => write!(f, "snapshot {name}"),
            Self::Volume(handle) => write!(f, "volume {handle}"),
        }
    }
}

/// Where a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum JobState {
    /// A process works on it, as long as the record is changed from time to time.
    Running {
        /// A random ID: the name of the staging directory, and proof of ownership.
        attempt: String,
    },
    /// The copy is complete in `staging/<attempt>`.
    Done {
        /// As while it ran.
        attempt: String,
        /// What was copied.
        result: JobResult,
    },
    /// The copy failed. The next request returns the error and forgets the job, so that a repeat starts again.
    Failed {
        /// Why.
        error: ShareError,
    },
}

/// A copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    /// [`JobKey`] as text.
    pub key: String,
    /// Where it is.
    pub state: JobState,
    /// How far it was at the last heartbeat.
    pub progress: Progress,
    /// The bytes to copy, if they are known.
    pub total: Option<u64>,
}

impl Record for JobRecord {
    const STORE: &'static str = "jobs";

    fn key(&self) -> &str {
        &self.key
    }
}

impl JobRecord {
    /// How much is done, 0 to 99; `None` if the total is not known.
    pub(super) fn percent(&self) -> Option<u8> {
        let total = self.total.filter(|total| *total > 0)?;
        let percent = u128::from(self.progress.bytes) * 100 / u128::from(total);
        Some(u8::try_from(percent.min(99)).unwrap_or(99))
    }

    /// The staging directory's ID.
    pub(super) fn attempt(&self) -> Option<&str> {
        match &self.state {
            JobState::Running { attempt } | JobState::Done { attempt, .. } => Some(attempt),
            JobState::Failed { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_needs_a_total_and_never_reaches_100() {
        let percent = |bytes, total| {
            let state = JobState::Running { attempt: "a".to_owned() };
            let progress = Progress { entries: 0, bytes };
            JobRecord { key: String::new(), state, progress, total }.percent()
        };
        let table = [
            (0, None, None),
            (5, Some(0), None),
            (0, Some(10), Some(0)),
            (5, Some(10), Some(50)),
            (10, Some(10), Some(99)),
            (u64::MAX, Some(1), Some(99)),
        ];
        for (bytes, total, expected) in table {
            assert_eq!(percent(bytes, total), expected, "{bytes} of {total:?}");
        }
    }
}
