//! Watches directories for changes with inotify. Where that is not possible (no inotify instance left, or the directory
//! does not exist yet) there are no notifications, so callers must also poll with a timer.

use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Buffer for a few events; their content does not matter.
const BUFFER: usize = 4096;

/// A watch over directories.
pub(super) struct Watch {
    /// The inotify descriptor, which tokio's pipe receiver can read although it is not a pipe.
    inotify: Option<Receiver>,
}

impl Watch {
    /// Creates a watch without directories. Must be called within a tokio runtime.
    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .and_then(Receiver::from_owned_fd_unchecked);
        Self {
            inotify: inotify
                .inspect_err(
                    |error| tracing::warn!(%error, "failed to create an inotify instance; polling instead"),
                )
                .ok(),
        }
    }

    /// Adds a directory. Idempotent; a directory that was recreated gets a new watch.
    pub(super) fn add(&self, directory: &Path) {
        let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB | WatchFlags::ONLYDIR;
        if let Some(inotify) = &self.inotify
            && let Err(error) = inotify::add_watch(inotify, directory, events)
        {
            tracing::debug!(path = %directory.display(), %error, "failed to watch directory; polling instead");
        }
    }

    /// Resolves when something changed.
    pub(super) async fn changed(&self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        if inotify.readable().await.is_err() {
            return std::future::pending().await;
        }
        let mut buffer = [0; BUFFER];
        // Drain all events: the caller rechecks everything.
        while matches!(inotify.try_read(&mut buffer), Ok(read) if read > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn change_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::new();
        watch.add(&dir.path().join("missing"));
        watch.add(dir.path());
        let changed =
            || async { tokio::time::timeout(Duration::from_millis(200), watch.changed()).await.is_ok() };
        assert!(!changed().await);
        std::os::unix::fs::symlink("/dev/null", dir.path().join("a")).unwrap();
        assert!(changed().await);
        assert!(!changed().await);
    }
}
