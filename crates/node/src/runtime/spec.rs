//! What is asked of the runtime, and what it answers: plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use wharf_model::Time;

use crate::paths::hash;

/// A container's name on this node: 64 hexadecimal digits made of its pod, its name and its attempt. The same attempt
/// has the same id, so that a start which is asked for again after a crash finds the first one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContainerId(String);

impl ContainerId {
    /// The id of a pod's container, in its `attempt`th life.
    pub fn of(pod_uid: &str, container: &str, attempt: u32) -> Self {
        Self(hash(&format!("{pod_uid}/{container}/{attempt}")))
    }

    /// An id as [`Self::as_str`] gave it; nothing else has its shape, so it is safe as a file name.
    pub fn parse(text: &str) -> Option<Self> {
        let digits =
            text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        digits.then(|| Self(text.to_owned()))
    }

    /// The digits.
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
    /// How many lives it has had before.
    pub attempt: u32,
    /// Whatever the caller wants to find again in [`Found`].
    pub labels: BTreeMap<String, String>,
    /// The host name it sees.
    pub hostname: String,
    /// The program and its arguments; the program is looked for in the container's `PATH`.
    pub command: Vec<String>,
    /// The environment, all of it; only `PATH` is added if it is missing. Of two of a name the later counts.
    pub env: Vec<(String, String)>,
    /// Where it starts; made if it is missing. Empty is `/`.
    pub working_dir: PathBuf,
    /// Its standard input stays open though nobody writes to it; else it is at its end at once.
    pub stdin: bool,
    /// Who it is.
    pub user: User,
    /// What it may do.
    pub rights: Rights,
    /// Volumes with files, and single files.
    pub mounts: Vec<ContainerMount>,
    /// Volumes that are devices.
    pub devices: Vec<ContainerDevice>,
}

/// Without values of the environment and without arguments: both may hold secrets.
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
    /// The id that this container will have.
    pub fn id(&self) -> ContainerId {
        ContainerId::of(&self.pod_uid, &self.container, self.attempt)
    }
}

/// Who a container's processes are: numbers only, since there is no image whose user list could be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `runAsUser`; 0 if nobody said.
    pub uid: u32,
    /// `runAsGroup`; 0 if nobody said.
    pub gid: u32,
    /// `supplementalGroups` and `fsGroup`.
    pub groups: Vec<u32>,
    /// `runAsNonRoot`: refuse to start as root.
    pub non_root: bool,
}

/// What a container may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// All capabilities, the host's devices, `/sys` for writing.
    pub privileged: bool,
    /// Capabilities beyond the default set: `NET_ADMIN`, with or without `CAP_`, or `ALL`.
    pub add: Vec<String>,
    /// Capabilities that it does not get, or `ALL`. What is also in `add` is dropped; `ALL` counts before single names.
    pub drop: Vec<String>,
    /// No program can gain rights by being set-user-ID or having capabilities of its own.
    pub no_new_privileges: bool,
    /// Nothing but volumes can be written to.
    pub read_only_root: bool,
}

/// A directory or file of the host in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerMount {
    /// The volume's directory, or a file, on the host.
    pub source: PathBuf,
    /// Only this part of it: relative, cannot leave the volume by `..` or a link. A directory of this name is made if
    /// nothing is there. What is mounted in it comes along only from the host.
    pub sub_path: Option<PathBuf>,
    /// Where the container sees it; made if it is missing.
    pub target: PathBuf,
    /// For reading only.
    pub read_only: bool,
    /// The source is what the pod named, not what was made for it: refused if it leads into a hidden place, and without
    /// those that are beneath it.
    #[serde(default)]
    pub host: bool,
}

/// A block device in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerDevice {
    /// The device node on the host, or a file it is bound to.
    pub source: PathBuf,
    /// Where the container sees it.
    pub target: PathBuf,
    /// For reading only: refused unless the device itself is, since no mount of its node keeps anybody from writing.
    #[serde(default)]
    pub read_only: bool,
}

/// How a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Its program runs.
    Running {
        /// The program's process on the host.
        pid: u32,
        /// Since when.
        started: Time,
    },
    /// Its program has ended.
    Exited(Exit),
    /// There is no such container.
    Unknown,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The program's exit code; 128 and the signal's number if a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// When it began.
    #[serde(with = "milliseconds")]
    pub started: Time,
    /// When it ended.
    #[serde(with = "milliseconds")]
    pub finished: Time,
    /// What is known of its end.
    pub cause: Cause,
}

/// A time on disk: not as in the API, which has whole seconds.
mod milliseconds {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use wharf_model::Time;

    pub(super) fn serialize<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(time.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        i64::deserialize(deserializer).map(Time)
    }
}

/// What is known of a container's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The program ended, and its shim saw it.
    Ended,
    /// Nobody saw it: the shim was killed, and the container with it, or the machine was started anew. The code is 137,
    /// as kubelet has it then.
    Lost,
    /// The program never ran: the start was broken off.
    NeverRan,
}

/// A container that is there, running or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
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
    /// Which life of it.
    pub attempt: u32,
    /// As given at its start.
    pub labels: BTreeMap<String, String>,
    /// It was begun since the machine was last started.
    pub this_boot: bool,
    /// How it is.
    pub state: State,
}

/// A program to run in a container beside its own.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// It gets what we write to [`super::ExecSession::stdin`]; else its input is at its end at once.
    pub stdin: bool,
    /// It gets a terminal: output and errors come together on `stdout`.
    pub tty: bool,
    /// The terminal's size at the beginning.
    pub size: Option<TerminalSize>,
}

/// Without the arguments: they may hold secrets.
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

/// Which part of a container's log is wanted, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on until the container has ended.
    pub follow: bool,
    /// Only so many lines from the end.
    pub tail: Option<u64>,
    /// Only lines since then.
    pub since: Option<Time>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// End after so many bytes.
    pub limit_bytes: Option<u64>,
    /// Only standard output or only standard error.
    pub stream: Option<LogStream>,
}

/// Where a line came from.
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
