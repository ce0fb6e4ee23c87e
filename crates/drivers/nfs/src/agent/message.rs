//! The protocol: JSON over HTTPS. `POST /v1/call` takes a [`Call`] and returns an [`Answer`], or an [`AgentError`] with another
//! status than 200. `GET /v1/exports` returns a list of [`ExportInfo`], for operators.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::copy::{CopyReport, Progress};
use crate::path::{RECORDS, SharePath};

/// A request for one share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    /// The UUID of the share, from its records.
    pub share: String,
    /// What to do.
    pub operation: Operation,
}

/// What to do with a share. Every operation can be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Operation {
    /// Limits a directory. A limit never shrinks. The first call needs an empty directory.
    SetQuota {
        /// The directory.
        tree: Tree,
        /// Its file ID.
        file_id: u64,
        /// The limit in bytes.
        bytes: u64,
    },
    /// Reads the limit of a directory, and how much of it is in use.
    GetUsage {
        /// The directory.
        tree: Tree,
        /// Its file ID.
        file_id: u64,
    },
    /// Reads how much can still be promised to new volumes.
    Capacity,
    /// Copies a directory, or reads how far the copy is. Ask at least every 60 s, or the copy is stopped.
    Copy {
        /// What to copy.
        from: Tree,
        /// Its file ID.
        from_file_id: u64,
        /// The staging directory of the copy, which exists and is empty.
        to: TreeId,
        /// Its file ID.
        to_file_id: u64,
    },
}

/// The result of an [`Operation`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Answer {
    /// Of [`Operation::SetQuota`] and [`Operation::GetUsage`].
    Quota(QuotaInfo),
    /// Of [`Operation::Capacity`].
    Capacity {
        /// Bytes of the file system.
        total: u64,
        /// Free bytes that no limit promises to a volume.
        available: u64,
    },
    /// Of [`Operation::Copy`]. The error of a failed copy is that of the call.
    Copy(CopyStatus),
}

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CopyStatus {
    /// It runs, or waits for others to end.
    Running(Progress),
    /// It is complete and on stable storage.
    Done(CopyReport),
}

/// The limit of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaInfo {
    /// The limit in bytes; 0 is none.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
}

/// A directory of a share that a driver may name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tree {
    /// The directory of a volume.
    Volume(SharePath),
    /// A directory that is being filled.
    Staging(TreeId),
    /// The content of a snapshot.
    Content(TreeId),
}

impl Tree {
    /// The path, relative to the share's root.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Volume(path) => path.as_path().to_owned(),
            Self::Staging(id) => [RECORDS, "staging", &id.0, "data"].iter().collect(),
            Self::Content(id) => [RECORDS, "content", &id.0, "data"].iter().collect(),
        }
    }

    /// The inverse of [`Self::path`]; `None` for a path that no driver may name.
    pub fn of(path: &Path) -> Option<Self> {
        let parts: Option<Vec<&str>> = path.iter().map(|part| part.to_str()).collect();
        let id = |id: &str| TreeId::try_from(id.to_owned()).ok();
        match parts?.as_slice() {
            [RECORDS, "staging", staging, "data"] => id(staging).map(Self::Staging),
            [RECORDS, "content", content, "data"] => id(content).map(Self::Content),
            _ => SharePath::new(path.to_str()?).ok().map(Self::Volume),
        }
    }
}

/// The random ID of a directory in the records of a share: letters, digits and `-`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TreeId(String);

impl TryFrom<String> for TreeId {
    type Error = String;

    fn try_from(id: String) -> Result<Self, String> {
        let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match plain && (1..=64).contains(&id.len()) {
            true => Ok(Self(id)),
            false => Err(format!("{id:?} is not an ID: use 1 to 64 letters, digits and `-`")),
        }
    }
}

impl From<TreeId> for String {
    fn from(id: TreeId) -> Self {
        id.0
    }
}

/// An export of the agent, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportInfo {
    /// The directory on the server.
    pub directory: PathBuf,
    /// The UUID of the share; `None` before its first volume.
    pub share: Option<String>,
    /// Whether limits can be set.
    pub quota: QuotaSupport,
    /// What prevents its use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Whether limits can be set on an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum QuotaSupport {
    /// The file system enforces limits.
    Enforced,
    /// It does not: it is neither xfs nor ext4, or not mounted with `prjquota`.
    NotEnforced,
}

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentErrorKind {
    /// No answer. Only a client says this.
    Unreachable,
    /// The agent has no export with this share.
    UnknownShare,
    /// The request, or the directory that it names, is not acceptable.
    Refused,
    /// The file system cannot do it.
    Unsupported,
    /// The limit of the directory, or the file system, is too small.
    OutOfSpace,
    /// A failure on the server.
    Failed,
}

impl AgentErrorKind {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::Unreachable => 503,
            Self::UnknownShare => 404,
            Self::Refused => 400,
            Self::Unsupported => 409,
            Self::OutOfSpace => 507,
            Self::Failed => 500,
        }
    }
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct AgentError {
    /// The class of the error.
    pub kind: AgentErrorKind,
    /// What happened.
    pub message: String,
}

impl AgentError {
    /// An error of this kind.
    pub fn new(kind: AgentErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_cannot_leave_the_share_or_name_its_records() {
        let parse = |json: &str| serde_json::from_str::<Tree>(json);
        let tree = |json: &str| parse(json).map(|tree| tree.path().display().to_string()).ok();
        assert_eq!(tree(r#"{"volume":"a/b"}"#).as_deref(), Some("a/b"));
        assert_eq!(tree(r#"{"staging":"1a-f"}"#).as_deref(), Some(".wharf/staging/1a-f/data"));
        assert_eq!(tree(r#"{"content":"1"}"#).as_deref(), Some(".wharf/content/1/data"));
        for path in ["a/b", ".wharf/staging/1a-f/data", ".wharf/content/1/data"] {
            assert_eq!(Tree::of(Path::new(path)).unwrap().path(), Path::new(path));
        }
        for path in [
            "",
            "..",
            "a/../b",
            ".wharf",
            ".wharf/volumes/1/data",
            ".wharf/staging/1",
            ".wharf/staging/1/data/x",
        ] {
            assert_eq!(Tree::of(Path::new(path)), None, "{path}");
        }
        for refused in [
            r#"{"volume":"../x"}"#,
            r#"{"volume":"a/../../x"}"#,
            r#"{"volume":""}"#,
            r#"{"volume":"/"}"#,
            r#"{"volume":"."}"#,
            r#"{"volume":".wharf/volumes"}"#,
            r#"{"volume":"a/.WHARF"}"#,
            r#"{"staging":".."}"#,
            r#"{"staging":""}"#,
            r#"{"staging":"a/../../../x"}"#,
            r#"{"path":"/etc"}"#,
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }
}
