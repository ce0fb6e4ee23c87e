//! A separate runtime for each test, removed afterwards.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wharf_container::{ContainerId, ContainerSpec, Exit, LogOptions, Runtime, Settings, State};

/// Not in `/tmp`, which is private to a container: hidden files have to be where they could be seen.
const PARENT_DIR: &str = "/var/tmp";

pub(crate) struct TestRuntime {
    pub(crate) directory: TempDir,
    pub(crate) runtime: Runtime,
}

impl TestRuntime {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let directory = tempfile::Builder::new().prefix("wharf-runtime-").tempdir_in(PARENT_DIR).unwrap();
        let mut settings = settings(directory.path());
        change(&mut settings);
        Self { runtime: Runtime::open(settings).unwrap(), directory }
    }

    /// Creates a directory next to the runtime's own.
    pub(crate) fn create_dir(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Runs a container to completion; returns its exit and its output.
    pub(crate) async fn run(&self, spec: ContainerSpec) -> (Exit, String) {
        let id = self.runtime.start(spec).await.unwrap();
        let exit = within(self.runtime.exited(&id)).await.unwrap();
        let log = self.log(&id, LogOptions::default()).await;
        (exit, log)
    }

    /// Runs a script that must succeed, and returns its output.
    pub(crate) async fn output(&self, spec: ContainerSpec) -> String {
        let (exit, log) = self.run(spec).await;
        assert_eq!(exit.code, 0, "{log}");
        log
    }

    pub(crate) async fn log(&self, id: &ContainerId, options: LogOptions) -> String {
        let mut logs = self.runtime.logs(id, options).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = within(logs.next()).await.unwrap() {
            text.extend(piece);
        }
        String::from_utf8(text).unwrap()
    }

    pub(crate) fn pid(&self, id: &ContainerId) -> u32 {
        match self.runtime.state(id) {
            State::Running { pid, .. } => pid,
            other => panic!("{other:?}"),
        }
    }

    /// The container's record directory.
    pub(crate) fn record(&self, id: &ContainerId) -> PathBuf {
        self.directory.path().join("containers").join(id.as_str())
    }
}

impl Drop for TestRuntime {
    fn drop(&mut self) {
        for found in self.runtime.list().unwrap_or_default() {
            let _ = self.runtime.signal(&found.id, 9);
            eventually("exit of a container", || {
                !matches!(self.runtime.state(&found.id), State::Running { .. })
            });
        }
    }
}

pub(crate) fn settings(directory: &Path) -> Settings {
    let program = env!("CARGO_BIN_EXE_container-helper");
    Settings::new(program, directory.join("containers"), directory.join("logs"))
}

/// A container that runs a script.
pub(crate) fn sh(name: &str, script: &str) -> ContainerSpec {
    let exec_spec = ["/bin/sh", "-c", script];
    ContainerSpec {
        namespace: "default".to_owned(),
        pod: "pod".to_owned(),
        pod_uid: "11111111-2222-3333-4444-555555555555".to_owned(),
        container: name.to_owned(),
        hostname: "pod".to_owned(),
        command: exec_spec.map(str::to_owned).to_vec(),
        ..ContainerSpec::default()
    }
}

/// A timeout far longer than anything here takes.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("timed out")
}

pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process with this argument runs anywhere on the host.
pub(crate) fn runs(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.filter_map(Result::ok).any(|entry| {
        let exec_spec = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        exec_spec.split(|&b| b == 0).any(|word| word == argument.as_bytes())
    })
}

/// A mount that is unmounted when dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a tmpfs.
    pub(crate) fn tmpfs(at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        command("mount", &["-t", "tmpfs", "tmpfs", at.to_str().unwrap()]);
        Self(at.to_owned())
    }

    /// Bind-mounts a directory.
    pub(crate) fn bound(from: &Path, at: &Path) -> Self {
        command("mount", &["--bind", from.to_str().unwrap(), at.to_str().unwrap()]);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

pub(crate) fn command(program: &str, args: &[&str]) -> String {
    let output = std::process::Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}
