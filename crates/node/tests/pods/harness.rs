//! A separate node agent with its own API server for each test, removed afterwards.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Pki, User};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store::{self, Store};
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder};
use wharf_container::{ContainerId, Containers, LogOptions, RunResult, Runtime, State};
use wharf_linux::{Linux, Mounts as _};
use wharf_model::Pod;
use wharf_model::{Key, Kind as _};
use wharf_node::paths::Root;
use wharf_node::plugins::Plugins;
use wharf_node::pods::{self, Agent};
use wharf_node::volumes::{self, VolumeManagerDeps, Volumes};

/// Not in `/tmp`, which is private to a container.
const PARENT_DIR: &str = "/var/tmp";
const NODE: &str = "n1";

pub(crate) struct TestNode {
    pub(crate) cluster: Cluster,
    pub(crate) runtime: Runtime,
    /// The agents' container runtime: the real one, unless a test replaces it.
    containers: Arc<dyn Containers>,
    pub(crate) root: Root,
    api: Api,
    api_task: tokio::task::JoinHandle<()>,
    agent: Option<Running>,
    /// Whether agents get an additional client with more permissions.
    privileged_client: bool,
    _directory: TempDir,
}

/// A running agent.
struct Running {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl TestNode {
    pub(crate) async fn new() -> Self {
        Self::with(true).await
    }

    pub(crate) async fn with(privileged_client: bool) -> Self {
        Self::build(privileged_client, None).await
    }

    /// A node with another container runtime.
    pub(crate) async fn with_runtime(containers: Arc<dyn Containers>) -> Self {
        Self::build(true, Some(containers)).await
    }

    async fn build(privileged_client: bool, containers: Option<Arc<dyn Containers>>) -> Self {
        let directory = tempfile::Builder::new().prefix("wharf-pods-").tempdir_in(PARENT_DIR).unwrap();
        let path = directory.path().canonicalize().unwrap();
        let program = env!("CARGO_BIN_EXE_node-container-helper");
        let mut settings =
            wharf_container::Settings::new(program, path.join("containers"), path.join("logs"));
        settings.hidden = vec![path.clone()];
        let runtime = Runtime::open(settings).unwrap();
        let store =
            Store::open(&path.join("api"), store::Options { sync: false, ..store::Options::default() });
        let options =
            rest::Options { ca_certificate: "a certificate".to_owned(), ..rest::Options::default() };
        let pki = Pki::open_or_create(&path.join("api"), wharf_cluster::now()).unwrap();
        let api = Api::new(store.unwrap(), pki.access().unwrap(), options);
        api.prepare().await.unwrap();
        let api_task = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        let root = Root::new(path.join("kubelet"));
        std::fs::create_dir_all(root.pods()).unwrap();
        let cluster = cluster(&api);
        let node = json!({"metadata": {"name": NODE}});
        cluster.create(&wharf_model::Node::API, None, &node).await.unwrap();
        let mut node = Self {
            cluster,
            containers: containers.unwrap_or_else(|| Arc::new(runtime.clone())),
            runtime,
            root,
            api,
            api_task,
            agent: None,
            privileged_client,
            _directory: directory,
        };
        node.start();
        node
    }

    /// Starts an agent.
    pub(crate) fn start(&mut self) {
        let stop = CancellationToken::new();
        let gate = Gate::new(None, stop.clone());
        // A client of its own, like a new process.
        let cluster = Cluster::with_client(kube::Client::new(self.api.service(User::node(NODE)), "default"));
        let privileged_client = self.privileged_client.then(|| self::cluster(&self.api));
        let events = EventRecorder::start(&cluster, pods::COMPONENT, NODE);
        let volumes = Volumes::new(
            VolumeManagerDeps {
                cluster: cluster.clone(),
                privileged_client: privileged_client.clone(),
                events: events.clone(),
                plugins: Plugins::new(),
                kernel: Arc::new(Linux::new()),
                root: self.root.clone(),
                node: NODE.to_owned(),
            },
            volumes::Settings {
                resync: Duration::from_millis(if self.privileged_client { 60_000 } else { 100 }),
                hidden: self.runtime.hidden(),
                ..volumes::Settings::default()
            },
        );
        let agent = Agent {
            cluster,
            privileged_client,
            node: NODE.to_owned(),
            address: "127.0.0.1".to_owned(),
            server: Some(("127.0.0.1".to_owned(), 6443)),
            events,
            volumes: volumes.clone(),
            runtime: Arc::clone(&self.containers),
            root: self.root.clone(),
            settings: pods::Settings { crash_start: Duration::from_millis(200), ..pods::Settings::default() },
            gate: gate.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(volumes::run(volumes, gate));
        tasks.spawn(pods::run(agent));
        self.agent = Some(Running { stop, tasks });
    }

    /// Kills the agent.
    pub(crate) async fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.tasks.shutdown().await;
        }
    }

    /// Creates a pod with one container that runs a script; `change` edits the pod.
    pub(crate) async fn pod(&self, name: &str, script: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": NODE, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 5,
                "containers": [{"name": "c", "image": "busybox", "command": ["/bin/sh", "-c", script]}],
            },
        });
        change(&mut pod);
        self.create(&Pod::API, pod).await;
    }

    pub(crate) async fn create(&self, api: &wharf_model::ApiResource, object: Value) {
        self.cluster.create(api, Some("default"), &object).await.unwrap();
    }

    pub(crate) async fn get(&self, name: &str) -> Option<Value> {
        self.cluster.get_raw(&Pod::API, &Key::namespaced("default", name)).await.unwrap()
    }

    /// Waits until the pod matches.
    pub(crate) async fn wait_for(&self, name: &str, matches: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..6000 {
            if let Some(pod) = self.get(name).await
                && matches(&pod)
            {
                return pod;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "timed out waiting for the pod: {:#}\n{}",
            self.get(name).await.unwrap_or_default(),
            self.events().await
        );
    }

    pub(crate) async fn wait_for_phase(&self, name: &str, phase: &str) -> Value {
        self.wait_for(name, |pod| pod["status"]["phase"] == phase).await
    }

    /// Deletes the pod with its grace period.
    pub(crate) async fn delete(&self, name: &str) {
        self.cluster.delete(&Pod::API, &Key::namespaced("default", name), Default::default()).await.unwrap();
    }

    /// Waits until nothing is left of a pod: neither object nor container nor directory.
    pub(crate) async fn wait_until_removed(&self, name: &str, uid: &str) {
        let mut left = String::new();
        for _ in 0..6000 {
            let object = self.get(name).await.is_some_and(|pod| pod["metadata"]["uid"] == uid);
            let containers =
                self.runtime.list().unwrap().into_iter().filter(|found| found.pod_uid == uid).count();
            let directory = self.root.pod(uid).exists();
            if !object && containers == 0 && !directory {
                return;
            }
            left = format!("object {object}, {containers} containers, directory {directory}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the pod was not removed: {left}\n{}", self.events().await);
    }

    /// All events: reasons and messages.
    pub(crate) async fn events(&self) -> String {
        let listed = self.cluster.list::<EventView>(&Default::default()).await.unwrap();
        let line = |event: &EventView| format!("{} {}\n", event.reason, event.message);
        listed.items.iter().map(line).collect()
    }

    /// Waits for an event.
    pub(crate) async fn wait_for_event(&self, what: &str) {
        for _ in 0..3000 {
            if self.events().await.contains(what) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no event {what:?}:\n{}", self.events().await);
    }

    /// Runs a script in a container and returns its output.
    pub(crate) async fn exec(&self, id: &str, script: &str) -> String {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        match self.runtime.run(&container_id(id), &command, Duration::from_secs(60)).await {
            RunResult::Ended { output, .. } => output,
            other => panic!("{other:?}"),
        }
    }

    /// A container's log.
    pub(crate) async fn log(&self, id: &str) -> String {
        let mut logs = self.runtime.logs(&container_id(id), LogOptions::default()).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = logs.next().await.unwrap() {
            text.extend(piece);
        }
        String::from_utf8(text).unwrap()
    }

    /// A file of a pod's volume, on the host.
    pub(crate) fn volume(&self, pod: &Value, plugin: &str, name: &str) -> PathBuf {
        self.root.plain(pod["metadata"]["uid"].as_str().unwrap(), plugin, name)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(agent) = &self.agent {
            agent.stop.cancel();
        }
        self.api_task.abort();
        for found in self.runtime.list().unwrap_or_default() {
            _ = self.runtime.signal(&found.id, 9);
            for _ in 0..1000 {
                if !matches!(self.runtime.state(&found.id), State::Running { .. }) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let table = Linux::new().mount_table().unwrap();
        let ours = |mount: &&wharf_linux::Mount| mount.mount_point.starts_with(self.root.path());
        for mount in table.mounts().iter().rev().filter(ours) {
            _ = Linux::new().unmount(&mount.mount_point);
        }
    }
}

/// The id of a container in a pod's status.
fn container_id(id: &str) -> ContainerId {
    ContainerId::parse(id.strip_prefix("wharf://").unwrap()).unwrap()
}

fn cluster(api: &Api) -> Cluster {
    Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"))
}

/// The used part of an Event.
#[derive(serde::Deserialize)]
struct EventView {
    metadata: wharf_model::Meta,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl wharf_model::Kind for EventView {
    const API: wharf_model::ApiResource = wharf_model::Event::API;

    fn meta(&self) -> &wharf_model::Meta {
        &self.metadata
    }
}
