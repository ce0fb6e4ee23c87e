//! Mounting an export without mount.nfs: what to pass to mount(2), in which order versions are tried, and what its errors mean.
//!
//! The kernel resolves no names, tries one version and reads no configuration; mount.nfs does that. [`plan`] is the entry
//! point: a pure function from options and an address to a [`MountPlan`], which a worker carries out with [`perform`].

mod compare;
mod failure;
mod options;

use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wharf_linux::{MountRequest, Mounts};

pub use compare::{SourceServer, difference, same_source, server_of};
pub use failure::MountFailure;
pub use options::{Daemons, ParsedOptions, VersionChoice, controller_options};

/// The file system type: the kernel selects nfs4 by `vers=`.
pub const FS_TYPE: &str = "nfs";

/// A protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Version {
    /// NFSv3.
    V3,
    /// NFSv4.0.
    V40,
    /// NFSv4.1.
    V41,
    /// NFSv4.2.
    V42,
}

impl Version {
    /// Newest first, as mount.nfs tries them.
    pub const ALL: [Self; 4] = [Self::V42, Self::V41, Self::V40, Self::V3];

    /// The value of `vers=`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V3 => "3",
            Self::V40 => "4.0",
            Self::V41 => "4.1",
            Self::V42 => "4.2",
        }
    }
}

/// One call of mount(2).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The version.
    pub version: Version,
    /// Options, with `vers=` and `addr=`.
    pub options: Vec<String>,
}

/// Everything that a worker needs to mount an export.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// `server:/path`; an IPv6 address in brackets.
    pub source: String,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// What to try, in this order.
    pub attempts: Vec<Attempt>,
    /// Why NFSv3 is not among the attempts although the options allow it.
    pub without_v3: Option<String>,
}

impl MountPlan {
    /// What a mount with this version says about the server: the version that other mounts can begin with. `None` if the
    /// options left no choice, or if NFSv3 was the last resort: an export can be missing in NFSv4 alone.
    pub(crate) fn negotiated(&self, version: Version) -> Option<Version> {
        Some(version).filter(|version| self.attempts.len() > 1 && *version != Version::V3)
    }
}

/// Options can come from a secret.
impl std::fmt::Debug for MountPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let versions: Vec<&str> = self.attempts.iter().map(|attempt| attempt.version.as_str()).collect();
        f.debug_struct("MountPlan").field("source", &self.source).field("versions", &versions).finish()
    }
}

/// What the driver found out about a server before a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerFacts {
    /// The address that answered.
    pub address: IpAddr,
    /// The address of this node that the server sees. NFSv4.0 servers call back to it.
    pub client_address: Option<IpAddr>,
    /// The version of an earlier mount from this server.
    pub known_version: Option<Version>,
    /// Helper programs on this node.
    pub daemons: Daemons,
}

/// The source column of a mount.
pub fn source(server: &str, path: &str) -> String {
    let path = path.trim_matches('/');
    match server.parse::<std::net::Ipv6Addr>() {
        Ok(address) => format!("[{address}]:/{path}"),
        Err(_) => format!("{server}:/{path}"),
    }
}

/// Decides how to mount. `options` are `mount -o` options, each possibly a comma-separated list.
pub fn plan(
    source: String,
    options: &ParsedOptions,
    read_only: bool,
    facts: &ServerFacts,
) -> Result<MountPlan, MountFailure> {
    options.check_security(&facts.daemons)?;
    let mut versions: Vec<Version> = match options.version {
        VersionChoice::Only(version) => vec![version],
        VersionChoice::AnyV4 => Version::ALL[..3].to_vec(),
        VersionChoice::Any => Version::ALL.to_vec(),
    };
    if let Some(known) = facts.known_version.filter(|known| versions.contains(known)) {
        versions.retain(|version| *version <= known);
    }
    // NFSv3 locks need rpc.statd on this node. Without it a mount succeeds, and each lock fails with ENOLCK.
    let mut without_v3 = None;
    if versions.contains(&Version::V3) && !options.local_locks && facts.daemons.statd == Some(false) {
        let reason = "NFSv3 needs rpc.statd on this node for locks, and it is not running: start it (Debian: nfs-common), \
                      or add the mount option nolock, which keeps locks local to this node";
        if versions == [Version::V3] {
            return Err(MountFailure::precondition(format!("failed to mount {source}: {reason}")));
        }
        versions.retain(|version| *version != Version::V3);
        without_v3 = Some(reason.to_owned());
    }
    let attempts = versions
        .into_iter()
        .map(|version| Attempt { version, options: options.for_kernel(version, facts) })
        .collect();
    Ok(MountPlan { source, read_only: read_only || options.read_only, attempts, without_v3 })
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterFailure {
    /// The error is about this version: try the next one.
    NextVersion,
    /// An old server has no NFSv4 root: try NFSv3, and report this error if that fails, too.
    TryV3,
    /// The error holds for all versions.
    GiveUp,
}

fn after_failure(version: Version, errno: i32) -> AfterFailure {
    match (version, errno) {
        (Version::V3, _) => AfterFailure::GiveUp,
        (_, libc_errno::EPROTONOSUPPORT | libc_errno::EINVAL | libc_errno::EPFNOSUPPORT) => {
            AfterFailure::NextVersion
        }
        (_, libc_errno::ENOENT | libc_errno::EPERM) => AfterFailure::TryV3,
        _ => AfterFailure::GiveUp,
    }
}

/// Mounts at `target`, which must exist. Returns the version that the server accepted.
pub fn perform(kernel: &dyn Mounts, plan: &MountPlan, target: &Path) -> Result<Version, MountFailure> {
    let mut kept: Option<MountFailure> = None;
    let mut only_v3 = false;
    for attempt in &plan.attempts {
        if only_v3 && attempt.version != Version::V3 {
            continue;
        }
        let request = MountRequest {
            source: &plan.source,
            target,
            fs_type: FS_TYPE,
            options: &attempt.options,
            read_only: plan.read_only,
        };
        let Err(error) = kernel.mount(&request) else { return Ok(attempt.version) };
        let Some(errno) = error.errno() else {
            return Err(MountFailure::internal(format!("failed to mount {}: {error}", plan.source)));
        };
        let failure = MountFailure::from_errno(plan, attempt.version, errno);
        match after_failure(attempt.version, errno) {
            AfterFailure::NextVersion => kept = kept.or(Some(failure)),
            AfterFailure::TryV3 => {
                only_v3 = true;
                kept = Some(failure);
            }
            AfterFailure::GiveUp if only_v3 => break,
            AfterFailure::GiveUp => return Err(failure),
        }
    }
    Err(kept.unwrap_or_else(|| MountFailure::internal(format!("no NFS version to mount {}", plan.source))))
}

/// The error numbers that decide. They are the same on all Linux architectures that Wharf supports.
pub(crate) mod libc_errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const ENODEV: i32 = 19;
    pub(crate) const ENOTDIR: i32 = 20;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const EROFS: i32 = 30;
    pub(crate) const EPROTONOSUPPORT: i32 = 93;
    pub(crate) const EPFNOSUPPORT: i32 = 96;
    pub(crate) const ENETUNREACH: i32 = 101;
    pub(crate) const ECONNRESET: i32 = 104;
    pub(crate) const ETIMEDOUT: i32 = 110;
    pub(crate) const ECONNREFUSED: i32 = 111;
    pub(crate) const EHOSTDOWN: i32 = 112;
    pub(crate) const EHOSTUNREACH: i32 = 113;
    pub(crate) const ESTALE: i32 = 116;
    pub(crate) const ENOKEY: i32 = 126;
    pub(crate) const EKEYEXPIRED: i32 = 127;
    pub(crate) const EKEYREJECTED: i32 = 129;
}

#[cfg(test)]
mod tests;
