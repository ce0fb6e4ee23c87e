//! Namespaces: made, joined, and given another root.

use std::io;
use std::os::fd::AsFd;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};

/// Which namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// Processes: of children that are started from now on, not of the caller itself.
    Processes,
    /// Mounts, IPC and host name.
    Surroundings,
}

/// Leaves the given namespaces for new ones. What is unmounted on the host is unmounted in a new mount namespace too, if
/// the host passes it on; nothing goes the other way.
pub fn unshare(which: Namespaces) -> io::Result<()> {
    let flags = match which {
        Namespaces::Processes => UnshareFlags::NEWPID,
        Namespaces::Surroundings => UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS,
    };
    // SAFETY: unsound only for the table of descriptors, which neither of the flags unshares.
    unsafe { unshare_unsafe(flags) }?;
    if which == Namespaces::Surroundings {
        mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    }
    Ok(())
}

/// Joins the given namespaces of a process. With [`Namespaces::Surroundings`], the root and the working directory are
/// those of that namespace afterwards.
pub fn join(process: impl AsFd, which: Namespaces) -> io::Result<()> {
    let types = match which {
        Namespaces::Processes => ThreadNameSpaceType::PROCESS_ID,
        Namespaces::Surroundings => {
            ThreadNameSpaceType::MOUNT
                | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        }
    };
    Ok(move_into_thread_name_spaces(process.as_fd(), types)?)
}

/// Makes `root`, where something is mounted, the root of this mount namespace; every other mount is gone from it.
pub fn change_root(root: impl AsFd) -> io::Result<()> {
    fchdir(root)?;
    // The old root lies over the new one for a moment, so no directory has to be made for it.
    pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    Ok(chdir(c"/")?)
}

/// Sets this namespace's host name.
pub fn set_host_name(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}
