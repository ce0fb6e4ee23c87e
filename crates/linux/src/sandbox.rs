//! The system calls that a container sandbox or a helper process needs and that need `unsafe`, as safe functions:
//! namespaces, mount attributes, signal dispositions, inherited descriptors, code between fork and exec.
//! `wharf_container` builds containers from them, and the NFS driver its worker processes.
//!
//! Nothing here makes decisions. Most functions change the calling process irreversibly, so they are for small
//! single-threaded helper processes, never for a server.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::sys;

/// The namespaces that a call applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// The PID namespace of children started from now on, not of the caller itself.
    Pid,
    /// The mount, IPC and UTS namespaces.
    MountIpcUts,
    /// The mount namespace.
    Mount,
}

/// Moves the caller to new namespaces. Unmounts on the host propagate to the new mount namespace if the host's mounts are
/// shared; nothing propagates back.
pub fn unshare(which: Namespaces) -> io::Result<()> {
    let flags = match which {
        Namespaces::Pid => UnshareFlags::NEWPID,
        Namespaces::MountIpcUts => UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS,
        Namespaces::Mount => UnshareFlags::NEWNS,
    };
    // SAFETY: unsound only for the file descriptor table, which none of these flags unshares.
    unsafe { unshare_unsafe(flags) }?;
    if matches!(which, Namespaces::MountIpcUts | Namespaces::Mount) {
        mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    }
    Ok(())
}

/// The kernel kills the caller with SIGKILL when the thread that started it ends, which is at the latest when its parent
/// process ends, for whatever reason.
pub fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
}

/// Gives the caller, and programs it starts, a new and empty session keyring. Otherwise they could read the keys of the user who
/// started the first of them. Does nothing where keys cannot be used.
pub fn join_new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: the argument is the name of a keyring, and the null pointer stands for a new one without a name.
    let serial =
        unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
    if serial >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // A kernel without keys, or a filter of system calls, which the programs inherit.
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        _ => Err(error),
    }
}

/// The caller dumps no core, and its program, memory and descriptors in `/proc` are hidden from processes without
/// CAP_SYS_PTRACE, until it executes another program. Also for servers.
pub fn set_not_dumpable() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

/// Sets attributes of one mount (`MOUNT_ATTR_*`), attached or not; `private` also removes it from its peer group, so that
/// mounts and unmounts no longer propagate.
pub fn set_mount_attributes(mount: impl AsFd, attributes: u64, private: bool) -> io::Result<()> {
    sys::mount_set_attributes(mount, attributes, private)
}

/// Resets all signals to their default action. Programs inherit ignored signals, so programs started by an agent under
/// `nohup` would otherwise ignore SIGHUP.
pub fn reset_signal_dispositions() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: no handler is installed, so no code of ours runs asynchronously. SIGKILL, SIGSTOP and the C library's
        // reserved signals cannot be set; the call returns an error for them, which is ignored.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The caller, and programs it starts, ignore SIGHUP, SIGINT and SIGTERM until `reset_signal_dispositions`.
pub fn ignore_termination_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: as above, no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Takes a descriptor that the parent passed without close-on-exec. It is not passed on to further programs.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: borrowed for two calls that neither close nor store it; if the number is not open, the first call fails.
    // The result is a duplicate, so no descriptor is closed twice.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(file, FdFlags::CLOEXEC)?;
    Ok(fcntl_dupfd_cloexec(file, 3)?)
}

/// Programs executed from now on inherit only standard input, output and error.
pub fn close_inherited_on_exec() -> io::Result<()> {
    sys::close_on_exec_from(3)
}

/// Runs `prepare` in the new process before it executes the program. `prepare` may allocate and take locks. The caller
/// must be single-threaded, now and when it starts the command.
pub fn run_after_fork(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    // SAFETY: between fork and exec it is forbidden to take a lock that another thread held at the fork. The check above
    // shows that there is no other thread.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}
