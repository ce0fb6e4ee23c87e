//! Reports that a socket, or any file, was created in a directory or removed from it. Where inotify is not available
//! (no instance left, a directory that does not exist yet), nothing is reported, so users must also poll.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Holds several events; one takes at most 272 bytes.
const BUFFER: usize = 4096;
/// Precedes an event's name: watch, mask, cookie and the name's length, four bytes each.
const HEADER: usize = 16;

/// A set of watched directories.
#[derive(Debug)]
pub struct SocketWatch {
    /// Not a pipe, but tokio can read it like one.
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
            .inspect_err(|error| tracing::warn!(%error, "inotify not available; polling directories"))
            .ok();
        Self { inotify }
    }

    /// Adds a directory to the set. Call it repeatedly: a directory that was recreated needs a new watch, and adding
    /// the same directory again has no effect.
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
            tracing::debug!(path = %directory.display(), %error, "failed to watch directory; polling it");
        }
    }

    /// Completes when a file whose name passes `filter` was created or removed, or a watched directory itself.
    /// Cancel safe.
    pub async fn changed(&self, filter: impl Fn(&OsStr) -> bool) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        let mut changed = false;
        let mut buffer = [0; BUFFER];
        loop {
            match inotify.try_read(&mut buffer) {
                Ok(length) => changed |= events(&buffer[..length]).any(|event| event.matches(&filter)),
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                    return std::future::pending().await;
                }
                // Return only after all pending events are read: the caller checks everything once.
                Err(_) if changed => return,
                Err(_) => {
                    if inotify.readable().await.is_err() {
                        return std::future::pending().await;
                    }
                }
            }
        }
    }
}

/// A file was created or removed.
#[derive(Debug, PartialEq, Eq)]
struct Event<'a> {
    flags: ReadFlags,
    /// Empty for the directory itself, and when the kernel dropped events.
    name: &'a OsStr,
}

impl Event<'_> {
    fn matches(&self, filter: impl Fn(&OsStr) -> bool) -> bool {
        match self.name.is_empty() {
            // IGNORED follows the event that ended the watch, which was reported already.
            true => !self.flags.contains(ReadFlags::IGNORED),
            false => filter(self.name),
        }
    }
}

/// Parses the events of one read. The kernel returns complete events only.
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
    fn complete_events_are_parsed_and_truncated_ones_are_dropped() {
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
    async fn changes_of_matching_names_are_reported_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let watch = SocketWatch::new();
        watch.add(&dir.path().join("missing"));
        watch.add(dir.path());
        watch.add(dir.path());
        let filter = |name: &OsStr| name == "a" || name == "b";
        let seen = || async {
            tokio::time::timeout(Duration::from_millis(200), watch.changed(filter)).await.is_ok()
        };

        std::fs::write(dir.path().join("other"), "").unwrap();
        assert!(!seen().await);
        std::fs::write(dir.path().join("a"), "").unwrap();
        assert!(seen().await);
        assert!(!seen().await, "reported twice");
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert!(seen().await);
        std::fs::remove_file(dir.path().join("b")).unwrap();
        assert!(seen().await);
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(seen().await, "the directory itself");
    }
}
