//! The processes of the cluster, each of which may die at any moment and be started again: Kubernetes' controllers, the
//! sidecar, and an agent on each node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::rest::Api;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, ConnectOptions, Events};
use wharf_controllers::{Context, attach_detach, binder, ephemeral, expand, protection, scheduler};
use wharf_node::volumes::Settings;
use wharf_sidecar::controller::{self, Config, Role};
use wharf_sidecar::{attacher, health_monitor, provisioner, resizer, snapshot_controller, snapshotter};

use crate::api::{self, Life};
use crate::driver::{Driver, Truth};
use crate::kernel::Memory;
use crate::kubelet;
use crate::planted::{self, Bug};
use crate::sim::Sim;

/// What runs.
pub(crate) struct Processes {
    sim: Arc<Sim>,
    api: Api,
    truth: Arc<Mutex<Truth>>,
    /// Machines stay when agents die.
    machines: BTreeMap<&'static str, Arc<Memory>>,
    running: BTreeMap<&'static str, (Arc<Life>, JoinHandle<()>)>,
}

impl Processes {
    pub(crate) fn new(sim: &Arc<Sim>, api: &Api, truth: &Arc<Mutex<Truth>>) -> Self {
        let machines = sim.nodes.iter().map(|node| (*node, Memory::new(node, truth))).collect();
        let (sim, truth) = (Arc::clone(sim), Arc::clone(truth));
        Self { sim, api: api.clone(), truth, machines, running: BTreeMap::new() }
    }

    /// All there are.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        ["controllers", "sidecar"].into_iter().chain(self.machines.keys().copied()).collect()
    }

    /// Starts those that do not run.
    pub(crate) fn start_all(&mut self) {
        self.names().into_iter().for_each(|name| self.start(name));
    }

    pub(crate) fn start(&mut self, name: &'static str) {
        if self.running.contains_key(name) {
            return;
        }
        self.sim.note(format_args!("{name} starts"));
        let life = Life::new(name);
        let cluster = api::cluster(&self.sim, &self.api, &life);
        let driver =
            Driver::new(&self.sim, &self.truth, &life, if name.starts_with('n') { name } else { "" });
        let task = match name {
            "controllers" => tokio::spawn(controllers(cluster, Arc::clone(&self.sim))),
            "sidecar" => tokio::spawn(sidecar(cluster, driver, Arc::clone(&self.sim))),
            node => {
                let find_staged = !self.sim.has(Bug::ForgottenUnstage);
                let settings = Settings { find_staged, ..Settings::default() };
                let machine = Arc::clone(&self.machines[node]);
                tokio::spawn(kubelet::run(cluster, driver.client(), machine, node.to_owned(), settings))
            }
        };
        self.running.insert(name, (life, task));
    }

    /// kill -9.
    pub(crate) async fn kill(&mut self, name: &'static str) {
        let Some((life, task)) = self.running.remove(name) else { return };
        self.sim.note(format_args!("{name} dies"));
        life.end();
        task.abort();
        let _ = task.await;
    }

    /// What is left on nodes' disks.
    pub(crate) fn files(&self) -> Vec<String> {
        let all = self.machines.values().flat_map(|machine| machine.files());
        all.map(|path| path.display().to_string()).collect()
    }
}

async fn controllers(cluster: Cluster, sim: Arc<Sim>) {
    let gate = Gate::new(None, CancellationToken::new());
    let with = |component: &str| Context {
        events: Events::start(&cluster, component, "sim"),
        cluster: cluster.clone(),
        gate: gate.clone(),
    };
    let mut running = JoinSet::new();
    running.spawn(binder::run(with(binder::COMPONENT), binder::Settings::default()));
    let attach = with(attach_detach::COMPONENT);
    let counted = attach_detach::Metrics::default();
    let settings = attach_detach::Settings {
        uncertain_blocks: !sim.has(Bug::UncertainBlocksNobody),
        ..attach_detach::Settings::default()
    };
    running.spawn(attach_detach::run(attach, settings, counted));
    running.spawn(expand::run(with(expand::COMPONENT)));
    running.spawn(protection::run(with("protection")));
    running.spawn(ephemeral::run(with(ephemeral::COMPONENT)));
    running.spawn(scheduler::run(with(scheduler::COMPONENT), scheduler::Settings::default()));
    while running.join_next().await.is_some() {}
}

async fn sidecar(cluster: Cluster, driver: Driver, sim: Arc<Sim>) {
    let config = Config {
        connect: ConnectOptions::default(),
        roles: Some([Role::Provisioner, Role::Attacher, Role::Resizer].into()),
        identity: "sim".to_owned(),
        namespace: Some("kube-system".to_owned()),
        election: None,
        topology: true,
        node: None,
        provisioner: provisioner::Settings::default(),
        attacher: attacher::Settings::default(),
        resizer: resizer::Settings::default(),
        snapshotter: snapshotter::Settings::default(),
        health_monitor: health_monitor::Settings::default(),
        snapshot_controller: snapshot_controller::Settings::default(),
    };
    let client = driver.client();
    let deletes = async {
        if sim.has(Bug::DeleteAtOnce) {
            planted::delete_at_once(cluster.clone(), client.clone()).await;
        }
    };
    tokio::join!(
        controller::run_here(cluster.clone(), config, client.clone(), CancellationToken::new()),
        deletes
    );
}
