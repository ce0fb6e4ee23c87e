//! The log file written by a shim, rotated by size with a maximum number of files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A log being written.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    length: u64,
    limit: u64,
    files: usize,
}

impl LogFile {
    /// Opens the log at `path` for appending, and creates its directories.
    pub(crate) fn open(path: &Path, limit: u64, files: usize) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        let file = append(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length, limit, files })
    }

    /// Appends complete lines. On write errors, such as a full disk, lines are lost: a container does not stop for
    /// its log.
    pub(crate) fn write(&mut self, lines: &[u8], now: jiff::Timestamp) {
        if lines.is_empty() {
            return;
        }
        if self.length > 0 && self.length + lines.len() as u64 > self.limit {
            // If rotation fails, an overlong log is better than none.
            let _ = self.rotate(now);
        }
        if self.file.write_all(lines).is_ok() {
            self.length += lines.len() as u64;
        }
    }

    fn rotate(&mut self, now: jiff::Timestamp) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        // Kubelet's name with more digits, so that names are unique; they sort by age.
        old.push(format!(".{}", now.strftime("%Y%m%d-%H%M%S.%9f")));
        fs::rename(&self.path, &old)?;
        self.file = append(&self.path)?;
        self.length = 0;
        let mut rotated = rotated(&self.path)?;
        rotated.truncate(rotated.len().saturating_sub(self.files.saturating_sub(1)));
        rotated.iter().try_for_each(fs::remove_file)
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// The rotated files of a log, oldest first.
fn rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else { return Ok(Vec::new()) };
    let mut prefix = name.to_owned();
    prefix.push(".");
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a log with all its files, and its container and pod directories if they are empty.
pub(crate) fn remove(log: &Path) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let old = match rotated(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        found => found?,
    };
    old.iter().try_for_each(|file| gone(fs::remove_file(file)))?;
    gone(fs::remove_file(log))?;
    for directory in log.ancestors().skip(1).take(2) {
        // Not empty: it has logs of other attempts or containers.
        if fs::remove_dir(directory).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn long_log_is_rotated_and_old_files_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pod/container/0.log");
        let mut log = LogFile::open(&path, 10, 3).unwrap();
        for second in 0..6 {
            log.write(b"12345678\n", jiff::Timestamp::constant(second, 0));
        }
        let all = names(path.parent().unwrap());
        assert_eq!(
            all,
            ["0.log", "0.log.19700101-000004.000000000", "0.log.19700101-000005.000000000"],
            "the newest, and two before it"
        );
        assert_eq!(fs::read(&path).unwrap(), b"12345678\n");
        // A line longer than the limit is written nevertheless.
        log.write(b"1234567890123456789\n", jiff::Timestamp::constant(7, 0));
        assert_eq!(fs::read(&path).unwrap().len(), 20);

        fs::write(path.with_file_name("1.log"), "another attempt").unwrap();
        remove(&path).unwrap();
        assert_eq!(names(path.parent().unwrap()), ["1.log"]);
        remove(&path.with_file_name("1.log")).unwrap();
        assert_eq!(names(root.path()), Vec::<String>::new(), "empty directories are removed");
        remove(&path).unwrap();
    }

    #[test]
    fn log_write_errors_are_ignored() {
        let mut log = LogFile {
            path: PathBuf::from("/dev/full"),
            file: OpenOptions::new().append(true).open("/dev/full").unwrap(),
            length: 0,
            limit: 100,
            files: 2,
        };
        log.write(b"lost\n", jiff::Timestamp::now());
        assert_eq!(log.length, 0);
    }
}
