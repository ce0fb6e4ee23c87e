//! Namespaces: create, join, change the root.

use std::io;
use std::os::fd::AsFd;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};

/// The namespaces that a call applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// The PID namespace of children started from now on, not of the caller itself.
    Pid,
    /// The mount, IPC and UTS namespaces.
    MountIpcUts,
}

/// Moves the caller to new namespaces. Unmounts on the host propagate to the new mount namespace if the host's mounts are
/// shared; nothing propagates back.
pub fn unshare(which: Namespaces) -> io::Result<()> {
    let flags = match which {
        Namespaces::Pid => UnshareFlags::NEWPID,
        Namespaces::MountIpcUts => UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS,
    };
    // SAFETY: unsound only for the file descriptor table, which none of these flags unshares.
    unsafe { unshare_unsafe(flags) }?;
    if which == Namespaces::MountIpcUts {
        mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    }
    Ok(())
}

/// Joins the given namespaces of a process. With `Namespaces::MountIpcUts`, the root and the working directory become
/// those of that namespace.
pub fn join(process: impl AsFd, which: Namespaces) -> io::Result<()> {
    let types = match which {
        Namespaces::Pid => ThreadNameSpaceType::PROCESS_ID,
        Namespaces::MountIpcUts => {
            ThreadNameSpaceType::MOUNT
                | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        }
    };
    Ok(move_into_thread_name_spaces(process.as_fd(), types)?)
}

/// Makes `root`, a mount point, the root of this mount namespace and unmounts everything else in it.
pub fn pivot_to_root(root: impl AsFd) -> io::Result<()> {
    fchdir(root)?;
    // The old root briefly covers the new one, so it needs no directory of its own.
    pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    Ok(chdir(c"/")?)
}

/// Sets this namespace's host name.
pub fn set_host_name(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}
