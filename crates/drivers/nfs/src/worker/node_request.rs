//! Operations of the node service that touch a mount: one per process, in the driver's mount namespace.

use std::fmt;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use wharf_linux::{Error, Filesystems as _, FsUsage, Linux, Mounts as _};

use super::WorkerErrorKind;
use super::protocol::Root;
use crate::mount::{self, MountFailure, Version, libc_errno as e};

/// One operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeRequest {
    /// Creates the target directory and mounts on it.
    Mount {
        /// What to mount.
        root: Root,
        /// Where.
        target: PathBuf,
        /// Whether the mount is read-only.
        read_only: bool,
        /// The mode of the volume's root directory, if it must be set.
        permissions: Option<u32>,
    },
    /// Sets the mode of the root directory of a volume that is mounted.
    SetPermissions {
        /// The mount point.
        target: PathBuf,
        /// The mode.
        mode: u32,
        /// Whether it is an NFS mount.
        nfs: bool,
    },
    /// Follows symlinks among the directories of a target, so that it can be compared with the mount table.
    Resolve(PathBuf),
    /// Asks the server whether it still knows the root directory of a mount.
    Check(PathBuf),
    /// Unmounts.
    Unmount {
        /// The mount point.
        target: PathBuf,
        /// How.
        mode: UnmountMode,
    },
    /// Removes a target that is no longer mounted.
    RemoveTarget(PathBuf),
    /// Reads the usage of a mounted file system.
    Usage(PathBuf),
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UnmountMode {
    /// As `umount`.
    Plain,
    /// Abort the requests of all mounts of the export (MNT_FORCE).
    Force,
    /// Remove it from the mount table; the kernel cleans up later (MNT_DETACH).
    Detach,
}

impl UnmountMode {
    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Force => "force",
            Self::Detach => "lazy",
        }
    }
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeResponse {
    /// The volume is mounted.
    Mounted {
        /// The NFS version.
        version: Option<Version>,
        /// What happened to the mode of its root directory.
        permissions: MountPermissions,
    },
    /// Whether the server still knows the root directory.
    Checked {
        /// The server does not know the file handle (ESTALE).
        stale: bool,
    },
    /// What happened to the mode of the root directory.
    Permissions(MountPermissions),
    /// The target as in the mount table.
    Resolved(PathBuf),
    /// Done.
    Done,
    /// Usage of the file system.
    Usage(NodeUsage),
}

/// What happened to the mode of the volume's root directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountPermissions {
    /// It is as requested, or nothing was requested.
    AsRequested,
    /// The mount is read-only.
    SkippedReadOnly,
    /// The server refused the change.
    Refused(String),
}

/// Bytes and inodes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    total_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    total_inodes: u64,
    used_inodes: u64,
    available_inodes: u64,
    read_only: bool,
}

impl From<FsUsage> for NodeUsage {
    fn from(usage: FsUsage) -> Self {
        let FsUsage {
            total_bytes,
            used_bytes,
            available_bytes,
            total_inodes,
            used_inodes,
            available_inodes,
            read_only,
        } = usage;
        Self {
            total_bytes,
            used_bytes,
            available_bytes,
            total_inodes,
            used_inodes,
            available_inodes,
            read_only,
        }
    }
}

impl From<NodeUsage> for FsUsage {
    fn from(usage: NodeUsage) -> Self {
        let NodeUsage {
            total_bytes,
            used_bytes,
            available_bytes,
            total_inodes,
            used_inodes,
            available_inodes,
            read_only,
        } = usage;
        Self {
            total_bytes,
            used_bytes,
            available_bytes,
            total_inodes,
            used_inodes,
            available_inodes,
            read_only,
        }
    }
}

impl NodeRequest {
    /// Whether it may be sent to a server on which workers are blocked. Unmounting does not contact the server, and is what
    /// gets a node rid of it.
    pub(super) fn is_cleanup(&self) -> bool {
        matches!(self, Self::Resolve(_) | Self::Unmount { .. } | Self::RemoveTarget(_))
    }

    /// What is done, for errors.
    pub(super) fn subject(&self) -> String {
        let at = |verb: &str, path: &Path| format!("{verb} {}", path.display());
        match self {
            Self::Mount { target, .. } => at("mounting at", target),
            Self::SetPermissions { target, .. } => at("setting the mode of", target),
            Self::Resolve(path) => at("resolving", path),
            Self::Check(path) => at("checking", path),
            Self::Unmount { target, mode } => format!("unmounting {} ({})", target.display(), mode.as_str()),
            Self::RemoveTarget(target) => at("removing", target),
            Self::Usage(path) => at("reading the usage of", path),
        }
    }
}

impl fmt::Display for UnmountMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Does it. Runs in a worker.
pub(super) fn perform(request: NodeRequest) -> Result<NodeResponse, MountFailure> {
    let kernel = Linux::new();
    match request {
        NodeRequest::Mount { root, target, read_only, permissions } => {
            kernel.create_target_dir(&target).map_err(|error| failed(&error))?;
            let version = match &root {
                Root::Export(plan) => Some(mount::perform(&kernel, plan, &target)?),
                Root::Directory(source) => {
                    kernel.bind(source, &target, read_only).map_err(|error| failed(&error))?;
                    None
                }
            };
            let permissions = match permissions {
                Some(_) if read_only => MountPermissions::SkippedReadOnly,
                Some(mode) => set_mode(&target, mode, matches!(root, Root::Export(_))).inspect_err(|_| {
                    // A call that fails for good must not leave a mount: kubelet would not unpublish it. If this fails,
                    // the error of the mode is still the one to report.
                    let _ = kernel.unmount(&target);
                })?,
                None => MountPermissions::AsRequested,
            };
            Ok(NodeResponse::Mounted { version, permissions })
        }
        NodeRequest::SetPermissions { target, mode, nfs } => {
            set_mode(&target, mode, nfs).map(NodeResponse::Permissions)
        }
        NodeRequest::Resolve(path) => {
            kernel.resolve(&path).map(NodeResponse::Resolved).map_err(|error| failed(&error))
        }
        // Unlike stat, statfs is never answered from the client's cache.
        NodeRequest::Check(path) => match kernel.usage(&path) {
            Ok(_) => Ok(NodeResponse::Checked { stale: false }),
            Err(error) if error.errno() == Some(e::ESTALE) => Ok(NodeResponse::Checked { stale: true }),
            Err(error) => Err(failed(&error)),
        },
        NodeRequest::Unmount { target, mode } => {
            let unmounted = match mode {
                UnmountMode::Plain => kernel.unmount(&target),
                UnmountMode::Force => kernel.unmount_forcibly(&target),
                UnmountMode::Detach => kernel.unmount_lazily(&target),
            };
            unmounted.map(|()| NodeResponse::Done).map_err(|error| failed(&error))
        }
        NodeRequest::RemoveTarget(target) => {
            kernel.remove_target(&target).map(|()| NodeResponse::Done).map_err(|error| failed(&error))
        }
        NodeRequest::Usage(path) => {
            kernel.usage(&path).map(|usage| NodeResponse::Usage(usage.into())).map_err(|error| failed(&error))
        }
    }
}

/// Sets the mode of the volume's root, if it differs. A server that refuses (root_squash, or an export that is read-only) is no
/// reason to fail: the volume is mounted, and pods may be able to use it.
fn set_mode(target: &Path, mode: u32, nfs: bool) -> Result<MountPermissions, MountFailure> {
    let failed_call = |call, error| failed(&Error::call(call, target, error));
    // What is compared is what is changed, and never through a symlink.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(target, flags, Mode::empty())
        .map_err(|errno| failed_call("open", std::io::Error::from(errno)))?;
    if nfs {
        let found =
            rustix::fs::fstatfs(&root).map_err(|errno| failed_call("statfs", std::io::Error::from(errno)))?;
        if found.f_type != rustix::fs::NFS_SUPER_MAGIC {
            let message = format!("{} was unmounted before its mode could be set", target.display());
            return Err(MountFailure::unavailable(message));
        }
    }
    let root = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    let current = std::fs::metadata(&root).map_err(|error| failed_call("stat", error))?.mode() & 0o7777;
    if current == mode & 0o7777 {
        return Ok(MountPermissions::AsRequested);
    }
    match std::fs::set_permissions(&root, std::fs::Permissions::from_mode(mode)) {
        Ok(()) => Ok(MountPermissions::AsRequested),
        Err(error) if matches!(error.raw_os_error(), Some(e::EPERM | e::EACCES)) => {
            Ok(MountPermissions::Refused(error.to_string()))
        }
        Err(error) if error.raw_os_error() == Some(e::EROFS) => Ok(MountPermissions::SkippedReadOnly),
        Err(error) => Err(failed_call("chmod", error)),
    }
}

fn failed(error: &Error) -> MountFailure {
    let kind = match (error, error.errno()) {
        (Error::InvalidState { .. } | Error::InUse { .. }, _) => WorkerErrorKind::Precondition,
        (_, Some(e::EACCES)) => WorkerErrorKind::Denied,
        (_, Some(e::ENOENT | e::ENOTDIR)) => WorkerErrorKind::NotFound,
        (_, Some(e::EIO | e::ETIMEDOUT | e::ESTALE | e::ECONNREFUSED | e::EHOSTUNREACH)) => {
            WorkerErrorKind::Unavailable
        }
        _ => WorkerErrorKind::Internal,
    };
    MountFailure { kind, message: error.to_string() }
}
