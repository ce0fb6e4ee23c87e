//! Processes: who they are though numbers are used again, and what they leave to those they start.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal,
    set_dumpable_behavior, set_parent_process_death_signal,
};

use crate::sys;

/// A process that is held on to: its number cannot come to mean another one.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    descriptor: OwnedFd,
}

impl Process {
    /// The process with this number that began at `start` (see [`Self::start`]); `None` if it is gone. A process that
    /// has ended but was not waited for yet is still there.
    pub fn find(pid: u32, start: u64) -> io::Result<Option<Self>> {
        // The descriptor first: if the number's process then began at that moment, the descriptor is of no other one.
        let Some(process) = Self::open(pid)? else { return Ok(None) };
        Ok((start_of(pid)? == Some(start)).then_some(process))
    }

    /// The process that has this number now; `None` if there is none. Certain only for one's own child.
    pub fn open(pid: u32) -> io::Result<Option<Self>> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Some(Self { pid, descriptor })),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// When it began, in the kernel's ticks since the machine was started; `None` if it is gone.
    pub fn start(&self) -> io::Result<Option<u64>> {
        start_of(self.pid())
    }

    /// Sends it a signal; `false` if it has ended.
    pub fn signal(&self, signal: i32) -> io::Result<bool> {
        let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
        match pidfd_send_signal(&self.descriptor, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills it and its process group, which must be its own. For a child that was not waited for yet: until then its
    /// number, and so its group's, means nobody else.
    pub fn kill_group(&self) -> io::Result<()> {
        match kill_process_group(self.pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it has ended, so many milliseconds at most; 0 only looks.
    pub fn ended_within(&self, milliseconds: u32) -> io::Result<bool> {
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

    /// The descriptor; readable when the process has ended.
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Field 22 of `/proc/<pid>/stat`. The second one is the program's name, which may hold anything, so counting begins
/// behind its last parenthesis.
fn start_of(pid: u32) -> io::Result<Option<u64>> {
    let text = match fs::read(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // It ended between open and read.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(parse_start(&text))
}

fn parse_start(stat: &[u8]) -> Option<u64> {
    let name_ends = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?;
    // The third field is the first one of the rest.
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Names the time since the machine was last started; start times and process numbers mean nothing beyond it.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// The caller gets SIGKILL when the thread that started it ends. Changing user or group takes it away again.
pub fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Nobody without CAP_SYS_PTRACE sees through `/proc` which program the caller runs, or its descriptors. Until it
/// executes another one.
pub fn hide_from_debuggers() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Every signal does what it does by default: programs inherit which ones are ignored, and an agent that was started by
/// `nohup` would leave them deaf.
pub fn default_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: no handler is installed, so no code of ours runs at any odd moment. That SIGKILL and SIGSTOP cannot be
        // set, and some numbers are the C library's own, is answered by an error.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// What asks a process to end does nothing to the caller, and to what it starts until [`default_signals`].
pub fn ignore_requests_to_end() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: as above, no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// When memory is short, the caller and what it starts are killed before all others. Saying so takes no rights.
pub fn go_first_without_memory() -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", "1000")
}

/// The caller begins a session of its own, without a terminal.
pub fn new_session() -> io::Result<()> {
    Ok(rustix::process::setsid().map(drop)?)
}

/// Leaves a descriptor open in the program that is started next. For processes with one thread: another one could start
/// a program of its own meanwhile.
pub fn to_inherit(file: impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfd(file, FdFlags::empty())?)
}

/// A descriptor that whoever started this program left open for it by [`to_inherit`]. It is not inherited further.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: borrowed for two calls that neither close it nor keep it; a number that is not open is an error of the
    // first. What is answered is a descriptor of its own, so nobody's is closed twice.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(file, FdFlags::CLOEXEC)?;
    Ok(fcntl_dupfd_cloexec(file, 3)?)
}

/// Of all that is open, only input, output and errors are left to programs that are executed from now on.
pub fn forget_inherited() -> io::Result<()> {
    sys::close_on_exec_from(3)
}

/// `prepare` is run in the new process before it executes the command's program, and may do all that the caller may.
/// The caller must have one thread, now and when it starts the command.
pub fn after_fork(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("there is more than one thread"));
    }
    // SAFETY: what is forbidden between fork and exec is to need a lock that another thread held at the fork. There is
    // no other thread, which was just checked, so nobody holds any.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_time_is_found_behind_any_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["sh", "a b", "a) S 1 2", "((", ""] {
            assert_eq!(parse_start(format!("12 ({name}) {rest}").as_bytes()), Some(4711), "{name}");
        }
        assert_eq!(parse_start(b"12 (sh) S 1"), None);
        assert_eq!(parse_start(b""), None);
    }

    #[test]
    fn a_number_with_another_start_is_another_process() {
        let pid = std::process::id();
        let own = Process::open(pid).unwrap().unwrap();
        let start = own.start().unwrap().unwrap();
        assert!(Process::find(pid, start).unwrap().is_some());
        assert!(Process::find(pid, start + 1).unwrap().is_none());
        assert!(!own.ended_within(0).unwrap());
    }

    #[test]
    fn an_end_is_seen_and_signals_to_the_ended_go_nowhere() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap().unwrap();
        assert!(!process.ended_within(0).unwrap());
        assert!(process.signal(libc::SIGKILL).unwrap());
        assert!(process.ended_within(10_000).unwrap());
        child.wait().unwrap();
        assert!(!process.signal(libc::SIGKILL).unwrap());
    }
}
