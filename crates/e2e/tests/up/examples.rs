//! Applies the files in `examples/` unchanged: each pod runs, the data is there, and nothing is left after they are
//! deleted.

use std::fs;

use serde_json::Value;
use wharf_testkit::built_program;

use crate::machine::Machine;
use crate::objects::{KEEPER, field, name, pod};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
/// This file, which names the examples that it applies.
const HERE: &str = include_str!("examples.rs");

/// Examples that need an NFS server: `test/nfs` has one, in a virtual machine.
const NEED_A_SERVER: [&str; 1] = ["nfs-shared.yaml"];

/// Every example must have a test.
#[test]
fn every_example_has_a_test() {
    let all = fs::read_dir(EXAMPLES).unwrap().flatten().map(|entry| entry.file_name());
    let files: Vec<String> = all.map(|file| file.to_string_lossy().into_owned()).collect();
    assert!(!files.is_empty());
    for file in files.into_iter().filter(|file| !NEED_A_SERVER.contains(&file.as_str())) {
        assert!(HERE.contains(&format!("example(\"{file}\")")), "{file} is applied by no test");
    }
}

#[test]
fn claim_examples_write_snapshot_clone_and_expand() {
    // Space for the claim at its largest size, and two more of it.
    let mut machine = Machine::with(&["--pool-size", "8Gi"]);
    machine.apply(&example("claim-and-pod.yaml"));
    machine.wait_until_running("writer");
    let hello = machine.wait_until("the pod has written", |machine| {
        let output = machine.container_logs("writer");
        if output.ends_with('\n') { Ok(output) } else { Err(output) }
    });
    assert_eq!(machine.in_pod("writer", "cat", "/data/hello"), hello);
    machine.apply(&example("snapshot.yaml"));
    machine.apply(&example("restore.yaml"));
    machine.apply(&example("clone.yaml"));
    machine.wait_until_running("reader");
    assert_eq!(machine.in_pod("reader", "cat", "/data/hello"), hello);
    machine.wait_for_field("vs/before", "/status/readyToUse", "true");
    // A clone that no pod has used yet is bound all the same.
    machine.wait_for_field("pvc/copy", "/status/phase", "Bound");
    machine.create(&pod("of-the-copy", "copy", KEEPER));
    machine.wait_until_running("of-the-copy");
    assert_eq!(machine.in_pod("of-the-copy", "cat", "/data/hello"), hello);
    let before = machine.bytes("writer");
    machine.apply(&example("expand.yaml"));
    machine.wait_for_field("pvc/data", "/status/capacity/storage", "2Gi");
    let grown = machine.bytes("writer");
    assert!(before < 1100 << 20 && grown > 1800 << 20, "{before} bytes have become {grown}");
    assert_eq!(machine.field("pod/writer", "/status/containerStatuses/0/restartCount"), "0");
    machine.wait_for_only_these_mounts(&["writer", "reader", "of-the-copy"]);
    machine.delete_everything();
}

#[test]
fn three_pods_example_gives_each_pod_its_claim() {
    let mut machine = Machine::new();
    machine.apply(&example("three-pods.yaml"));
    let pods = ["worker-0", "worker-1", "worker-2"];
    for (number, pod) in pods.into_iter().enumerate() {
        machine.wait_until_running(pod);
        machine.wait_until("it has written into its own volume", |machine| {
            let written = machine.in_pod(pod, "cat", "/data/name");
            if written == format!("worker {number}\n") { Ok(()) } else { Err(written) }
        });
    }
    machine.wait_for_only_these_mounts(&pods);
    machine.delete_everything();
}

#[test]
fn block_and_ephemeral_examples_run() {
    let mut machine = Machine::new();
    machine.apply(&example("block.yaml"));
    machine.apply(&example("ephemeral.yaml"));
    machine.wait_until_running("raw");
    machine.wait_until("the device contains what the pod wrote", |machine| {
        let start = machine.in_pod("raw", "head --bytes=14", "/dev/disk");
        if start == "on the device\n" { Ok(()) } else { Err(start) }
    });
    assert_eq!(machine.in_pod("raw", "stat --dereference --format=%F", "/dev/disk"), "block special file\n");
    machine.wait_until_running("scratch");
    machine.wait_until("the volume is mounted in the pod", |machine| {
        let output = machine.container_logs("scratch");
        if output.contains("/scratch") { Ok(()) } else { Err(output) }
    });
    let claim = machine.get("pvc/scratch-scratch").expect("the pod's claim");
    assert_eq!(field(&claim, "/metadata/ownerReferences/0/name"), "scratch");
    // The claim is deleted with its pod, and its volume with the claim.
    machine.delete("pod/scratch");
    machine.wait_until_gone("pvc/scratch-scratch");
    machine.delete_everything();
}

#[test]
fn static_volume_example_retains_its_volume() {
    let mut machine = Machine::new();
    let made: Value =
        serde_json::from_str(&machine.csi("create by-hand --size 1GiB --fs-type ext4")).unwrap();
    let volume = field(&made, "/volume_id");
    machine.apply(&example("static-volume.yaml").replace("VOLUME", &volume));
    machine.wait_for_field("pvc/by-hand", "/status/phase", "Bound");
    assert_eq!(machine.field("pvc/by-hand", "/spec/volumeName"), "by-hand");
    machine.create(&pod("keeper", "by-hand", KEEPER));
    machine.wait_until_written("keeper");
    machine.check_data("by-hand");
    machine.delete("pod/keeper");
    machine.delete("pvc/by-hand");
    machine.wait_until_gone("pvc/by-hand");
    machine.wait_for_field("pv/by-hand", "/status/phase", "Released");
    assert_eq!(machine.names("pool/volumes").len(), 1, "a static volume must not be deleted with its claim");
    machine.wait_until_gone("pod/keeper");
    machine.delete("pv/by-hand");
    machine.wait_until_gone("pv/by-hand");
    machine.wait_until("the volume is detached and can be deleted", |machine| {
        let attached = machine.try_list("va")?;
        if attached.is_empty() { Ok(()) } else { Err(format!("{attached:?}")) }
    });
    machine.csi(&format!("delete {volume}"));
    machine.wait_until_nothing_is_left();
}

fn example(file: &str) -> String {
    fs::read_to_string(format!("{EXAMPLES}/{file}")).unwrap()
}

impl Machine {
    /// Creates or updates the objects of a YAML text.
    fn apply(&mut self, yaml: &str) {
        for object in serde_saphyr::from_multiple::<Value>(yaml).unwrap() {
            // In these files only a claim can exist already.
            if self.create(&object).is_null() {
                self.patch(&format!("pvc/{}", name(&object)), &object);
            }
        }
    }

    /// The output of a command for a path in a pod's container, or the error if the path does not exist yet.
    fn in_pod(&self, pod: &str, command: &str, path: &str) -> String {
        let path = format!("/proc/{}/root{path}", self.process_of(pod));
        self.run(&["sh", "-c", &format!("{command} {path} 2>&1 || true")])
    }

    /// The size of the file system at a pod's `/data`.
    fn bytes(&self, pod: &str) -> u64 {
        let output = self.in_pod(pod, "stat --file-system --format=%b:%S", "/data");
        let (blocks, size) = output.trim_end().split_once(':').unwrap();
        blocks.parse::<u64>().unwrap() * size.parse::<u64>().unwrap()
    }

    /// `wharf csi volume …` with the local driver.
    fn csi(&self, what: &str) -> String {
        let (wharf, data) = (built_program("wharf").display().to_string(), self.data().display().to_string());
        let endpoint = format!("unix://{data}/run/local.sock");
        let words = [wharf.as_str(), "csi", "--endpoint", &endpoint, "--output", "json", "volume"];
        self.run(&words.into_iter().chain(what.split(' ')).collect::<Vec<_>>())
    }
}
