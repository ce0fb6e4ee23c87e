//! The files in `examples/`, applied as they are: each pod runs, the data is there, and nothing is left when they are deleted.

use std::fs;

use serde_json::Value;
use wharf_testkit::built;

use crate::machine::Machine;
use crate::objects::{KEEPER, field, name, pod};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
/// This file: what it applies it names.
const HERE: &str = include_str!("examples.rs");

/// No example without a test.
#[test]
fn each_example_is_applied() {
    let all = fs::read_dir(EXAMPLES).unwrap().flatten().map(|entry| entry.file_name());
    let files: Vec<String> = all.map(|file| file.to_string_lossy().into_owned()).collect();
    assert!(!files.is_empty());
    for file in files {
        assert!(HERE.contains(&format!("example(\"{file}\")")), "{file} is applied by no test");
    }
}

#[test]
fn a_claim_and_what_is_made_of_it() {
    // Room for the claim at its largest, and two more like it.
    let mut machine = Machine::with(&["--pool-size", "8Gi"]);
    machine.apply(&example("claim-and-pod.yaml"));
    machine.running("writer");
    let hello = machine.until("the pod has written", |machine| {
        let said = machine.said("writer");
        if said.ends_with('\n') { Ok(said) } else { Err(said) }
    });
    assert_eq!(machine.in_pod("writer", "cat", "/data/hello"), hello);
    machine.apply(&example("snapshot.yaml"));
    machine.apply(&example("restore.yaml"));
    machine.apply(&example("clone.yaml"));
    machine.running("reader");
    assert_eq!(machine.in_pod("reader", "cat", "/data/hello"), hello);
    machine.says("vs/before", "/status/readyToUse", "true");
    // A copy that nobody has used yet is bound all the same.
    machine.says("pvc/copy", "/status/phase", "Bound");
    machine.create(&pod("of-the-copy", "copy", KEEPER));
    machine.running("of-the-copy");
    assert_eq!(machine.in_pod("of-the-copy", "cat", "/data/hello"), hello);
    let before = machine.bytes("writer");
    machine.apply(&example("expand.yaml"));
    machine.says("pvc/data", "/status/capacity/storage", "2Gi");
    let grown = machine.bytes("writer");
    assert!(before < 1100 << 20 && grown > 1800 << 20, "{before} bytes have become {grown}");
    assert_eq!(machine.field("pod/writer", "/status/containerStatuses/0/restartCount"), "0");
    machine.nothing_else_is_mounted(&["writer", "reader", "of-the-copy"]);
    machine.delete_everything();
}

#[test]
fn three_pods_with_a_claim_each() {
    let mut machine = Machine::new();
    machine.apply(&example("three-pods.yaml"));
    let pods = ["worker-0", "worker-1", "worker-2"];
    for (number, pod) in pods.into_iter().enumerate() {
        machine.running(pod);
        machine.until("it has written into its own volume", |machine| {
            let written = machine.in_pod(pod, "cat", "/data/name");
            if written == format!("worker {number}\n") { Ok(()) } else { Err(written) }
        });
    }
    machine.nothing_else_is_mounted(&pods);
    machine.delete_everything();
}

#[test]
fn a_device_and_a_volume_that_lives_with_its_pod() {
    let mut machine = Machine::new();
    machine.apply(&example("block.yaml"));
    machine.apply(&example("ephemeral.yaml"));
    machine.running("raw");
    machine.until("the device has what the pod wrote", |machine| {
        let start = machine.in_pod("raw", "head --bytes=14", "/dev/disk");
        if start == "on the device\n" { Ok(()) } else { Err(start) }
    });
    assert_eq!(machine.in_pod("raw", "stat --dereference --format=%F", "/dev/disk"), "block special file\n");
    machine.running("scratch");
    machine.until("the volume is where the pod wants it", |machine| {
        let said = machine.said("scratch");
        if said.contains("/scratch") { Ok(()) } else { Err(said) }
    });
    let claim = machine.get("pvc/scratch-scratch").expect("the pod's claim");
    assert_eq!(field(&claim, "/metadata/ownerReferences/0/name"), "scratch");
    // The claim goes with its pod, and its volume with the claim.
    machine.delete("pod/scratch");
    machine.gone("pvc/scratch-scratch");
    machine.delete_everything();
}

#[test]
fn a_volume_made_by_hand() {
    let mut machine = Machine::new();
    let made: Value =
        serde_json::from_str(&machine.csi("create by-hand --size 1GiB --fs-type ext4")).unwrap();
    let volume = field(&made, "/volume_id");
    machine.apply(&example("static-volume.yaml").replace("VOLUME", &volume));
    machine.says("pvc/by-hand", "/status/phase", "Bound");
    assert_eq!(machine.field("pvc/by-hand", "/spec/volumeName"), "by-hand");
    machine.create(&pod("keeper", "by-hand", KEEPER));
    machine.written("keeper");
    machine.check_data("by-hand");
    machine.delete("pod/keeper");
    machine.delete("pvc/by-hand");
    machine.gone("pvc/by-hand");
    machine.says("pv/by-hand", "/status/phase", "Released");
    assert_eq!(machine.names("pool/volumes").len(), 1, "what was made by hand is not deleted with its claim");
    machine.gone("pod/keeper");
    machine.delete("pv/by-hand");
    machine.gone("pv/by-hand");
    machine.until("it is detached, and can be deleted by hand", |machine| {
        let attached = machine.try_list("va")?;
        if attached.is_empty() { Ok(()) } else { Err(format!("{attached:?}")) }
    });
    machine.csi(&format!("delete {volume}"));
    machine.nothing_is_left();
}

fn example(file: &str) -> String {
    fs::read_to_string(format!("{EXAMPLES}/{file}")).unwrap()
}

impl Machine {
    /// Makes the objects of a YAML text, or changes those that are there.
    fn apply(&mut self, yaml: &str) {
        for object in serde_saphyr::from_multiple::<Value>(yaml).unwrap() {
            // What is there already, in these files, is a claim.
            if self.create(&object).is_null() {
                self.patch(&format!("pvc/{}", name(&object)), &object);
            }
        }
    }

    /// What a command says of a path, as a pod's container sees it; if it is not there yet, it says that.
    fn in_pod(&self, pod: &str, command: &str, path: &str) -> String {
        let path = format!("/proc/{}/root{path}", self.process_of(pod));
        self.run(&["sh", "-c", &format!("{command} {path} 2>&1 || true")])
    }

    /// How large the file system at a pod's `/data` is.
    fn bytes(&self, pod: &str) -> u64 {
        let said = self.in_pod(pod, "stat --file-system --format=%b:%S", "/data");
        let (blocks, size) = said.trim_end().split_once(':').unwrap();
        blocks.parse::<u64>().unwrap() * size.parse::<u64>().unwrap()
    }

    /// `wharf csi volume …` with the local driver.
    fn csi(&self, what: &str) -> String {
        let (wharf, data) = (built("wharf").display().to_string(), self.data().display().to_string());
        let endpoint = format!("unix://{data}/run/local.sock");
        let words = [wharf.as_str(), "csi", "--endpoint", &endpoint, "--output", "json", "volume"];
        self.run(&words.into_iter().chain(what.split(' ')).collect::<Vec<_>>())
    }
}
