//! Inputs and outputs of the runtime: plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use wharf_model::Time;

/// A container's id on this node: 64 hexadecimal digits derived from its pod, name and attempt. The same attempt has
/// the same id, so that a start repeated after a crash finds the first one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContainerId(String);

impl ContainerId {
    /// The id of an attempt of a pod's container.
    pub fn of(pod_uid: &str, container: &str, attempt: u32) -> Self {
        let digest = Sha256::digest(format!("{pod_uid}/{container}/{attempt}"));
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Parses the format of [`Self::as_str`]; anything else is rejected, so an id is safe as a file name.
    pub fn parse(text: &str) -> Option<Self> {
        let digits =
            text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        digits.then(|| Self(text.to_owned()))
    }

    /// The hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A container to run.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// Number of earlier attempts.
    pub attempt: u32,
    /// Arbitrary labels, returned in [`ContainerInfo`].
    pub labels: BTreeMap<String, String>,
    /// The host name in the container.
    pub hostname: String,
    /// The program and its arguments; the program is resolved in the container's `PATH`.
    pub command: Vec<String>,
    /// The complete environment; only `PATH` is added if missing. Later duplicates win.
    pub env: Vec<(String, String)>,
    /// The working directory, created if missing. Empty is `/`.
    pub working_dir: PathBuf,
    /// Keep standard input open, though nothing is written to it; otherwise it is at its end immediately.
    pub stdin: bool,
    /// User and groups.
    pub user: User,
    /// Privileges.
    pub rights: Rights,
    /// File system volumes and single files.
    pub mounts: Vec<ContainerMount>,
    /// Block volumes.
    pub devices: Vec<ContainerDevice>,
}

/// Omits environment values and arguments: both may contain secrets.
impl fmt::Debug for ContainerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSpec")
            .field("pod", &format_args!("{}/{} ({})", self.namespace, self.pod, self.pod_uid))
            .field("container", &self.container)
            .field("attempt", &self.attempt)
            .field("program", &self.command.first())
            .field("env", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("user", &self.user)
            .field("rights", &self.rights)
            .field("mounts", &self.mounts)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

impl ContainerSpec {
    /// The container's id.
    pub fn id(&self) -> ContainerId {
        ContainerId::of(&self.pod_uid, &self.container, self.attempt)
    }
}

/// User and groups of a container's processes: numeric, since there is no image with a passwd file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `runAsUser`; 0 if unset.
    pub uid: u32,
    /// `runAsGroup`; 0 if unset.
    pub gid: u32,
    /// `supplementalGroups` and `fsGroup`.
    pub groups: Vec<u32>,
    /// `runAsNonRoot`: refuse to start as root.
    pub non_root: bool,
}

/// Privileges of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// All capabilities, the host's devices, and writable `/sys`.
    pub privileged: bool,
    /// Capabilities beyond the default set: `NET_ADMIN`, with or without `CAP_`, or `ALL`.
    pub add: Vec<String>,
    /// Capabilities to drop, or `ALL`. A name also in `add` is dropped; `ALL` is applied before single names.
    pub drop: Vec<String>,
    /// No privilege escalation through set-user-ID programs or file capabilities.
    pub no_new_privileges: bool,
    /// Only volumes are writable.
    pub read_only_root: bool,
}

/// A host directory or file mounted in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerMount {
    /// The volume's directory, or a file, on the host.
    pub source: PathBuf,
    /// Mount only this part of it: relative, cannot leave the volume through `..` or a symlink. A directory is
    /// created if it does not exist. Nested mounts are included for hostPath only.
    pub sub_path: Option<PathBuf>,
    /// Mount point in the container; created if missing.
    pub target: PathBuf,
    /// Mounted read-only.
    pub read_only: bool,
    /// The source is a hostPath from the pod, not a directory created for it: refused if it leads into a hidden
    /// directory, and mounted without hidden directories beneath it.
    #[serde(default)]
    pub host: bool,
}

/// A block device in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerDevice {
    /// The device node on the host, or a file it is bound to.
    pub source: PathBuf,
    /// Path in the container.
    pub target: PathBuf,
    /// Read-only: refused unless the device itself is read-only, since a read-only mount of the node does not prevent
    /// writes.
    #[serde(default)]
    pub read_only: bool,
}

/// State of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The program is running.
    Running {
        /// The program's pid on the host.
        pid: u32,
        /// Start time.
        started: Time,
    },
    /// The program exited.
    Exited(Exit),
    /// The container does not exist.
    Unknown,
}

/// How a container exited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The program's exit code; 128 plus the signal number if it was killed by a signal.
    pub code: i32,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// Start time.
    #[serde(with = "milliseconds")]
    pub started: Time,
    /// Exit time.
    #[serde(with = "milliseconds")]
    pub finished: Time,
    /// How the exit is known.
    pub cause: Cause,
}

/// On-disk format of times: milliseconds, unlike the API's whole seconds.
mod milliseconds {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use wharf_model::Time;

    pub(crate) fn serialize<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(time.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        i64::deserialize(deserializer).map(Time)
    }
}

/// How a container's exit is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The shim observed the program's exit.
    Ended,
    /// Not observed: the shim was killed, and the container with it, or the node rebooted. The exit code is 137, as
    /// in kubelet.
    Lost,
    /// The program never ran: the start was interrupted.
    NeverRan,
}

/// An existing container, running or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInfo {
    /// Its id.
    pub id: ContainerId,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// The attempt number.
    pub attempt: u32,
    /// As given at start.
    pub labels: BTreeMap<String, String>,
    /// Started since the last boot.
    pub this_boot: bool,
    /// Its state.
    pub state: State,
}

/// A program to run in a container, in addition to its own.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Connect standard input to [`crate::ExecSession::stdin`]; otherwise it is at its end immediately.
    pub stdin: bool,
    /// Allocate a terminal: standard error is merged into `stdout`.
    pub tty: bool,
    /// The terminal's initial size.
    pub size: Option<TerminalSize>,
}

/// Omits the arguments: they may contain secrets.
impl fmt::Debug for ExecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSpec")
            .field("program", &self.command.first())
            .field("stdin", &self.stdin)
            .field("tty", &self.tty)
            .finish_non_exhaustive()
    }
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// Options of reading a container's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Follow until the container exits.
    pub follow: bool,
    /// Only this many lines from the end.
    pub tail: Option<u64>,
    /// Only lines since this time.
    pub since: Option<Time>,
    /// Prefix each line with its timestamp.
    pub timestamps: bool,
    /// Stop after this many bytes.
    pub limit_bytes: Option<u64>,
    /// Only one of the streams.
    pub stream: Option<LogStream>,
}

/// The stream of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl LogStream {
    /// As CRI log files name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}
