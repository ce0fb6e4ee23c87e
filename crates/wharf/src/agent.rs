//! The node's half: its parts, joined. `wharf up` has it in it; `wharf node` runs it on a cluster, in place of a kubelet.

mod departures;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, ConnectOptions, Events};
use wharf_linux::Linux;
use wharf_node::machine::{self, Health};
use wharf_node::paths::Root;
use wharf_node::plugins::{self, Plugins};
use wharf_node::pods::{self, Agent};
use wharf_node::runtime::{self, Runtime};
use wharf_node::volumes::{self, Volumes};
use wharf_sidecar::board::Board;

use crate::pages;
use crate::sidecar::Environment;
use crate::signal::stop_signal;
use departures::Departure;

const EXPLANATION: &str = "\
In place of kubelet, for machines whose pods may be processes of the machine itself: it registers the node, serves drivers
that register in ROOT/plugins_registry, mounts volumes with kubelet's paths and runs pods. Images are not pulled.

  wharf node --node-name worker-1 --kubeconfig worker-1.conf

It needs no more than a node's own credentials (user system:node:NAME, group system:nodes) and lives on a node's rights
whatever it is given: what pods use is read by name when it is needed, and looked at again once a minute.

`kubectl logs` and `kubectl exec` need `wharf up`, where the API server is in the same process.";

/// Run pods of this node, in place of kubelet
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct NodeArgs {
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The node's name [default: the host's name]
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Directory of pods, volumes and drivers' sockets
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Directory of logs
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    log_dir: PathBuf,
    /// Directory in which a driver keeps volumes: pods see it empty; may be repeated
    #[arg(long, value_name = "DIR", value_parser = hidden_place)]
    hide: Vec<PathBuf>,
    /// Serve metrics at this address, such as 127.0.0.1:10255
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Do these things as kubelet does them, and not better
    #[arg(long, value_name = "THINGS", value_enum, value_delimiter = ',')]
    as_upstream: Vec<Departure>,
}

/// What a node's agent is made of.
pub(crate) struct Node {
    /// The API, with a node's rights.
    pub(crate) cluster: Cluster,
    /// The API under a name that may watch what a node may not; what it tells is otherwise seen at the next look.
    pub(crate) wide: Option<Cluster>,
    /// Its name.
    pub(crate) name: String,
    /// Where pods, volumes and drivers' sockets are.
    pub(crate) root: PathBuf,
    /// Containers.
    pub(crate) runtime: Runtime,
    /// Where pods find the API server.
    pub(crate) server: Option<(String, u16)>,
    /// Nobody else looks after nodes that are not ready.
    pub(crate) alone: bool,
    /// What is done as kubelet does it, and not better.
    pub(crate) as_upstream: Vec<Departure>,
}

impl Node {
    /// Its parts, each until the stop. What it counts is on the board.
    pub(crate) fn start(self, gate: &Gate, board: &Board, mut part: impl FnMut(&'static str, Part)) {
        let Self { cluster, wide, name, root, runtime, server, alone, as_upstream } = self;
        let (root, plugins, health) = (Root::new(root), Plugins::new(), Health::new());
        let events = Events::start(&cluster, pods::COMPONENT, name.as_str());
        // Pods share the machine's network, and so its address.
        let address = machine::own_address();
        let settings = machine::Settings {
            address: Some(address),
            register_again: alone,
            taints: alone,
            ..machine::Settings::new(name.as_str(), root.path())
        };
        let node = machine::run(cluster.clone(), wide.clone(), gate.clone(), health.clone(), settings);
        let mut of_plugins = plugins::Settings::new(name.as_str(), root.registry());
        let mut of_volumes = volumes::Settings { hidden: runtime.hidden(), ..volumes::Settings::default() };
        departures::revert(&as_upstream, &mut of_plugins, &mut of_volumes);
        // First, so that the node is not ready before its drivers can be.
        let (own, wider) = (cluster.clone(), wide.clone());
        let running = plugins::run(plugins.clone(), own, wider, gate.clone(), health, of_plugins);
        part("the plugin manager", Box::pin(running));
        part("the node", Box::pin(node));
        let parts = volumes::Parts {
            cluster: cluster.clone(),
            wide: wide.clone(),
            events: events.clone(),
            plugins,
            kernel: Arc::new(Linux::new()),
            root: root.clone(),
            node: name.clone(),
        };
        let volumes = Volumes::new(parts, of_volumes);
        let (counted, tried) = (volumes.clone(), volumes.clone());
        board.show_with_attempts("node", move || counted.metrics(), move || tried.attempts());
        part("the volume manager", Box::pin(volumes::run(volumes.clone(), gate.clone())));
        let agent = Agent {
            cluster,
            wide,
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
        part("pods", Box::pin(pods::run(agent)));
    }
}

/// A part of it.
pub(crate) type Part = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Containers, whose state is in `directory` and who see nothing of `hidden`.
pub(crate) fn containers(directory: PathBuf, logs: PathBuf, hidden: Vec<PathBuf>) -> anyhow::Result<Runtime> {
    // This very program, also when another version is installed in its place meanwhile.
    let settings = runtime::Settings { hidden, ..runtime::Settings::new("/proc/self/exe", directory, logs) };
    Ok(Runtime::open(settings)?)
}

/// A place of the host that no container is to see. It has to be there: a name with a mistake in it would hide nothing.
pub(crate) fn hidden_place(name: &str) -> Result<PathBuf, String> {
    let place = Path::new(name).canonicalize();
    let place = place.map_err(|error| format!("{error}: correct the name, or make the directory first"))?;
    if place == Path::new("/") {
        return Err("pods would see nothing at all: name the directory that has the volumes".to_owned());
    }
    Ok(place)
}

pub(crate) async fn run(args: NodeArgs) -> anyhow::Result<()> {
    let NodeArgs { kubeconfig, node_name, root_dir, log_dir, mut hide, metrics, as_upstream } = args;
    let stopped = stop_signal()?;
    let name = node_name.or(Environment::read().host_name).context("name the node with --node-name")?;
    let cluster = Cluster::connect(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?;
    hide.push(root_dir.clone());
    let runtime = containers(root_dir.join("containers"), log_dir, hide)?;
    let node = Node {
        cluster,
        wide: None,
        name: name.to_ascii_lowercase(),
        root: root_dir,
        runtime,
        server: None,
        alone: false,
        as_upstream,
    };
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    let board = Board::default();
    let serving = pages::serve(board.clone(), metrics).await?;
    node.start(&Gate::new(None, stop.clone()), &board, |name, part| {
        running.spawn(async move {
            part.await;
            name
        });
    });
    let ended = tokio::select! {
        () = stopped => None,
        () = serving => None,
        ended = running.join_next() => ended,
    };
    stop.cancel();
    while running.join_next().await.is_some() {}
    match ended {
        None => Ok(()),
        Some(part) => anyhow::bail!("{} has ended by itself", part?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let (state, link) = (dir.path().join("state"), dir.path().join("link"));
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::symlink(&state, &link).unwrap();
        let hidden = |path: &Path| hidden_place(path.to_str().unwrap());
        assert_eq!(hidden(&link).unwrap(), state.canonicalize().unwrap());
        for (path, way_out) in [
            (dir.path().join("stat"), "correct the name"),
            (PathBuf::new(), "correct the name"),
            (PathBuf::from("/"), "name the directory"),
            (PathBuf::from("/usr/.."), "name the directory"),
        ] {
            let error = hidden(&path).unwrap_err();
            assert!(error.contains(way_out), "{}: {error}", path.display());
        }
    }
}
