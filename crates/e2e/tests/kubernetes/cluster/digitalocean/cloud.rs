//! A fake of the DigitalOcean API for a test cluster, with the driver's controller, its sidecar, and its Node
//! service on each node; and objects as the previous driver wrote them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wharf_testkit::{ChildProcess, TestCluster, built_program, free_address, node_sidecar};

use super::super::MINUTE;

pub(super) const DRIVER: &str = "dobs.csi.digitalocean.com";
pub(super) const DROPLETS: [u64; 2] = [101, 102];
/// The names of two existing volumes: one in use, one never formatted.
pub(super) const TAKEN_OVER: (&str, &str) =
    ("pvc-0d1fa5c3-7f4a-4c66-8b3e-0a5ad5f9d001", "pvc-0d1fa5c3-7f4a-4c66-8b3e-0a5ad5f9d002");
const REGION: &str = "nyc3";
const TOKEN: &str = "dop_v1_for_tests";

/// The fake API, the drivers and the sidecars.
pub(super) struct Cloud {
    sidecars: Vec<ChildProcess>,
    drivers: Vec<ChildProcess>,
    fake: ChildProcess,
    api: String,
    by_id: PathBuf,
}

impl Cloud {
    pub(super) fn start(cluster: &TestCluster) -> Self {
        let dir = cluster.directory().join(DRIVER);
        let (state, by_id, token) = (dir.join("state"), dir.join("by-id"), dir.join("token"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(&token, TOKEN).unwrap();
        let (api, token) = (free_address(), text(&token));
        let metadata = DROPLETS.map(|_| free_address());
        let droplets: Vec<String> =
            DROPLETS.iter().zip(&metadata).map(|(id, address)| format!("{id}:{REGION}@{address}")).collect();
        let (state, links) = (text(&state), text(&by_id));
        let mut args = vec!["--listen", &api, "--state", &state];
        args.extend(["--token-file", &token, "--attach-real", &links]);
        args.extend(["--action-delay", "500ms", "--device-delay", "300ms", "--snapshot-interval", "0"]);
        args.extend(droplets.iter().flat_map(|droplet| ["--droplet", droplet]));
        let fake = ChildProcess::start(&built_program("fake-digitalocean"), &args, &log(cluster, "fake"));
        cluster.eventually("the double listens", MINUTE, |_| TcpStream::connect(&api).ok());

        cluster.apply(&csi_driver());
        let (kubeconfig, url) = (text(&cluster.kubeconfig()), format!("http://{api}"));
        let crds = Command::new(built_program("wharf"))
            .args(["install", "crds", "--kubeconfig", &kubeconfig])
            .output();
        let crds = crds.unwrap();
        assert!(crds.status.success(), "{}", String::from_utf8_lossy(&crds.stderr));
        let socket = dir.join("csi.sock");
        let (endpoint, socket) = (format!("unix://{}", socket.display()), text(&socket));
        let mut args = vec!["driver", "digitalocean", "--endpoint", &endpoint, "--url", &url];
        args.extend(["--token-file", &token, "--region", REGION, "--do-tag", "k8s:test"]);
        let mut drivers =
            vec![ChildProcess::start(&built_program("wharf"), &args, &log(cluster, "controller"))];
        let pages = ["--http-endpoint", "127.0.0.1:0"];
        let args = ["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig, pages[0], pages[1]];
        let mut sidecars = vec![
            ChildProcess::start(&built_program("wharf"), &args, &log(cluster, "sidecar")),
            ChildProcess::start(
                &built_program("wharf"),
                &["snapshot-controller", "--kubeconfig", &kubeconfig],
                &log(cluster, "snapshot-controller"),
            ),
        ];
        for ((node, droplet), metadata) in cluster.nodes().iter().zip(DROPLETS).zip(&metadata) {
            let plugin = cluster.kubelet_root(node).join("plugins").join(DRIVER);
            fs::create_dir_all(&plugin).unwrap();
            let socket = plugin.join("csi.sock");
            let (endpoint, metadata) = (format!("unix://{}", socket.display()), format!("http://{metadata}"));
            let (devices, state) = (text(&by_id.join(droplet.to_string())), text(&plugin.join("volumes")));
            let mut args = vec!["driver", "digitalocean", "--endpoint", &endpoint];
            args.extend(["--metadata-url", &metadata, "--device-dir", &devices, "--state-dir", &state]);
            drivers.push(ChildProcess::start(
                &built_program("wharf"),
                &args,
                &log(cluster, &format!("driver-{node}")),
            ));
            let log = log(cluster, &format!("node-sidecar-{node}"));
            sidecars.push(node_sidecar(cluster, node, &socket, &log));
            let registered = format!("jsonpath={{.spec.drivers[0].name}}={DRIVER}");
            cluster.wait_for(&format!("csinode/{node}"), &registered, MINUTE);
        }
        Self { sidecars, drivers, fake, api, by_id }
    }

    /// Stops drivers and sidecars in order, once the fake has no volume, snapshot or device left.
    pub(super) fn ends_empty(&mut self, cluster: &TestCluster) {
        cluster.eventually("the cloud is empty", 2 * MINUTE, |_| {
            let count = |path: &str| self.call("GET", path, None)["meta"]["total"].as_u64().unwrap();
            (count("/v2/volumes") + count("/v2/snapshots") == 0).then_some(())
        });
        // The PersistentVolume is deleted after the volume.
        cluster
            .eventually("no volume is left", MINUTE, |cluster| cluster.names("pv").is_empty().then_some(()));
        for droplet in DROPLETS {
            let links = fs::read_dir(self.by_id.join(droplet.to_string())).unwrap();
            assert_eq!(links.count(), 0, "links of droplet {droplet}");
        }
        for process in self.sidecars.iter_mut().chain(&mut self.drivers) {
            process.stop();
        }
    }

    /// Creates a volume outside of the driver; returns its ID.
    pub(super) fn make_volume(&self, name: &str, gib: u64) -> String {
        let wanted = json!({
            "name": name, "region": REGION, "size_gigabytes": gib,
            "description": "Created by DigitalOcean CSI driver",
        });
        self.call("POST", "/v2/volumes", Some(wanted))["volume"]["id"].as_str().unwrap().to_owned()
    }

    pub(super) fn attach(&self, id: &str, droplet: u64) {
        self.act(id, droplet, "attach", true);
    }

    /// Formats a volume with xfs as the previous driver did, writes one file to it, and detaches it.
    pub(super) fn fill(&self, id: &str, name: &str, word: &str) {
        self.attach(id, DROPLETS[0]);
        let link = self.by_id.join(DROPLETS[0].to_string()).join(format!("scsi-0DO_Volume_{name}"));
        for _ in 0..100 {
            if link.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        run("mkfs.xfs", &["-q", &text(&link)]);
        let mount = self.by_id.join("filling");
        fs::create_dir_all(&mount).unwrap();
        run("mount", &[&text(&link), &text(&mount)]);
        fs::write(mount.join("file"), format!("{word}\n")).unwrap();
        run("umount", &[&text(&mount)]);
        fs::remove_dir(&mount).unwrap();
        self.act(id, DROPLETS[0], "detach", false);
    }

    fn act(&self, id: &str, droplet: u64, action: &str, attached: bool) {
        let wanted = json!({"type": action, "droplet_id": droplet, "region": REGION});
        self.call("POST", &format!("/v2/volumes/{id}/actions"), Some(wanted));
        for _ in 0..100 {
            let volume = self.call("GET", &format!("/v2/volumes/{id}"), None);
            let droplets = volume["volume"]["droplet_ids"].as_array().cloned().unwrap_or_default();
            if droplets.contains(&json!(droplet)) == attached {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{action} of volume {id} did not complete");
    }

    fn call(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let mut stream = TcpStream::connect(&self.api).unwrap();
        stream.set_read_timeout(Some(MINUTE)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.api,
            body.len()
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {response}");
        serde_json::from_str(body).unwrap()
    }
}

impl Drop for Cloud {
    /// The fake releases its devices only if it exits in order, also after a failed test.
    fn drop(&mut self) {
        self.fake.terminate();
    }
}

/// The name that the attach/detach controller gives the attachment of a volume, by its ID, to the first node.
pub(super) fn attachment_name(id: &str) -> String {
    let hash = Sha256::digest(format!("{id}{DRIVER}node-a"));
    hash.iter().fold("csi-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// A volume and its claim as the previous driver's provisioner wrote them.
pub(super) fn as_before(name: &str, id: &str) -> String {
    // A volume that is expanded in use needs a file system that can be expanded here.
    let fs = if name == TAKEN_OVER.0 { "xfs" } else { "ext4" };
    format!(
        r#"
apiVersion: v1
kind: PersistentVolume
metadata:
  name: {name}
  annotations: {{pv.kubernetes.io/provisioned-by: {DRIVER}, volume.kubernetes.io/provisioner-deletion-secret-name: "", volume.kubernetes.io/provisioner-deletion-secret-namespace: ""}}
  finalizers: [external-provisioner.volume.kubernetes.io/finalizer, kubernetes.io/pv-protection]
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: 2Gi}}
  claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, name: {name}, namespace: default}}
  csi:
    driver: {DRIVER}
    fsType: {fs}
    volumeAttributes: {{storage.kubernetes.io/csiProvisionerIdentity: 1767000000000-8081-{DRIVER}}}
    volumeHandle: {id}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: region, operator: In, values: [{REGION}]}}]}}]}}}}
  persistentVolumeReclaimPolicy: Delete
  storageClassName: do-block-storage
  volumeMode: Filesystem
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}
  annotations: {{volume.kubernetes.io/storage-provisioner: {DRIVER}}}
spec:
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 2Gi}}}}
  storageClassName: do-block-storage
  volumeMode: Filesystem
  volumeName: {name}
---"#
    )
}

/// The volume's attachment to the first node.
pub(super) fn attachment_as_before(volume: &str, id: &str) -> String {
    let name = attachment_name(id);
    let finalizer = DRIVER.replace('.', "-");
    format!(
        r#"
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata:
  name: {name}
  annotations: {{csi.alpha.kubernetes.io/node-id: "{}"}}
  finalizers: [external-attacher/{finalizer}]
spec: {{attacher: {DRIVER}, nodeName: node-a, source: {{persistentVolumeName: {volume}}}}}
---"#,
        DROPLETS[0]
    )
}

/// The status that the attacher wrote to it.
pub(super) fn attached_as_before(volume: &str) -> String {
    let metadata = json!({format!("{DRIVER}/volume-name"): volume});
    json!({"status": {"attached": true, "attachmentMetadata": metadata}}).to_string()
}

fn csi_driver() -> String {
    format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\n\
         spec: {{attachRequired: true, podInfoOnMount: true}}\n"
    )
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn log(cluster: &TestCluster, program: &str) -> PathBuf {
    cluster.directory().join(format!("log/do-{program}.log"))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
