//! Frozen file systems, held by a child process that lets go whatever happens to us.
//!
//! The child is forked and never executes anything else: it closes every descriptor but its own (so it keeps
//! no socket and no pool lock), freezes, reports, waits on a pipe, thaws and exits. When we drop our end of
//! the pipe, when we are killed, or when the time is up, it thaws. Only killing the child as well leaves a
//! file system frozen; [`crate::Filesystems::thaw`] is for that.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::{Error, Frozen, Result, sys};

/// How long the freezing itself may take: it waits for writes that are under way.
const START: Duration = Duration::from_secs(30);

/// The child's exit codes.
const HELD: i32 = 0;
const FAILED: i32 = 1;
const EXPIRED: i32 = 2;
const BROKEN: i32 = 3;

/// What the child needs, laid out before the fork: it must not allocate.
struct Plan {
    file_systems: Vec<RawFd>,
    control: RawFd,
    report: RawFd,
    /// All of the above, ascending.
    keep: Vec<RawFd>,
    at_most: Duration,
}

/// The parent's side.
struct Guard {
    child: Option<Pid>,
    /// Dropping it is the sign to thaw.
    control: Option<OwnedFd>,
    /// For the case that somebody killed the child.
    file_systems: Vec<(PathBuf, OwnedFd)>,
}

pub(super) fn freeze(mount_points: &[&Path], at_most: Duration) -> Result<Box<dyn Frozen>> {
    let first = mount_points.first().copied().unwrap_or(Path::new(""));
    let file_systems =
        mount_points.iter().map(|path| Ok((path.to_path_buf(), open(path)?))).collect::<Result<Vec<_>>>()?;
    for (path, fd) in &file_systems {
        // Most of the writing happens before anybody has to wait for it.
        rustix::fs::syncfs(fd).map_err(|errno| Error::call("syncfs", path, errno))?;
    }
    let pipe =
        || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Error::call("pipe", first, errno));
    let (control_read, control_write) = pipe()?;
    let (report_read, report_write) = pipe()?;
    let plan = Plan::new(&file_systems, &control_read, &report_write, at_most);
    // SAFETY: the child calls `hold`, which makes only async-signal-safe calls on data that exists already,
    // and never returns; so it touches no lock that another thread held at the fork.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(Error::call("fork", first, io::Error::last_os_error())),
        0 => hold(&plan),
        pid => Pid::from_raw(pid),
    };
    drop((control_read, report_write));
    let guard = Guard { child, control: Some(control_write), file_systems };
    match await_report(&report_read) {
        Ok(Report::Frozen) => Ok(Box::new(guard)),
        // Dropping the guard reaps the child, which has thawed already what it had frozen.
        Ok(Report::Failed { index, errno }) => {
            let path = mount_points.get(index).copied().unwrap_or(first);
            Err(Error::call("FIFREEZE", path, io::Error::from_raw_os_error(errno)))
        }
        // The child was killed; dropping the guard thaws what it may have frozen.
        Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Error::call("freeze", first, source))
        }
        Err(source) => {
            // It may sit in the kernel for long: it thaws when it comes out, and nobody waits for it here.
            guard.leave();
            Err(Error::call("freeze", first, source))
        }
    }
}

pub(super) fn thaw(mount_point: &Path) -> Result<()> {
    let fd = open(mount_point)?;
    match sys::thaw_raw(fd.as_raw_fd()) {
        0 | libc::EINVAL => Ok(()),
        errno => Err(Error::call("FITHAW", mount_point, io::Error::from_raw_os_error(errno))),
    }
}

fn open(mount_point: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(mount_point, flags, Mode::empty())
        .map_err(|errno| Error::call("open", mount_point, errno))
}

impl Plan {
    fn new(
        file_systems: &[(PathBuf, OwnedFd)],
        control: &OwnedFd,
        report: &OwnedFd,
        at_most: Duration,
    ) -> Self {
        let file_systems: Vec<RawFd> = file_systems.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
        let (control, report) = (control.as_raw_fd(), report.as_raw_fd());
        let mut keep = file_systems.clone();
        keep.extend([control, report]);
        keep.sort_unstable();
        Self { file_systems, control, report, keep, at_most }
    }
}

/// The child. Async-signal-safe calls only: no allocation, no lock, no panic.
fn hold(plan: &Plan) -> ! {
    // SAFETY: plain system calls on memory of this function or of the plan. Signals are blocked and the
    // session is left so that whatever stops our process (a terminal, a supervisor's SIGTERM to the group)
    // does not end the child before it has thawed.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::setsid();
    }
    close_all_but(&plan.keep);
    let end = now_ms().saturating_add(i64::try_from(plan.at_most.as_millis()).unwrap_or(i64::MAX));
    for (index, &fd) in plan.file_systems.iter().enumerate() {
        let mut errno = sys::freeze_raw(fd);
        if errno == 0 && now_ms() >= end {
            // The next one would come too late for the first.
            sys::thaw_raw(fd);
            errno = libc::ETIMEDOUT;
        }
        if errno != 0 {
            for &frozen in plan.file_systems[..index].iter().rev() {
                sys::thaw_raw(frozen);
            }
            report(plan.report, index, errno);
            exit(FAILED);
        }
    }
    report(plan.report, 0, 0);
    let held = wait_for_close(plan.control, end);
    let mut broken = false;
    for &fd in plan.file_systems.iter().rev() {
        // "Not frozen": somebody else thawed it while we relied on it.
        broken |= sys::thaw_raw(fd) != 0;
    }
    exit(match (held, broken) {
        (_, true) => BROKEN,
        (true, false) => HELD,
        (false, false) => EXPIRED,
    })
}

/// Closes the gaps between the descriptors to keep, and all above them.
fn close_all_but(keep: &[RawFd]) {
    let close = |first: libc::c_uint, last: libc::c_uint| {
        if first <= last {
            // SAFETY: the child uses no other descriptor, and nothing of ours is dropped in it.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    let mut next: libc::c_uint = 0;
    for &fd in keep {
        let fd = fd.unsigned_abs();
        if fd > 0 {
            close(next, fd - 1);
        }
        next = fd + 1;
    }
    close(next, libc::c_uint::MAX);
}

/// True when the other end was closed, false when `end` came first.
fn wait_for_close(control: RawFd, end: i64) -> bool {
    loop {
        let left = end.saturating_sub(now_ms());
        if left <= 0 {
            return false;
        }
        let mut fd = libc::pollfd { fd: control, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, valid for the call.
        let ready = unsafe { libc::poll(&mut fd, 1, i32::try_from(left).unwrap_or(i32::MAX)) };
        if ready > 0 {
            return true;
        }
        if ready < 0 && sys::errno() != libc::EINTR {
            return false;
        }
    }
}

fn now_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// Eight bytes: which file system, and which errno; all zero for "frozen". Fits a pipe, so it is whole or not.
fn report(fd: RawFd, index: usize, errno: i32) {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(index as u32).to_ne_bytes());
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: eight bytes of a local array. SIGPIPE is blocked; a parent that is gone needs no report.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

fn exit(code: i32) -> ! {
    // SAFETY: ends the process without running anything of the parent's.
    unsafe { libc::_exit(code) }
}

enum Report {
    Frozen,
    Failed { index: usize, errno: i32 },
}

fn await_report(pipe: &OwnedFd) -> io::Result<Report> {
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    let timeout = Timespec::try_from(START).ok();
    if rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = [0; 8];
    File::from(pipe.as_fd().try_clone_to_owned()?).read_exact(&mut bytes)?;
    let [i0, i1, i2, i3, e0, e1, e2, e3] = bytes;
    let index = u32::from_ne_bytes([i0, i1, i2, i3]) as usize;
    Ok(match i32::from_ne_bytes([e0, e1, e2, e3]) {
        0 => Report::Frozen,
        errno => Report::Failed { index, errno },
    })
}

impl Guard {
    /// Lets the child go and says how it went.
    fn end(&mut self) -> Result<()> {
        self.control = None;
        let Some(child) = self.child.take() else { return Ok(()) };
        let first = self.file_systems.first().map(|(path, _)| path.clone()).unwrap_or_default();
        let waited =
            rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), WaitOptions::empty()));
        let status = match waited {
            Ok(status) => status.map(|(_, status)| status),
            Err(errno) => {
                self.thaw_ourselves();
                return Err(Error::call("waitpid", &first, errno));
            }
        };
        match status.and_then(WaitStatus::exit_status) {
            Some(HELD | FAILED) => Ok(()),
            Some(EXPIRED) => Err(not_held(first, "the time was up and it was thawed")),
            Some(BROKEN) => Err(not_held(first, "somebody else thawed it")),
            _ => {
                self.thaw_ourselves();
                Err(not_held(first, "the process that held it was killed"))
            }
        }
    }

    fn thaw_ourselves(&self) {
        for (path, fd) in self.file_systems.iter().rev() {
            let errno = sys::thaw_raw(fd.as_raw_fd());
            if errno != 0 && errno != libc::EINVAL {
                tracing::error!(path = %path.display(), errno, "could not thaw; `fsfreeze -u` does it by hand");
            }
        }
    }

    /// Lets the child go without waiting for it; a thread reaps it.
    fn leave(mut self) {
        self.control = None;
        if let Some(child) = self.child.take() {
            std::thread::spawn(move || rustix::process::waitpid(Some(child), WaitOptions::empty()));
        }
    }
}

fn not_held(path: PathBuf, how: &str) -> Error {
    let reason = format!("did not stay frozen: {how}; what was copied meanwhile may be torn");
    Error::State { path, reason }
}

impl Frozen for Guard {
    fn thaw(mut self: Box<Self>) -> Result<()> {
        self.end()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "freeze ended badly");
        }
    }
}
