//! `wharf apiserver` as a process: files and their permissions, authorization over HTTPS, durability, backups.

#![allow(clippy::unwrap_used)] // test helpers: a panic is the intended failure

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use wharf_cluster::{Cluster, ConnectOptions, Preconditions};
use wharf_model::{ApiResource, Key, Scope};

const CONFIG_MAPS: ApiResource = ApiResource {
    group: "",
    version: "v1",
    kind: "ConfigMap",
    plural: "configmaps",
    scope: Scope::Namespaced,
};
const SECRETS: ApiResource =
    ApiResource { group: "", version: "v1", kind: "Secret", plural: "secrets", scope: Scope::Namespaced };

fn wharf(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wharf"));
    command.arg("apiserver").args(words);
    command
}

fn ran(words: &[&str]) -> Output {
    wharf(words).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

struct Server {
    child: Child,
    url: String,
    data: PathBuf,
    kubeconfig: PathBuf,
}

impl Server {
    fn start(data: &Path) -> Self {
        let kubeconfig = data.with_extension("kubeconfig");
        let mut child = wharf(&["--data-dir", text(data), "--listen", "127.0.0.1:0"])
            .args(["--kubeconfig-out", text(&kubeconfig)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let url = line.strip_prefix("api ").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, url, data: data.into(), kubeconfig }
    }

    async fn admin(&self) -> Cluster {
        connect(&self.kubeconfig).await
    }

    async fn identity(&self, identity: &str) -> Cluster {
        let out = self.data.with_extension(format!("{}.kubeconfig", identity.replace(':', "-")));
        let args =
            ["kubeconfig", "--data-dir", text(&self.data), "--identity", identity, "--server", &self.url];
        let output = wharf(&args).args(["--out", text(&out)]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        connect(&out).await
    }

    fn signal(&mut self, name: &str) -> Option<i32> {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Still running only if the test has failed or did not stop it.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("-KILL");
        }
    }
}

async fn connect(kubeconfig: &Path) -> Cluster {
    let options = ConnectOptions { kubeconfig: Some(kubeconfig.into()), ..ConnectOptions::default() };
    Cluster::connect(&options).await.unwrap()
}

fn named(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    let mut server = Server::start(&data);
    for private in [&server.kubeconfig, &data.join("pki/ca.key"), &data.join("pki/admin.token")] {
        assert_eq!(private.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{private:?}");
    }
    assert_eq!(data.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let created =
        server.admin().await.create(&CONFIG_MAPS, Some("default"), &named("ConfigMap", "a")).await.unwrap();
    assert_eq!(server.signal("-KILL"), None);

    let mut server = Server::start(&data);
    let key = Key::namespaced("default", "a");
    let found = server.admin().await.get_raw(&CONFIG_MAPS, &key).await.unwrap().unwrap();
    assert_eq!(found["metadata"]["uid"], created["metadata"]["uid"]);
    let second = ran(&["--data-dir", text(&data), "--listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(1), "a second server on the same directory");
    assert_eq!(server.signal("-TERM"), Some(0));
}

#[tokio::test]
async fn backup_is_restored_into_an_empty_directory_only() {
    let root = tempfile::tempdir().unwrap();
    let (data, other) = (root.path().join("data"), root.path().join("other"));
    let file = root.path().join("objects.backup");
    let mut server = Server::start(&data);
    let created =
        server.admin().await.create(&CONFIG_MAPS, Some("default"), &named("ConfigMap", "a")).await.unwrap();
    let missing = root.path().join("missing");
    let mistyped = ran(&["backup", "--data-dir", text(&missing), "--to", text(&file)]);
    assert_eq!(mistyped.status.code(), Some(1), "backed up a directory that does not exist");
    assert!(!missing.exists() && !file.exists(), "created a directory or a backup");
    let backup = ["backup", "--data-dir", text(&data), "--to", text(&file)];
    assert_eq!(ran(&backup).status.code(), Some(1), "backed up a running server");
    assert_eq!(server.signal("-TERM"), Some(0));
    assert_eq!(ran(&backup).status.code(), Some(0));
    let restored = ran(&["restore", "--from", text(&file), "--data-dir", text(&other)]);
    assert!(restored.status.success(), "{restored:?}");
    let again = ran(&["restore", "--from", text(&file), "--data-dir", text(&other)]);
    assert_eq!(again.status.code(), Some(1), "restored over existing objects");

    let server = Server::start(&other);
    let found =
        server.admin().await.get_raw(&CONFIG_MAPS, &Key::namespaced("default", "a")).await.unwrap().unwrap();
    assert_eq!(found["metadata"]["uid"], created["metadata"]["uid"]);
}

#[tokio::test]
async fn each_identity_has_only_its_permissions() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let (admin, sidecar, node) =
        (server.admin().await, server.identity("sidecar").await, server.identity("node:n1").await);
    admin.create(&SECRETS, Some("default"), &named("Secret", "s")).await.unwrap();
    let key = Key::namespaced("default", "s");
    assert!(sidecar.get_raw(&SECRETS, &key).await.unwrap().is_some());
    let error = sidecar.delete(&SECRETS, &key, Preconditions::default()).await.unwrap_err();
    assert_eq!(error.reason(), "Forbidden", "{error}");
    let error = node.get_raw(&SECRETS, &key).await.unwrap_err();
    assert_eq!(error.reason(), "Forbidden", "{error}");
    // The client hides the server's message for Secrets, so this uses a ConfigMap.
    admin.create(&CONFIG_MAPS, Some("default"), &named("ConfigMap", "a")).await.unwrap();
    let error = node.get_raw(&CONFIG_MAPS, &Key::namespaced("default", "a")).await.unwrap_err();
    assert!(error.to_string().contains("no relationship found between node 'n1' and this object"), "{error}");
    let error = node.create(&CONFIG_MAPS, Some("default"), &named("ConfigMap", "b")).await.unwrap_err();
    assert_eq!(error.reason(), "Forbidden", "{error}");
}
