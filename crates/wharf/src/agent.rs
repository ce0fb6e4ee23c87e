//! The node agent: assembles plugin manager, node status, volume manager and pods. `wharf up` embeds it; `wharf node` runs
//! it on a cluster in place of kubelet. Start reading at [`NodeAgent::start`].

mod credentials;
mod departures;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::{Gate, restart};
use wharf_cluster::{Cluster, ConnectOptions, EventRecorder};
use wharf_container::{Runtime, Settings};
use wharf_linux::Linux;
use wharf_model::panics::catch;
use wharf_node::machine::{self, Health};
use wharf_node::paths::Root;
use wharf_node::plugins::{self, Plugins};
use wharf_node::pods::{self, Agent};
use wharf_node::volumes::{self, Volumes};
use wharf_sidecar::health_registry::HealthRegistry;
use wharf_upstream_flags::Environment;

use crate::signal::stop_signal;
use crate::status_pages;
use departures::Departure;

const AFTER_HELP: &str = "\
Replaces kubelet on machines whose pods may run as processes of the machine. It registers the node, serves the CSI drivers \
that register in ROOT/plugins_registry, mounts volumes at kubelet's paths and runs pods. Images are not pulled: containers \
run the machine's own programs.

  wharf node --node-name worker-1 --kubeconfig worker-1.conf

A node's own credentials are enough (user system:node:NAME, group system:nodes). Even with broader credentials, the agent \
uses only a node's permissions: it reads the objects that its pods use by name, and again once a minute.

`kubectl logs` and `kubectl exec` need `wharf up`, where the API server runs in the same process.";

/// Run the pods of this node, in place of kubelet
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct NodeArgs {
    /// Kubeconfig file [default: the pod's service account, else KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of the Node object [default: the host name]
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Directory for pods, volumes and drivers' sockets
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Directory for container logs
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    log_dir: PathBuf,
    /// Directory in which a driver stores volumes; pods see it empty; may be repeated
    #[arg(long, value_name = "DIR", value_parser = hidden_dir)]
    hide: Vec<PathBuf>,
    /// Serve metrics at this address, such as 127.0.0.1:10255
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Deliberate differences from kubelet to turn off
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    as_upstream: Vec<Departure>,
}

/// The inputs of the node agent.
pub(crate) struct NodeAgent {
    /// API client with a node's permissions.
    pub(crate) cluster: Cluster,
    /// API client that may watch objects a node may not. Without it, the agent polls those objects.
    pub(crate) privileged_client: Option<Cluster>,
    /// Name of the Node object.
    pub(crate) name: String,
    /// Directory of pods, volumes and drivers' sockets.
    pub(crate) root: PathBuf,
    /// Container runtime.
    pub(crate) runtime: Runtime,
    /// Host and port of the API server, for pods.
    pub(crate) server: Option<(String, u16)>,
    /// The agent creates its Node again if it is deleted. Kubelet does so only when it restarts.
    pub(crate) recreate_node: bool,
    /// Deliberate differences from kubelet that are turned off.
    pub(crate) as_upstream: Vec<Departure>,
}

impl NodeAgent {
    /// Starts all components through `spawn`; each runs until the gate stops it. Registers their metrics.
    pub(crate) fn start(
        self,
        gate: &Gate,
        health_registry: &HealthRegistry,
        mut spawn: impl FnMut(&'static str, Component),
    ) {
        let Self { cluster, privileged_client, name, root, runtime, server, recreate_node, as_upstream } =
            self;
        let (root, plugins, health) = (Root::new(root), Plugins::new(), Health::new());
        let events = EventRecorder::start(&cluster, pods::COMPONENT, name.as_str());
        // Pods use the machine's network, and so its address.
        let address = machine::own_address();
        let settings = machine::Settings {
            address: Some(address),
            recreate_node,
            ..machine::Settings::new(name.as_str(), root.path())
        };
        let node = {
            let (cluster, gate, health) = (cluster.clone(), gate.clone(), health.clone());
            // It reads the Node again when it starts.
            async move {
                let run = || machine::run(cluster.clone(), gate.clone(), health.clone(), settings.clone());
                restart("node status", &settings.node, Some(&gate), run).await;
            }
        };
        let mut plugin_settings = plugins::Settings::new(name.as_str(), root.registry());
        let mut volume_settings =
            volumes::Settings { hidden: runtime.hidden(), ..volumes::Settings::default() };
        departures::revert(&as_upstream, &mut plugin_settings, &mut volume_settings);
        // Started first, so that the node does not become Ready before drivers can register.
        let (own, privileged) = (cluster.clone(), privileged_client.clone());
        let running = plugins::run(plugins.clone(), own, privileged, gate.clone(), health, plugin_settings);
        spawn("plugin manager", Box::pin(running));
        spawn("node status", Box::pin(node));
        let parts = volumes::VolumeManagerDeps {
            cluster: cluster.clone(),
            privileged_client: privileged_client.clone(),
            events: events.clone(),
            plugins,
            kernel: Arc::new(Linux::new()),
            root: root.clone(),
            node: name.clone(),
        };
        let volumes = Volumes::new(parts, volume_settings);
        let (stats, attempts) = (volumes.clone(), volumes.clone());
        health_registry.register_with_attempts("node", move || stats.metrics(), move || attempts.attempts());
        spawn("volume manager", Box::pin(volumes::run(volumes.clone(), gate.clone())));
        let agent = Agent {
            cluster,
            privileged_client,
            node: name,
            address: address.to_string(),
            server,
            events,
            volumes,
            runtime: Arc::new(runtime),
            root,
            settings: pods::Settings::default(),
            gate: gate.clone(),
        };
        spawn("pod manager", Box::pin(pods::run(agent)));
    }
}

/// A running component of the node agent.
pub(crate) type Component = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Opens the container runtime with its state in `directory`. Containers see the directories in `hidden` empty.
pub(crate) fn open_runtime(
    directory: PathBuf,
    logs: PathBuf,
    hidden: Vec<PathBuf>,
) -> anyhow::Result<Runtime> {
    // Its memory has the credentials of every component of this process, and secrets of pods.
    wharf_linux::sandbox::set_not_dumpable().context("failed to disable core dumps of the agent")?;
    // The running binary, even if another version has been installed in its place.
    let settings = Settings { hidden, ..Settings::new("/proc/self/exe", directory, logs) };
    Ok(Runtime::open(settings)?)
}

/// Parses `--hide`. The directory must exist: a misspelt name would hide nothing.
pub(crate) fn hidden_dir(name: &str) -> Result<PathBuf, String> {
    let dir = Path::new(name).canonicalize();
    let dir = dir.map_err(|error| format!("{error}: correct the name, or create the directory first"))?;
    if dir == Path::new("/") {
        return Err("pods would see nothing at all: name the directory that contains the volumes".to_owned());
    }
    Ok(dir)
}

pub(crate) async fn run(args: NodeArgs) -> anyhow::Result<()> {
    let NodeArgs { kubeconfig, node_name, root_dir, log_dir, mut hide, metrics, as_upstream } = args;
    let stopped = stop_signal()?;
    let name = node_name
        .or(Environment::read().host_name)
        .context("cannot determine the host name: set --node-name")?;
    let options = ConnectOptions { kubeconfig, ..ConnectOptions::default() };
    let cluster = Cluster::connect(&options).await?;
    hide.push(root_dir.clone());
    hide.extend(credentials::hidden_paths(options.kubeconfig.as_deref())?);
    let runtime = open_runtime(root_dir.join("containers"), log_dir, hide)?;
    let agent = NodeAgent {
        cluster,
        privileged_client: None,
        name: name.to_ascii_lowercase(),
        root: root_dir,
        runtime,
        server: None,
        recreate_node: false,
        as_upstream,
    };
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    let health_registry = HealthRegistry::default();
    let serving = status_pages::serve(health_registry.clone(), metrics).await?;
    agent.start(&Gate::new(None, stop.clone()), &health_registry, |name, component| {
        running.spawn(async move { (name, catch(name, "component", component).await) });
    });
    let result = tokio::select! {
        () = stopped => Ok(()),
        error = serving => Err(error),
        Some(ended) = running.join_next() => Err(match ended {
            Ok((name, Ok(()))) => anyhow::anyhow!("{name} exited unexpectedly"),
            Ok((name, Err(panic))) => anyhow::Error::from(panic).context(name),
            Err(error) => error.into(),
        }),
    };
    stop.cancel();
    while running.join_next().await.is_some() {}
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_existing_directories_below_root_can_be_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let (state, link) = (dir.path().join("state"), dir.path().join("link"));
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::symlink(&state, &link).unwrap();
        let hidden = |path: &Path| hidden_dir(path.to_str().unwrap());
        assert_eq!(hidden(&link).unwrap(), state.canonicalize().unwrap());
        for (path, remedy) in [
            (dir.path().join("stat"), "correct the name"),
            (PathBuf::new(), "correct the name"),
            (PathBuf::from("/"), "name the directory"),
            (PathBuf::from("/usr/.."), "name the directory"),
        ] {
            let error = hidden(&path).unwrap_err();
            assert!(error.contains(remedy), "{}: {error}", path.display());
        }
    }
}
