//! `wharf up` with only a third-party driver: upstream's hostpath driver and all flows that it supports. The driver
//! starts late, stops and restarts. Needs no cluster, only upstream's programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use wharf_testkit::{ChildProcess, Kubectl, built_program};

use super::MINUTE;
use super::harness::mounts;
use super::host::{HOSTPATH, Sweep, assert_empty, devices, hostpath};
use super::objects::{claim, pod};

const NODE: &str = "up-node";
const READY: &str = "condition=Ready";

/// A `wharf up` process. Fields are dropped in this order.
struct Up {
    process: ChildProcess,
    kubectl: Kubectl,
    _sweep: Sweep,
    directory: TempDir,
}

impl Up {
    /// Starts it with one third-party driver, which stores volumes in `state`.
    fn start(driver: &str) -> Self {
        // Not in /tmp: containers have their own.
        let directory = tempfile::Builder::new().prefix("wharf-up-").tempdir_in("/var/tmp").unwrap();
        let data = directory.path().join("data");
        let sweep = Sweep { directory: directory.path().to_owned(), containers: data.join("containers") };
        let socket = format!("unix://{}{driver}", directory.path().join("csi.sock").display());
        let state = directory.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let args = [
            "up",
            "--data-dir",
            &data.display().to_string(),
            "--listen=127.0.0.1:0",
            "--node-name",
            NODE,
            "--no-local",
            "--csi",
            &socket,
            "--hide",
            &state.display().to_string(),
        ];
        let process = ChildProcess::start(&built_program("wharf"), &args, &directory.path().join("log"));
        let kubectl = Kubectl::with_kubeconfig(data.join("kubeconfig"));
        kubectl.wait_until("the API is served", MINUTE, |kubectl| {
            kubectl.try_kubectl(&["get", "--raw", "/readyz"]).ok()
        });
        Self { process, kubectl, _sweep: sweep, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs `wharf down`: stops the pods, then `wharf up`.
    fn down(&mut self) {
        let data = self.path("data");
        let down =
            Command::new(built_program("wharf")).arg("down").arg("--data-dir").arg(data).output().unwrap();
        assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
        assert!(!self.process.is_running());
    }
}

#[test]
#[ignore = "needs upstream's programs: make test-cluster"]
fn hostpath_driver_works_under_wharf_up() {
    let mut up = Up::start(",pod-info,ephemeral,fs-group=File");
    let kubectl = up.kubectl.clone();

    // Without the driver everything else works, and the log reports that it is missing.
    kubectl.wait_for(&format!("node/{NODE}"), "create", MINUTE);
    kubectl.wait_for(&format!("node/{NODE}"), READY, MINUTE);
    kubectl.apply(&pod_with("alone", "emptyDir: {}"));
    kubectl.wait_for("pod/alone", READY, MINUTE);
    assert_eq!(kubectl.names("storageclass"), Vec::<String>::new());
    kubectl.wait_until("the log reports the missing driver", MINUTE, |_| {
        up.process.log().contains("driver does not respond; waiting for it").then_some(())
    });

    let (socket, state) = (up.path("csi.sock"), up.path("state"));
    let mut driver = hostpath(&socket, &state, NODE, &up.path("driver.log"));
    let registered = format!("jsonpath={{.spec.drivers[0].name}}={HOSTPATH}");
    kubectl.wait_for(&format!("csinode/{NODE}"), &registered, MINUTE);
    kubectl.wait_until("the driver's StorageClass exists", MINUTE, |kubectl| {
        kubectl.names("storageclass").contains(&HOSTPATH.to_owned()).then_some(())
    });

    files(&kubectl);
    // The driver stores volumes as host directories; a pod sees only its own.
    assert!(std::fs::read_dir(&state).unwrap().count() > 1);
    let hidden = state.display().to_string();
    for name in ["one", "alone"] {
        assert_eq!(kubectl.kubectl(&["exec", name, "--", "ls", "-A", &hidden]), "", "{name}");
    }
    devices_and_scratch(&kubectl);

    // The driver stops. New pods wait, and existing ones keep running. (This release of the driver stores what it
    // has published only when a volume or snapshot is created or deleted, and would otherwise lose the last ones.)
    snapshot(&kubectl, "copy");
    driver.kill();
    kubectl.apply(&[claim("late", HOSTPATH, "16Mi", ""), pod("late", "late", "")].concat());
    assert_eq!(kubectl.kubectl(&["exec", "one", "--", "cat", "/data/file"]), "data\n");
    kubectl.kubectl(&["delete", "pod", "copy", "--wait=false"]);
    driver.restart();
    kubectl.wait_for("pod/late", READY, 2 * MINUTE);
    kubectl.wait_for("pod/copy", "delete", 2 * MINUTE);

    end(&kubectl);
    assert_empty(&state);
    let data = up.path("data");
    kubectl.wait_until("no container is left", MINUTE, |_| (containers(&data) == 0).then_some(()));
    up.down();
    assert_eq!(mounts(up.directory.path()).into_iter().collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(devices(up.directory.path()), Vec::<String>::new());
}

/// Provision, attach, mount, write, snapshot, restore, clone, expand.
fn files(kubectl: &Kubectl) {
    kubectl.apply(&[claim("one", HOSTPATH, "16Mi", ""), pod("one", "one", "")].concat());
    kubectl.wait_for("pod/one", READY, MINUTE);
    kubectl.kubectl(&["exec", "one", "--", "sh", "-c", "echo data > /data/file && sync"]);
    let attached =
        kubectl.kubectl(&["get", "volumeattachment", "--output", "jsonpath={.items[*].status.attached}"]);
    assert_eq!(attached, "true");

    snapshot(kubectl, "one");
    kubectl.kubectl(&["exec", "one", "--", "sh", "-c", "echo later > /data/later && sync"]);
    let taken = "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: one}";
    let source = "dataSource: {kind: PersistentVolumeClaim, name: one}";
    for (name, from, files) in [("restored", taken, "file\n"), ("copy", source, "file\nlater\n")] {
        kubectl.apply(&[claim(name, HOSTPATH, "16Mi", from), pod(name, name, "")].concat());
        kubectl.wait_for(&format!("pod/{name}"), READY, MINUTE);
        assert_eq!(kubectl.kubectl(&["exec", name, "--", "cat", "/data/file"]), "data\n");
        assert_eq!(kubectl.kubectl(&["exec", name, "--", "ls", "/data"]), files, "{name}");
    }

    let bigger = r#"{"spec": {"resources": {"requests": {"storage": "32Mi"}}}}"#;
    kubectl.kubectl(&["patch", "pvc", "one", "--patch", bigger]);
    kubectl.wait_for("pvc/one", "jsonpath={.status.capacity.storage}=32Mi", MINUTE);
}

/// A snapshot of a claim, by the claim's name.
fn snapshot(kubectl: &Kubectl, claim: &str) {
    kubectl.apply(&format!(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: {claim}}}\n\
         spec: {{source: {{persistentVolumeClaimName: {claim}}}}}\n"
    ));
    kubectl.wait_for(&format!("volumesnapshot/{claim}"), "jsonpath={.status.readyToUse}=true", MINUTE);
}

/// A block volume, a generic ephemeral volume, and a CSI inline volume.
fn devices_and_scratch(kubectl: &Kubectl) {
    kubectl.apply(&claim("raw", HOSTPATH, "16Mi", "volumeMode: Block"));
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: raw}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers: [{name: c, image: any, command: [sleep, \"100000\"], volumeDevices: [{name: v, devicePath: /dev/raw}]}]\n  \
         volumes: [{name: v, persistentVolumeClaim: {claimName: raw}}]\n",
    );
    kubectl.wait_for("pod/raw", READY, MINUTE);
    let write = "printf block | dd of=/dev/raw conv=notrunc,fsync status=none && head -c 5 /dev/raw";
    assert_eq!(kubectl.kubectl(&["exec", "raw", "--", "sh", "-c", write]), "block");

    let template = format!(
        "ephemeral: {{volumeClaimTemplate: {{spec: {{storageClassName: {HOSTPATH}, accessModes: [ReadWriteOnce], \
         resources: {{requests: {{storage: 16Mi}}}}}}}}}}"
    );
    kubectl.apply(&pod_with("scratch", &template));
    kubectl.apply(&pod_with("inline", &format!("csi: {{driver: {HOSTPATH}}}")));
    for name in ["scratch", "inline"] {
        kubectl.wait_for(&format!("pod/{name}"), READY, MINUTE);
        let write = "echo mine > /data/file && cat /data/file";
        assert_eq!(kubectl.kubectl(&["exec", name, "--", "sh", "-c", write]), "mine\n");
    }
}

/// Unmount, detach, delete.
fn end(kubectl: &Kubectl) {
    kubectl.kubectl(&["delete", "pod", "--all", "--timeout=120s"]);
    kubectl.wait_until("nothing is attached", MINUTE, |kubectl| {
        kubectl.names("volumeattachment").is_empty().then_some(())
    });
    kubectl.kubectl(&["delete", "volumesnapshot", "--all", "--timeout=60s"]);
    kubectl.kubectl(&["delete", "pvc", "--all", "--timeout=60s"]);
    kubectl.wait_until("everything is deleted", 2 * MINUTE, |kubectl| {
        let kinds = ["pv", "pvc", "volumesnapshot", "volumesnapshotcontent"];
        kinds.iter().all(|kind| kubectl.names(kind).is_empty()).then_some(())
    });
}

fn containers(data: &Path) -> usize {
    std::fs::read_dir(data.join("containers")).unwrap().count()
}

/// A pod that sleeps with a volume at /data.
fn pod_with(name: &str, volume: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers: [{{name: c, image: any, command: [sleep, \"100000\"], volumeMounts: [{{name: v, mountPath: /data}}]}}]\n  \
         volumes: [{{name: v, {volume}}}]\n"
    )
}
