//! Reads a container's log, and follows it while the container writes.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe;

use super::Printer;
use crate::error::LogError;
use crate::spec::{ContainerId, LogOptions};
use crate::{Runtime, State};

/// Read size, and the approximate maximum size of a result of [`Logs::next`].
const CHUNK: usize = 64 * 1024;
/// Poll interval without inotify.
const POLL: Duration = Duration::from_millis(500);

/// A log being read.
#[derive(Debug)]
pub struct Logs {
    runtime: Runtime,
    id: ContainerId,
    path: PathBuf,
    /// `None` until the shim has created it.
    file: Option<File>,
    /// An incomplete line.
    rest: Vec<u8>,
    printer: Printer,
    follow: bool,
    /// The container had exited before the last read: nothing more will follow.
    ended: bool,
    /// inotify events of the log's directory.
    changes: Option<pipe::Receiver>,
}

impl Logs {
    pub(crate) fn open(
        runtime: Runtime,
        id: ContainerId,
        path: PathBuf,
        options: LogOptions,
    ) -> Result<Self, LogError> {
        let changes = options.follow.then(|| watch(&path)).flatten();
        let mut file = open(&path)?;
        if let (Some(file), Some(lines)) = (&mut file, options.tail) {
            let start = tail(file, lines);
            start
                .and_then(|start| file.seek(SeekFrom::Start(start)))
                .map_err(|source| LogError::File { path: path.clone(), source })?;
        }
        let (follow, rest) = (options.follow, Vec::new());
        let printer = Printer::new(options);
        Ok(Self { runtime, id, path, file, rest, printer, follow, ended: false, changes })
    }

    /// The next chunk, formatted like `kubectl logs`; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LogError> {
        loop {
            if self.printer.is_full() {
                return Ok(None);
            }
            let mut out = Vec::new();
            let more =
                self.read(&mut out).map_err(|source| LogError::File { path: self.path.clone(), source })?;
            if !out.is_empty() {
                return Ok(Some(out));
            }
            if more || self.reopen()? {
                continue;
            }
            if self.ended || !self.follow {
                return Ok(None);
            }
            self.wait_for_more().await;
        }
    }

    /// Reads and formats a chunk; `false` at the end of the file.
    fn read(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let mut chunk = vec![0; CHUNK];
        let length = file.read(&mut chunk)?;
        self.rest.extend_from_slice(&chunk[..length]);
        let Some(last) = self.rest.iter().rposition(|&b| b == b'\n') else { return Ok(length > 0) };
        let rest = self.rest.split_off(last + 1);
        for line in self.rest.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            self.printer.print(line, out);
        }
        self.rest = rest;
        Ok(length > 0)
    }

    /// Switches to the new file after a rotation; `false` if there was none.
    fn reopen(&mut self) -> Result<bool, LogError> {
        let current = open(&self.path)?;
        let same = |a: &File, b: &File| -> io::Result<bool> {
            let (a, b) = (a.metadata()?, b.metadata()?);
            Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
        };
        let rotated = match (&self.file, &current) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(new)) => {
                !same(old, new).map_err(|source| LogError::File { path: self.path.clone(), source })?
            }
        };
        if rotated {
            self.file = current;
            self.rest.clear();
        }
        Ok(rotated)
    }

    /// Waits until there may be more to read.
    async fn wait_for_more(&mut self) {
        if !matches!(self.runtime.state(&self.id), State::Running { .. }) {
            self.ended = true;
            return;
        }
        tokio::select! {
            biased;
            () = changed(self.changes.as_ref()) => {}
            _ = self.runtime.exited(&self.id) => self.ended = true,
        }
    }
}

fn open(path: &Path) -> Result<Option<File>, LogError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LogError::File { path: path.to_owned(), source }),
    }
}

/// Watches the log's directory with inotify.
fn watch(log: &Path) -> Option<pipe::Receiver> {
    let events = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
    inotify::add_watch(&inotify, log.parent()?, events).ok()?;
    // An inotify descriptor is not a pipe, but can be read like one.
    pipe::Receiver::from_owned_fd_unchecked(inotify).ok()
}

async fn changed(changes: Option<&pipe::Receiver>) {
    let Some(changes) = changes else { return tokio::time::sleep(POLL).await };
    if changes.readable().await.is_err() {
        return tokio::time::sleep(POLL).await;
    }
    let mut events = [0; 4096];
    while changes.try_read(&mut events).is_ok_and(|length| length > 0) {}
}

/// The offset of the last `lines` lines.
fn tail(file: &mut File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    // The last line ends with a newline, so search for one more newline than lines.
    let mut left = lines + 1;
    let mut end = length;
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        // At most CHUNK.
        let part = &mut chunk[..usize::try_from(end - start).unwrap_or(CHUNK)];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        for (index, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            left -= 1;
            if left == 0 {
                return Ok(start + index as u64 + 1);
            }
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_finds_the_last_lines() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("0.log");
        let long = "x".repeat(CHUNK);
        let text = format!("one\n{long}\nthree\n");
        std::fs::write(&path, &text).unwrap();
        let mut file = File::open(&path).unwrap();
        for (lines, expected) in [(0, ""), (1, "three\n"), (2, &text[4..]), (3, &text[..]), (9, &text[..])] {
            let start = tail(&mut file, lines).unwrap();
            assert!(&text[usize::try_from(start).unwrap()..] == expected, "{lines} lines");
        }
        std::fs::write(&path, "").unwrap();
        assert_eq!(tail(&mut File::open(&path).unwrap(), 3).unwrap(), 0);
    }
}
