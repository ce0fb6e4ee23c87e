//! What a failed mount means, and what to do about it.

use serde::{Deserialize, Serialize};

use super::libc_errno as e;
use super::{MountPlan, Version};
use crate::worker::WorkerErrorKind;

/// A mount that failed, with its class and a message that names the export and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct MountFailure {
    /// The class of the error.
    pub kind: WorkerErrorKind,
    /// What failed, why, and what to do.
    pub message: String,
}

impl MountFailure {
    /// The options or the address are wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { kind: WorkerErrorKind::Invalid, message: message.into() }
    }

    /// Something on this node is missing.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self { kind: WorkerErrorKind::Precondition, message: message.into() }
    }

    /// A bug, or a failure of this node.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { kind: WorkerErrorKind::Internal, message: message.into() }
    }

    /// The server does not answer.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { kind: WorkerErrorKind::Unavailable, message: message.into() }
    }

    /// The meaning of mount(2)'s error for an attempt.
    pub(super) fn from_errno(plan: &MountPlan, version: Version, errno: i32) -> Self {
        let source = &plan.source;
        let (kind, advice) = meaning(version, errno);
        let error = std::io::Error::from_raw_os_error(errno);
        let mut message =
            format!("failed to mount {source} with NFSv{}: {error}: {advice}", version.as_str());
        if let (Some(reason), WorkerErrorKind::Invalid) = (&plan.without_v3, kind) {
            message = format!("{message}; NFSv3 was not tried: {reason}");
        }
        Self { kind, message }
    }
}

fn meaning(version: Version, errno: i32) -> (WorkerErrorKind, &'static str) {
    use WorkerErrorKind::{Denied, Internal, Invalid, NotFound, Precondition, Unavailable};

    match errno {
        e::EACCES | e::EPERM => (
            Denied,
            "the server does not allow this node to mount the export: add the node's address to it (`exportfs -v` on the \
             server shows who may), and check its sec= option",
        ),
        e::EROFS => (Denied, "the server exports it read-only: mount it read-only or change the export"),
        e::ENOENT | e::ENOTDIR => {
            (NotFound, "the server has no such directory in its exports: check share and subDir")
        }
        e::ESTALE => (
            NotFound,
            "the server no longer knows this directory: it was removed, or its file system was created again or lost its fsid",
        ),
        e::EINVAL => (Invalid, "the kernel does not accept the mount options: check mountOptions"),
        e::EPROTONOSUPPORT | e::EPFNOSUPPORT => (
            Invalid,
            "the server or this kernel does not support this version: check the vers (nfsvers) mount option and the server's \
             configuration",
        ),
        e::ENODEV => {
            (Precondition, "this kernel has no NFS client: load the module nfs (`modprobe nfs`) on the node")
        }
        e::ENOKEY | e::EKEYEXPIRED | e::EKEYREJECTED => (
            Denied,
            "the server did not accept the Kerberos credentials or TLS certificate: check rpc.gssd or tlshd and its keys on this node",
        ),
        e::ECONNREFUSED | e::ETIMEDOUT if version == Version::V3 => (
            Unavailable,
            "the server's rpcbind, mountd or nfsd does not answer: NFSv3 needs all three, NFSv4 only port 2049",
        ),
        e::ETIMEDOUT
        | e::ECONNREFUSED
        | e::ECONNRESET
        | e::EHOSTUNREACH
        | e::EHOSTDOWN
        | e::ENETUNREACH
        | e::EIO => {
            (Unavailable, "the server does not answer: check that it runs and that port 2049 is not filtered")
        }
        _ => (Internal, "unexpected error of mount(2)"),
    }
}
