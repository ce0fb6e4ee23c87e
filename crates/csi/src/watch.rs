//! Sees that a socket, or any file, appears in a directory or goes from it. Where the kernel gives no such
//! news (no inotify instance left, a directory that is not there yet), nothing is seen; who watches looks by
//! itself from time to time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Room for a few events; one takes 272 bytes at most.
const BUFFER: usize = 4096;
/// Before an event's name: watch, mask, cookie and the name's length, each of four bytes.
const HEADER: usize = 16;

/// The directories that are watched.
#[derive(Debug)]
pub struct SocketWatch {
    /// Not a pipe, but read like one: what comes out of it is all that tokio has to know.
    inotify: Option<Receiver>,
}

impl Default for SocketWatch {
    fn default() -> Self {
        Self::new()
    }
}

impl SocketWatch {
    /// Watches nothing yet. Must be called within a tokio runtime.
    pub fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .and_then(Receiver::from_owned_fd_unchecked);
        let inotify = inotify
            .inspect_err(|error| tracing::warn!(%error, "no inotify; directories are looked at by a timer"))
            .ok();
        Self { inotify }
    }

    /// Watches a directory as well. To be repeated: one that was made anew is another one, and adding the
    /// same one again changes nothing.
    pub fn add(&self, directory: &Path) {
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        if let Some(inotify) = &self.inotify
            && let Err(error) = inotify::add_watch(inotify, directory, events)
        {
            tracing::debug!(directory = %directory.display(), %error, "not watched; looked at by a timer");
        }
    }

    /// Ready when a file of a name that this is about came or went, or a directory itself. Safe to drop while it
    /// waits.
    pub async fn changed(&self, about: impl Fn(&OsStr) -> bool) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        let mut told = false;
        let mut buffer = [0; BUFFER];
        loop {
            match inotify.try_read(&mut buffer) {
                Ok(length) => told |= events(&buffer[..length]).any(|event| event.is_about(&about)),
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                    return std::future::pending().await;
                }
                // All is read before it is told: who is told looks at everything.
                Err(_) if told => return,
                Err(_) => {
                    if inotify.readable().await.is_err() {
                        return std::future::pending().await;
                    }
                }
            }
        }
    }
}

/// Something came or went.
#[derive(Debug, PartialEq, Eq)]
struct Event<'a> {
    flags: ReadFlags,
    /// Empty if it is the directory itself, or if events were lost.
    name: &'a OsStr,
}

impl Event<'_> {
    fn is_about(&self, about: impl Fn(&OsStr) -> bool) -> bool {
        match self.name.is_empty() {
            // That a watch has ended follows what ended it.
            true => !self.flags.contains(ReadFlags::IGNORED),
            false => about(self.name),
        }
    }
}

/// The events in what was read. The kernel gives whole ones only.
fn events(mut bytes: &[u8]) -> impl Iterator<Item = Event<'_>> {
    std::iter::from_fn(move || {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let number = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let (name, rest) = rest.split_at_checked(usize::try_from(number(12)?).ok()?)?;
        bytes = rest;
        // Padded with NULs.
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(Event { flags: ReadFlags::from_bits_retain(number(4)?), name: OsStr::from_bytes(name) })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_are_read_and_half_ones_are_not() {
        let create = ReadFlags::CREATE;
        let event = |name: &[u8]| {
            let length = u32::try_from(name.len()).unwrap();
            let numbers = [1, create.bits(), 0, length].map(u32::to_ne_bytes).concat();
            [&numbers, name].concat()
        };
        let bytes = [event(b"a.sock\0\0"), event(b""), event(b"full")].concat();
        let named = |name: &'static str| Event { flags: create, name: OsStr::new(name) };
        assert_eq!(events(&bytes).collect::<Vec<_>>(), [named("a.sock"), named(""), named("full")]);
        assert_eq!(events(&bytes[..bytes.len() - 1]).count(), 2);
        assert_eq!(events(&[]).count(), 0);
    }

    #[tokio::test]
    async fn names_that_come_and_go_are_seen_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let watch = SocketWatch::new();
        watch.add(&dir.path().join("missing"));
        watch.add(dir.path());
        watch.add(dir.path());
        let about = |name: &OsStr| name == "a" || name == "b";
        let seen =
            || async { tokio::time::timeout(Duration::from_millis(200), watch.changed(about)).await.is_ok() };

        std::fs::write(dir.path().join("other"), "").unwrap();
        assert!(!seen().await);
        std::fs::write(dir.path().join("a"), "").unwrap();
        assert!(seen().await);
        assert!(!seen().await, "told twice");
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert!(seen().await);
        std::fs::remove_file(dir.path().join("b")).unwrap();
        assert!(seen().await);
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(seen().await, "the directory itself");
    }
}
