//! Workers of the test program, fake workers, and processes to find and stop.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wharf_driver_nfs::share::{Request, Response};
use wharf_driver_nfs::worker::{
    Export, Exports, ShareClient as _, WorkerError, WorkerOptions, WorkerProgram, Workers,
};

/// The program that has the worker's code.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_nfs-test-driver");

/// Long enough for a worker on a loaded machine.
pub(crate) const ENOUGH: Duration = Duration::from_secs(20);

pub(crate) fn real_program() -> WorkerProgram {
    WorkerProgram::new(PROGRAM, &["nfs-worker"])
}

/// A worker that is this shell script.
pub(crate) fn script(text: &str) -> WorkerProgram {
    WorkerProgram::new("/bin/sh", &["-c", text, "worker"])
}

/// Exports `/a` and `/b` of servers `one` and `two` beneath the directory.
pub(crate) fn exports(dir: &Path) -> Exports {
    let mut directories = BTreeMap::new();
    for server in ["one", "two"] {
        for share in ["a", "b"] {
            std::fs::create_dir_all(dir.join(server).join(share)).unwrap();
        }
        directories.insert(server.to_owned(), dir.join(server).canonicalize().unwrap());
    }
    Exports::Directories(directories)
}

pub(crate) fn options() -> WorkerOptions {
    WorkerOptions { kill_grace: Duration::from_millis(500), ..WorkerOptions::default() }
}

pub(crate) fn export(server: &str, share: &str) -> Export {
    Export::new(server, share, &[])
}

/// A request that every share serves.
pub(crate) async fn capacity(
    workers: &Workers,
    export: &Export,
    deadline: Duration,
) -> Result<u64, WorkerError> {
    match workers.call(export, Request::Capacity, deadline).await? {
        Response::Capacity(Ok(capacity)) => Ok(capacity.total),
        other => panic!("{other:?}"),
    }
}

/// The processes whose parent is this one and whose arguments contain all words.
pub(crate) fn children(parent: u32, words: &[&str]) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        // The name is in parentheses and can contain anything; state and parent follow.
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<&str> = rest.split(' ').collect();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        if fields[0] != "Z"
            && fields[1] == parent.to_string()
            && words.iter().all(|word| command.contains(word))
        {
            found.push(pid);
        }
    }
    found
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status =
        std::process::Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap();
    assert!(status.success());
}

pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + ENOUGH;
    while !condition() {
        assert!(Instant::now() < end, "not within {ENOUGH:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A directory for a test whose mounts are removed at its end.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("wharf-nfs-").tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        use wharf_linux::Mounts as _;

        let kernel = wharf_linux::Linux::new();
        let root = self.path("");
        let table = kernel.mount_table().unwrap();
        for mount in table.mounts().iter().rev().filter(|mount| mount.mount_point.starts_with(&root)) {
            let _ = kernel.unmount(&mount.mount_point);
        }
    }
}
