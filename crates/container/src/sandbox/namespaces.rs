//! Namespaces: join, change the root.

use std::io;
use std::os::fd::AsFd;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use wharf_linux::sandbox::Namespaces;

/// Joins the given namespaces of a process. With a mount namespace, the root and the working directory become those of
/// that namespace.
pub(crate) fn join(process: impl AsFd, which: Namespaces) -> io::Result<()> {
    let types = match which {
        Namespaces::Pid => ThreadNameSpaceType::PROCESS_ID,
        Namespaces::Mount => ThreadNameSpaceType::MOUNT,
        Namespaces::MountIpcUts => {
            ThreadNameSpaceType::MOUNT
                | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        }
        Namespaces::Mount => ThreadNameSpaceType::MOUNT,
    };
    Ok(move_into_thread_name_spaces(process.as_fd(), types)?)
}

/// Makes `root`, a mount point, the root of this mount namespace and unmounts everything else in it.
pub(crate) fn pivot_to_root(root: impl AsFd) -> io::Result<()> {
    fchdir(root)?;
    // The old root briefly covers the new one, so it needs no directory of its own.
    pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    Ok(chdir(c"/")?)
}

/// Sets this namespace's host name.
pub(crate) fn set_host_name(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}
