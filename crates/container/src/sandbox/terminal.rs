//! The terminal of a container, created in the container's own `/dev/pts` so that its programs find it there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, makedev, openat2};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The controlling side of a pseudoterminal.
#[derive(Debug)]
pub(crate) struct Terminal(OwnedFd);

impl Terminal {
    /// Creates a pseudoterminal in the root of a container. Also returns the program's side.
    pub(crate) fn open(root: impl AsFd) -> io::Result<(Self, OwnedFd)> {
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let controller = openat2(root, Path::new("dev/pts/ptmx"), flags, Mode::empty(), how)?;
        let stat = fstat(&controller)?;
        if !FileType::from_raw_mode(stat.st_mode).is_char_device() || stat.st_rdev != makedev(5, 2) {
            return Err(io::Error::other(
                "/dev/pts/ptmx of the container is not the pseudoterminal multiplexer (device 5:2)",
            ));
        }
        unlockpt(&controller)?;
        let peer =
            ioctl_tiocgptpeer(&controller, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        Ok((Self(controller), peer))
    }

    /// Sets the window size; the foreground processes receive SIGWINCH.
    pub(crate) fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        Ok(tcsetwinsize(&self.0, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?)
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes the program's side the controlling terminal of the caller's session, which must be new.
pub(crate) fn set_controlling_terminal(terminal: impl AsFd) -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(terminal)?)
}
