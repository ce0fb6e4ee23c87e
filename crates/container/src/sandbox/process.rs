//! Process handles that survive reuse of process IDs, and what a process passes on to the programs it starts.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process_group, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, setrlimit,
};

/// A handle to a process (a pidfd): it never refers to another process, even if the process ID is reused.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: Pid,
    descriptor: OwnedFd,
}

impl ProcessHandle {
    /// The process with this ID and start time (see `start_time`); `None` if it no longer exists. A zombie still exists.
    pub(crate) fn find(pid: u32, start: u64) -> io::Result<Option<Self>> {
        // Open the pidfd first: if the start time matches afterwards, the pidfd refers to that process and no other.
        let Some(process) = Self::open(pid)? else { return Ok(None) };
        Ok((read_start_time(pid)? == Some(start)).then_some(process))
    }

    /// The process that has this ID now; `None` if there is none. Unambiguous only for the caller's own children.
    pub(crate) fn open(pid: u32) -> io::Result<Option<Self>> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Some(Self { pid, descriptor })),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The start time in clock ticks since boot; `None` if the process no longer exists.
    pub(crate) fn start_time(&self) -> io::Result<Option<u64>> {
        read_start_time(self.pid())
    }

    /// Sends a signal; `false` if the process has exited.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<bool> {
        let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
        match pidfd_send_signal(&self.descriptor, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills the process and its process group, which it must lead. For children that were not waited for yet: until
    /// then the process ID, and so the group ID, cannot be reused.
    pub(crate) fn kill_group(&self) -> io::Result<()> {
        match kill_process_group(self.pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has exited, for at most this time; 0 only checks.
    pub(crate) fn exited_within(&self, milliseconds: u32) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let seconds = i64::from(milliseconds / 1000);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(milliseconds % 1000) * 1_000_000 };
        loop {
            match poll(&mut fds, Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The pidfd; it becomes readable when the process exits.
    pub(crate) fn into_pidfd(self) -> OwnedFd {
        self.descriptor
    }
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Field 22 of `/proc/<pid>/stat`. Field 2 is the program's name, which can contain any character, so fields are counted
/// after its last parenthesis.
fn read_start_time(pid: u32) -> io::Result<Option<u64>> {
    let text = match fs::read(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // The process exited between open and read.
        Err(error) if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::SRCH) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    Ok(parse_start_time(&text))
}

fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let name_ends = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?;
    // The first field of the rest is field 3.
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Identifies the current boot: start times and process IDs are only meaningful within it.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// The kernel sends the caller SIGKILL when the thread that started it exits. A change of user or group clears this.
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// The caller, and programs it starts, dump no core when they crash, unless they raise the limit themselves. A core dump of
/// one could overwrite files of the host, and holds its memory.
pub(crate) fn disable_core_dumps() -> io::Result<()> {
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    Ok(setrlimit(Resource::Core, limit)?)
}

/// Under memory pressure the kernel kills the caller and the programs it starts before all others. Needs no privileges.
pub(crate) fn raise_oom_score() -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", "1000")
}

/// Starts a new session without a controlling terminal.
pub(crate) fn new_session() -> io::Result<()> {
    Ok(rustix::process::setsid().map(drop)?)
}

/// Keeps a descriptor open in programs that the caller executes. Only for single-threaded processes: another thread could
/// start a program at the same time.
pub(crate) fn make_inheritable(file: impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfd(file, FdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn start_time_is_parsed_after_any_program_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["sh", "a b", "a) S 1 2", "((", ""] {
            assert_eq!(parse_start_time(format!("12 ({name}) {rest}").as_bytes()), Some(4711), "{name}");
        }
        assert_eq!(parse_start_time(b"12 (sh) S 1"), None);
        assert_eq!(parse_start_time(b""), None);
    }

    #[test]
    fn find_rejects_a_process_with_another_start_time() {
        let pid = std::process::id();
        let own = ProcessHandle::open(pid).unwrap().unwrap();
        let start = own.start_time().unwrap().unwrap();
        assert!(ProcessHandle::find(pid, start).unwrap().is_some());
        assert!(ProcessHandle::find(pid, start + 1).unwrap().is_none());
        assert!(!own.exited_within(0).unwrap());
    }

    #[test]
    fn exit_is_detected_and_later_signals_return_false() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = ProcessHandle::open(child.id()).unwrap().unwrap();
        assert!(!process.exited_within(0).unwrap());
        assert!(process.signal(Signal::KILL.as_raw()).unwrap());
        assert!(process.exited_within(10_000).unwrap());
        child.wait().unwrap();
        assert!(!process.signal(Signal::KILL.as_raw()).unwrap());
    }
}
