//! Reads a container's log, and goes on reading while the container writes it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe;

use super::Printer;
use crate::runtime::error::LogError;
use crate::runtime::spec::{ContainerId, LogOptions};
use crate::runtime::{Runtime, State};

/// How much is read at a time, and so how much [`Logs::next`] answers at most, more or less.
const CHUNK: usize = 64 * 1024;
/// How often we look when the kernel tells us nothing.
const LOOK: Duration = Duration::from_millis(500);

/// A log that is being read.
#[derive(Debug)]
pub struct Logs {
    runtime: Runtime,
    id: ContainerId,
    path: PathBuf,
    /// `None` before the shim has made it.
    file: Option<File>,
    /// A line that is not whole yet.
    rest: Vec<u8>,
    printer: Printer,
    follow: bool,
    /// The container had ended before the last look into the file: nothing more will come.
    ended: bool,
    /// What changes in the log's directory.
    changes: Option<pipe::Receiver>,
}

impl Logs {
    pub(in crate::runtime) fn open(
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

    /// The next piece: as `kubectl logs` prints it; `None` at the end.
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
            self.news().await;
        }
    }

    /// Reads a chunk and prints it; `false` at the end of the file.
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

    /// Goes on in the new file if the log was begun anew; `false` if it was not.
    fn reopen(&mut self) -> Result<bool, LogError> {
        let current = open(&self.path)?;
        let same = |a: &File, b: &File| -> io::Result<bool> {
            let (a, b) = (a.metadata()?, b.metadata()?);
            Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
        };
        let anew = match (&self.file, &current) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(new)) => {
                !same(old, new).map_err(|source| LogError::File { path: self.path.clone(), source })?
            }
        };
        if anew {
            self.file = current;
            self.rest.clear();
        }
        Ok(anew)
    }

    /// Waits until there may be more to read.
    async fn news(&mut self) {
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

/// Has the kernel tell of changes in the log's directory.
fn watch(log: &Path) -> Option<pipe::Receiver> {
    let events = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
    inotify::add_watch(&inotify, log.parent()?, events).ok()?;
    // Not a pipe, but read like one.
    pipe::Receiver::from_owned_fd_unchecked(inotify).ok()
}

async fn changed(changes: Option<&pipe::Receiver>) {
    let Some(changes) = changes else { return tokio::time::sleep(LOOK).await };
    if changes.readable().await.is_err() {
        return tokio::time::sleep(LOOK).await;
    }
    let mut events = [0; 4096];
    while changes.try_read(&mut events).is_ok_and(|length| length > 0) {}
}

/// Where the last `lines` lines begin.
fn tail(file: &mut File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    // The newline of the last line ends it, so one more is looked for than there are lines.
    let mut left = lines + 1;
    let mut end = length;
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        // Not more than a chunk.
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
    fn the_last_lines_of_a_file() {
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
