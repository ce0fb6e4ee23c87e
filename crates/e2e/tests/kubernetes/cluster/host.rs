//! Resources on the host that would outlive a failed test: containers of `wharf node` and `wharf up`, their mounts,
//! and devices of upstream's hostpath driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wharf_container::{Runtime, Settings};
use wharf_testkit::{ChildProcess, upstream_program};

use super::harness::mounts;

/// The name of upstream's hostpath driver.
pub(super) const HOSTPATH: &str = "hostpath.csi.k8s.io";

/// Cleans up below a directory when it is dropped; after a successful test nothing is left to clean up.
pub(super) struct Sweep {
    /// The directory.
    pub(super) directory: PathBuf,
    /// The state directory of the container runtime.
    pub(super) containers: PathBuf,
}

impl Drop for Sweep {
    fn drop(&mut self) {
        let settings = Settings::new("/proc/self/exe", &self.containers, self.directory.join("swept-logs"));
        let runtime = Runtime::open(settings).ok();
        let found = runtime.iter().flat_map(|runtime| runtime.list().unwrap_or_default());
        for container in found {
            let _ = runtime.as_ref().map(|runtime| runtime.signal(&container.id, 9));
        }
        for mount in mounts(&self.directory).iter().rev() {
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
        for device in devices(&self.directory) {
            let _ = Command::new("losetup").args(["--detach", &device]).status();
        }
    }
}

/// The loop devices with backing files below a directory.
pub(super) fn devices(directory: &Path) -> Vec<String> {
    let list =
        Command::new("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]).output();
    let list = String::from_utf8(list.expect("losetup").stdout).expect("text");
    let pairs = list.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    let beneath = pairs.filter(|(_, file)| Path::new(file.trim()).starts_with(directory));
    beneath.map(|(device, _)| device.to_owned()).collect()
}

/// Starts upstream's hostpath driver with separate directories for its socket and its state.
pub(super) fn hostpath(socket: &Path, state: &Path, node: &str, log: &Path) -> ChildProcess {
    fs::create_dir_all(state).unwrap();
    let endpoint = format!("unix://{}", socket.display());
    let args = [
        "--endpoint",
        &endpoint,
        "--nodeid",
        node,
        "--enable-attach",
        "--statedir",
        &state.display().to_string(),
        "--v=5",
    ];
    ChildProcess::start(&upstream_program("hostpathplugin"), &args, log)
}

/// Asserts that the driver has neither volumes nor snapshots, in its state file and on disk.
pub(super) fn assert_empty(state: &Path) {
    let files: Vec<_> = fs::read_dir(state).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(files.iter().all(|name| name == "state.json"), "{files:?}");
    let records: serde_json::Value =
        serde_json::from_slice(&fs::read(state.join("state.json")).unwrap()).unwrap();
    for kind in ["Volumes", "Snapshots"] {
        assert!(records[kind].as_array().is_none_or(Vec::is_empty), "{records:#}");
    }
}
