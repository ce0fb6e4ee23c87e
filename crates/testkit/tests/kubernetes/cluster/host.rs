//! What runs on the machine itself and would outlive a test that fails: containers of `wharf node` and `wharf up`, their
//! mounts, and devices of upstream's hostpath driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wharf_node::runtime::{Runtime, Settings};
use wharf_testkit::{Beside, upstream};

use super::harness::mounts;

/// The name of upstream's hostpath driver.
pub(super) const HOSTPATH: &str = "hostpath.csi.k8s.io";

/// Ends what is left beneath a directory when it is dropped; a test that goes well leaves nothing to it.
pub(super) struct Sweep {
    /// All of it.
    pub(super) directory: PathBuf,
    /// Where the runtime keeps its containers.
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

/// Loop devices over files beneath a directory.
pub(super) fn devices(directory: &Path) -> Vec<String> {
    let list =
        Command::new("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]).output();
    let list = String::from_utf8(list.expect("losetup").stdout).expect("text");
    let pairs = list.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    let beneath = pairs.filter(|(_, file)| Path::new(file.trim()).starts_with(directory));
    beneath.map(|(device, _)| device.to_owned()).collect()
}

/// Starts upstream's hostpath driver with its socket and its state in two directories.
pub(super) fn hostpath(socket: &Path, state: &Path, node: &str, log: &Path) -> Beside {
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
    Beside::start(&upstream("hostpathplugin"), &args, log)
}

/// That the driver has neither volumes nor snapshots, by its own word and by its files.
pub(super) fn assert_empty(state: &Path) {
    let files: Vec<_> = fs::read_dir(state).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(files.iter().all(|name| name == "state.json"), "{files:?}");
    let told: serde_json::Value =
        serde_json::from_slice(&fs::read(state.join("state.json")).unwrap()).unwrap();
    for kind in ["Volumes", "Snapshots"] {
        assert!(told[kind].as_array().is_none_or(Vec::is_empty), "{told:#}");
    }
}
