//! News of a directory: something in it came or went. Where the kernel gives none (no inotify instance left, no
//! such directory yet) there is none; who waits looks by itself from time to time.

use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Room for a few events; what they say does not matter.
const BUFFER: usize = 4096;

/// A watch over directories.
pub(super) struct Watch {
    /// Not a pipe, but read like one.
    inotify: Option<Receiver>,
}

impl Watch {
    /// Watches nothing yet. Must be called within a tokio runtime.
    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .and_then(Receiver::from_owned_fd_unchecked);
        Self {
            inotify: inotify
                .inspect_err(|error| tracing::warn!(%error, "no inotify; looking by a timer"))
                .ok(),
        }
    }

    /// Watches a directory as well; the same one again changes nothing, and one that was made anew is another.
    pub(super) fn add(&self, directory: &Path) {
        let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB | WatchFlags::ONLYDIR;
        if let Some(inotify) = &self.inotify
            && let Err(error) = inotify::add_watch(inotify, directory, events)
        {
            tracing::debug!(directory = %directory.display(), %error, "not watched; looking by a timer");
        }
    }

    /// Ready when something came.
    pub(super) async fn changed(&self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        if inotify.readable().await.is_err() {
            return std::future::pending().await;
        }
        let mut buffer = [0; BUFFER];
        // All of it: who is told looks at everything.
        while matches!(inotify.try_read(&mut buffer), Ok(read) if read > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_comes_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::new();
        watch.add(&dir.path().join("missing"));
        watch.add(dir.path());
        let told =
            || async { tokio::time::timeout(Duration::from_millis(200), watch.changed()).await.is_ok() };
        assert!(!told().await);
        std::os::unix::fs::symlink("/dev/null", dir.path().join("a")).unwrap();
        assert!(told().await);
        assert!(!told().await);
    }
}
