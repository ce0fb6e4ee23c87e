//! The snapshot metadata service with a real API server, the local driver on the real kernel, and real TLS:
//! authorization, and an incremental backup that restores identical data.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use wharf_linux::FsType;
use wharf_testkit::{
    ChildProcess, DriverOptions, MIB, Orchestrator, TestCluster, TestPool, built_program, free_address,
};

use super::{API_ONLY, MINUTE};

const DRIVER: &str = "local.csi.wharf.dev";
const AUDIENCE: &str = "backup.test.wharf.dev";
const CRD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds/snapshotmetadataservices.yaml");
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/snapshot-metadata.yaml");
const SIZE: u64 = 64 * MIB;

#[tokio::test]
#[ignore = "needs a cluster: make test-cluster"]
async fn incremental_backup_restores_identical_data() {
    let cluster = TestCluster::start_with(API_ONLY);
    let pool = TestPool::new(FsType::Xfs, 2 << 30);
    let work = tempfile::tempdir().unwrap();
    let mut co = Orchestrator::start(
        &built_program("test-driver"),
        pool.path(),
        work.path(),
        &DriverOptions::default(),
    );
    let address = free_address();
    let server = Server::start(&cluster, work.path(), &co, &address);

    // Two snapshots of a block volume, and their expected content.
    let volume = co.create("raw", SIZE, "", None).await;
    co.stage(&volume, "").await;
    let device = co.publish(&volume, "", "pod").await;
    write(&device, &[(0, 8192), (MIB, 65_536), (63 * MIB, 4096)], 1);
    let monday = co.snapshot("monday", &volume).await;
    write(&device, &[(4096, 4096), (20 * MIB, 1 << 20)], 2);
    let tuesday = co.snapshot("tuesday", &volume).await;
    write(&device, &[(30 * MIB, 4096)], 3);
    for (name, handle) in [("monday", &monday), ("tuesday", &tuesday)] {
        server.create_ready_snapshot(name, handle);
    }
    let mut restored = Vec::new();
    for (name, handle) in [("from-monday", &monday), ("from-tuesday", &tuesday)] {
        let id = co.create(name, SIZE, "", Some(handle)).await;
        co.stage(&id, "").await;
        let device = co.publish(&id, "", "pod").await;
        restored.push((id, device));
    }

    let backup = |snapshot: &str, handle: &str, data: &Path, base: Option<&str>, token: &str| {
        server.backup(snapshot, handle, data, base, token)
    };
    let valid = server.token("backup", Some(AUDIENCE));
    // Only a token with the right audience, of an account that may read snapshots in the namespace, is accepted.
    let wrong_audience = server.token("backup", Some("another"));
    let unauthorized = server.token("unauthorized", Some(AUDIENCE));
    for (token, code) in [(&wrong_audience, "Unauthenticated"), (&unauthorized, "PermissionDenied")] {
        let refused = backup("monday", &monday, &restored[0].1, None, token).unwrap_err();
        assert!(refused.contains(code), "{refused}");
    }
    let missing = backup("friday", "snap-x", &restored[0].1, None, &valid).unwrap_err();
    assert!(missing.contains("Unavailable") && missing.contains("failed to get VolumeSnapshot"), "{missing}");

    let full = backup("monday", &monday, &restored[0].1, None, &valid).unwrap();
    let increment = backup("tuesday", &tuesday, &restored[1].1, Some("monday"), &valid).unwrap();
    let bytes = |log: &str| {
        let (_, report) = log.split_once("backed up ")?;
        report.split(' ').next()?.parse::<u64>().ok()
    };
    assert_eq!(bytes(&full), Some(8192 + 65_536 + 4096), "{full}");
    assert_eq!(bytes(&increment), Some(4096 + (1 << 20)), "{increment}");

    let onto = work.path().join("new");
    for (backups, expected) in [(&["monday"][..], &restored[0].1), (&["monday", "tuesday"], &restored[1].1)] {
        let paths: Vec<_> = backups.iter().map(|name| work.path().join(format!("{name}.backup"))).collect();
        let mut command = Command::new(built_program("wharf"));
        command.args(["backup", "restore", "--onto"]).arg(&onto).args(paths);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(contents(&onto) == contents(expected), "{backups:?}: restored data differs");
    }
    let log = server.log();
    for token in [&valid, &wrong_audience, &unauthorized] {
        assert!(!log.contains(token.as_str()), "a token is in the log");
    }

    drop(server);
    for (id, _) in &restored {
        co.unmount_and_delete(id).await;
    }
    co.unmount_and_delete(&volume).await;
    co.delete_snapshot(&monday).await;
    co.delete_snapshot(&tuesday).await;
}

/// The service and its objects in the cluster.
struct Server<'a> {
    cluster: &'a TestCluster,
    work: &'a Path,
    process: ChildProcess,
    address: String,
}

impl<'a> Server<'a> {
    fn start(cluster: &'a TestCluster, work: &'a Path, co: &Orchestrator, address: &str) -> Self {
        certificates(work);
        for kind in ["VolumeSnapshot", "VolumeSnapshotContent", "VolumeSnapshotClass"] {
            cluster.apply(&crd(kind));
        }
        cluster.apply(&fs::read_to_string(CRD).unwrap());
        cluster.apply(&fs::read_to_string(RULES).unwrap());
        // The driver's service account, which the rules refer to.
        cluster.kubectl(&["create", "serviceaccount", "wharf-sidecar"]);
        for name in ["backup", "unauthorized"] {
            cluster.kubectl(&["create", "serviceaccount", name]);
        }
        let binding = ["create", "rolebinding", "backup", "--clusterrole=wharf-snapshot-metadata-client"];
        cluster.kubectl(&[&binding[..], &["--serviceaccount=default:backup"]].concat());
        for crd in ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"] {
            let name = format!("crd/{crd}.snapshot.storage.k8s.io");
            cluster.wait_for(&name, "condition=Established", MINUTE);
        }
        cluster.wait_for("crd/snapshotmetadataservices.cbt.storage.k8s.io", "condition=Established", MINUTE);
        let ca = BASE64.encode(fs::read(work.join("ca.pem")).unwrap());
        cluster.apply(&format!(
            "apiVersion: cbt.storage.k8s.io/v1beta1\nkind: SnapshotMetadataService\nmetadata: {{name: {DRIVER}}}\n\
             spec: {{address: \"{address}\", audience: {AUDIENCE}, caCert: {ca}}}\n"
        ));
        cluster.apply(&format!(
            "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {{name: plain}}\n\
             driver: {DRIVER}\ndeletionPolicy: Delete\n"
        ));
        let kubeconfig = write_kubeconfig(cluster, work);
        let path = |name: &str| work.join(name).display().to_string();
        let (socket, cert, key) =
            (co.driver.socket().display().to_string(), path("server.pem"), path("server.key"));
        let args = [
            "snapshot-metadata",
            "--csi-address",
            &socket,
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            "--address",
            address,
            "--kubeconfig",
            &kubeconfig,
            "--http-endpoint",
            "127.0.0.1:0",
        ];
        let process = ChildProcess::start_with(
            &built_program("wharf"),
            &args,
            &[("RUST_LOG", "debug")],
            &work.join("service.log"),
        );
        let server = Self { cluster, work, process, address: address.to_owned() };
        cluster.eventually("the service listens", MINUTE, |_| {
            std::net::TcpStream::connect(address).ok().map(drop)
        });
        server
    }

    fn log(&self) -> String {
        self.process.log()
    }

    /// Creates a VolumeSnapshot with a bound, ready content, as the snapshot controller would.
    fn create_ready_snapshot(&self, name: &str, handle: &str) {
        self.cluster.apply(&format!(
            "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: {name}}}\n\
             spec: {{source: {{persistentVolumeClaimName: raw}}, volumeSnapshotClassName: plain}}\n"
        ));
        let uid = self.cluster.field(&format!("volumesnapshot/{name}"), ".metadata.uid");
        self.cluster.apply(&format!(
            "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {{name: c-{name}}}\n\
             spec: {{driver: {DRIVER}, deletionPolicy: Retain, source: {{snapshotHandle: {handle}}}, \
             volumeSnapshotRef: {{namespace: default, name: {name}, uid: {uid}}}}}\n"
        ));
        for (object, status) in [
            (format!("volumesnapshotcontent/c-{name}"), format!(r#""snapshotHandle":"{handle}""#)),
            (format!("volumesnapshot/{name}"), format!(r#""boundVolumeSnapshotContentName":"c-{name}""#)),
        ] {
            let patch = format!(r#"{{"status":{{"readyToUse":true,{status}}}}}"#);
            self.cluster.kubectl(&[
                "patch",
                &object,
                "--subresource=status",
                "--type=merge",
                "--patch",
                &patch,
            ]);
        }
    }

    fn token(&self, account: &str, audience: Option<&str>) -> String {
        let audience = audience.map(|audience| format!("--audience={audience}"));
        let mut args = vec!["create", "token", account];
        args.extend(audience.as_deref());
        self.cluster.kubectl(&args).trim().to_owned()
    }

    fn backup(
        &self,
        snapshot: &str,
        handle: &str,
        data: &Path,
        base: Option<&str>,
        token: &str,
    ) -> Result<String, String> {
        let at = |name: &str| self.work.join(name);
        fs::write(at("token"), token).unwrap();
        let mut command = Command::new(built_program("wharf"));
        command.args([
            "backup",
            "create",
            "--namespace",
            "default",
            "--snapshot",
            snapshot,
            "--handle",
            handle,
        ]);
        command.args(["--server", &self.address, "--ca-file"]).arg(at("ca.pem"));
        command.arg("--token-file").arg(at("token")).arg("--data").arg(data);
        if let Some(base) = base {
            command.arg("--base").arg(at(&format!("{base}.backup")));
        }
        let output = command.arg(at(&format!("{snapshot}.backup"))).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

/// Writes a kubeconfig for the service account that the RBAC rules apply to.
fn write_kubeconfig(cluster: &TestCluster, work: &Path) -> String {
    let token = cluster.kubectl(&["create", "token", "wharf-sidecar", "--duration=10h"]);
    let admin = fs::read_to_string(cluster.kubeconfig()).unwrap();
    let server = admin.lines().find(|line| line.starts_with("clusters:")).unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\n{server}\nusers: [{{name: sidecar, user: {{token: {}}}}}]\n\
         contexts: [{{name: sidecar, context: {{cluster: test, user: sidecar}}}}]\ncurrent-context: sidecar\n",
        token.trim()
    );
    let file = work.join("kubeconfig");
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// A minimal CRD of a snapshot kind.
fn crd(kind: &str) -> String {
    let singular = kind.to_lowercase();
    let plural = if kind.ends_with("Class") { format!("{singular}es") } else { format!("{singular}s") };
    let scope = if kind == "VolumeSnapshot" { "Namespaced" } else { "Cluster" };
    format!(
        r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {plural}.snapshot.storage.k8s.io
  annotations: {{api-approved.kubernetes.io: "unapproved, for a test"}}
spec:
  group: snapshot.storage.k8s.io
  scope: {scope}
  names: {{kind: {kind}, listKind: {kind}List, plural: {plural}, singular: {singular}}}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {{status: {{}}}}
    schema:
      openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}
"#
    )
}

/// Creates a certificate authority and a server certificate for 127.0.0.1.
fn certificates(work: &Path) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem \
         -days 2 -subj /CN=test && \
         openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key -out server.csr \
         -subj /CN=server && \
         printf 'subjectAltName=IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' > ext && \
         openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -days 2 -out server.pem -extfile ext";
    let output = Command::new("sh").args(["-c", script]).current_dir(work).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn write(device: &Path, ranges: &[(u64, u64)], seed: u8) {
    let file = File::options().write(true).open(device).unwrap();
    for (offset, length) in ranges {
        let bytes: Vec<u8> = (0..*length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        file.write_all_at(&bytes, *offset).unwrap();
    }
    file.sync_all().unwrap();
}

fn contents(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    File::open(path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}
