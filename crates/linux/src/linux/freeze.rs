//! Frozen file systems, held by a child process that thaws them even if this process is killed.
//!
//! The child is forked and executes no program. It closes all descriptors but its own (so it holds no socket and no pool
//! lock), freezes, reports, waits on a pipe, thaws and exits. It thaws when the parent closes its end of the pipe, when
//! the parent is killed, or when the time is up. A file system stays frozen only if the child is killed too;
//! [`crate::Filesystems::thaw`] is for that case.

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

/// How long freezing may take: it waits for writes in progress.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);

/// The child's exit codes.
const HELD: i32 = 0;
const FAILED: i32 = 1;
const EXPIRED: i32 = 2;
const BROKEN: i32 = 3;

/// The child's data, prepared before the fork: the child must not allocate.
struct Plan {
    file_systems: Vec<RawFd>,
    control: RawFd,
    report: RawFd,
    /// All of the above, ascending.
    keep: Vec<RawFd>,
    at_most: Duration,
}

/// The parent's side.
struct FreezeGuard {
    child: Option<Pid>,
    /// Closing it tells the child to thaw.
    control: Option<OwnedFd>,
    /// To thaw from here if the child was killed.
    file_systems: Vec<(PathBuf, OwnedFd)>,
}

pub(super) fn freeze(mount_points: &[&Path], at_most: Duration) -> Result<Box<dyn Frozen>> {
    let first = mount_points.first().copied().unwrap_or(Path::new(""));
    let file_systems =
        mount_points.iter().map(|path| Ok((path.to_path_buf(), open(path)?))).collect::<Result<Vec<_>>>()?;
    for (path, fd) in &file_systems {
        // Flush most dirty data before the freeze, so that writers are blocked for a short time.
        rustix::fs::syncfs(fd).map_err(|errno| Error::call("syncfs", path, errno))?;
    }
    let pipe =
        || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Error::call("pipe", first, errno));
    let (control_read, control_write) = pipe()?;
    let (report_read, report_write) = pipe()?;
    let plan = Plan::new(&file_systems, &control_read, &report_write, at_most);
    // SAFETY: the child calls `freeze_and_wait`, which makes only async-signal-safe calls on data that exists already,
    // and never returns; so it touches no lock that another thread held at the fork.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(Error::call("fork", first, io::Error::last_os_error())),
        0 => freeze_and_wait(&plan),
        pid => Pid::from_raw(pid),
    };
    drop((control_read, report_write));
    let guard = FreezeGuard { child, control: Some(control_write), file_systems };
    match await_report(&report_read) {
        Ok(Report::Frozen) => Ok(Box::new(guard)),
        // Dropping the guard reaps the child, which has already thawed what it froze.
        Ok(Report::Failed { index, errno }) => {
            let path = mount_points.get(index).copied().unwrap_or(first);
            Err(Error::call("FIFREEZE", path, io::Error::from_raw_os_error(errno)))
        }
        // The child was killed; dropping the guard thaws what it may have frozen.
        Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Error::call("freeze", first, source))
        }
        Err(source) => {
            // The child may be blocked in the kernel for a long time. It thaws when it continues; do not wait for it.
            guard.detach();
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
fn freeze_and_wait(plan: &Plan) -> ! {
    // SAFETY: plain system calls on memory of this function or of the plan. Signals are blocked and the child leaves the
    // session, so that whatever stops the parent (a terminal, a supervisor's SIGTERM to the group) does not kill the child
    // before it has thawed.
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
            // The time of the first file system is up already.
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
        // "Not frozen": another process thawed it while the parent relied on the freeze.
        broken |= sys::thaw_raw(fd) != 0;
    }
    exit(match (held, broken) {
        (_, true) => BROKEN,
        (true, false) => HELD,
        (false, false) => EXPIRED,
    })
}

/// Closes all descriptors except those in `keep`, which is sorted.
fn close_all_but(keep: &[RawFd]) {
    let close = |first: libc::c_uint, last: libc::c_uint| {
        if first <= last {
            // SAFETY: the child uses no other descriptor, and drops no object that owns one.
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

/// True when the parent closed its end, false when `end` was reached first.
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

/// Eight bytes: index of the file system and errno; all zero for "frozen". Short enough to be written atomically.
fn report(fd: RawFd, index: usize, errno: i32) {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(index as u32).to_ne_bytes());
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: eight bytes of a local array. SIGPIPE is blocked; a parent that exited needs no report.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

fn exit(code: i32) -> ! {
    // SAFETY: exits without running destructors or exit handlers of the parent.
    unsafe { libc::_exit(code) }
}

enum Report {
    Frozen,
    Failed { index: usize, errno: i32 },
}

fn await_report(pipe: &OwnedFd) -> io::Result<Report> {
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    let timeout = Timespec::try_from(FREEZE_TIMEOUT).ok();
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

impl FreezeGuard {
    /// Makes the child thaw, and returns whether the freeze held.
    fn finish(&mut self) -> Result<()> {
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
            Some(EXPIRED) => Err(not_held(first, "it was thawed because the time was up")),
            Some(BROKEN) => Err(not_held(first, "another process thawed it")),
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
                tracing::error!(path = %path.display(), errno, "failed to thaw file system; run `fsfreeze -u` on it");
            }
        }
    }

    /// Makes the child thaw without waiting for it; a thread reaps it.
    fn detach(mut self) {
        self.control = None;
        if let Some(child) = self.child.take() {
            std::thread::spawn(move || rustix::process::waitpid(Some(child), WaitOptions::empty()));
        }
    }
}

fn not_held(path: PathBuf, cause: &str) -> Error {
    let reason = format!("did not stay frozen: {cause}; data copied in the meantime may be inconsistent");
    Error::InvalidState { path, reason }
}

impl Frozen for FreezeGuard {
    fn thaw(mut self: Box<Self>) -> Result<()> {
        self.finish()
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "failed to hold or end freeze");
        }
    }
}
