//! The processes of the cluster, each of which may be killed and restarted at any moment: Kubernetes' controllers,
//! the sidecar, and an agent on each node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::rest::Api;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder};
use wharf_controllers::{Context, attach_detach, binder, ephemeral, expand, protection, scheduler};
use wharf_node::volumes::Settings;
use wharf_sidecar::controller::{self, Config, Role};

use crate::api::{self, ProcessRun};
use crate::driver::{Driver, DriverState};
use crate::kernel::SimKernel;
use crate::kubelet;
use crate::planted::{self, Bug};
use crate::sim::Sim;

/// The running processes.
pub(crate) struct Processes {
    sim: Arc<Sim>,
    api: Api,
    driver_state: Arc<Mutex<DriverState>>,
    /// Kernels outlive their agents.
    kernels: BTreeMap<&'static str, Arc<SimKernel>>,
    running: BTreeMap<&'static str, (Arc<ProcessRun>, JoinHandle<()>)>,
}

impl Processes {
    pub(crate) fn new(sim: &Arc<Sim>, api: &Api, driver_state: &Arc<Mutex<DriverState>>) -> Self {
        let kernels = sim.nodes.iter().map(|node| (*node, SimKernel::new(node, driver_state))).collect();
        let (sim, driver_state) = (Arc::clone(sim), Arc::clone(driver_state));
        Self { sim, api: api.clone(), driver_state, kernels, running: BTreeMap::new() }
    }

    /// The names of all processes.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        ["controllers", "sidecar"].into_iter().chain(self.kernels.keys().copied()).collect()
    }

    /// Starts all processes that are not running.
    pub(crate) fn start_all(&mut self) {
        self.names().into_iter().for_each(|name| self.start(name));
    }

    pub(crate) fn start(&mut self, name: &'static str) {
        if self.running.contains_key(name) {
            return;
        }
        self.sim.note(format_args!("{name} starts"));
        let process_run = ProcessRun::new(name);
        let cluster = api::cluster(&self.sim, &self.api, &process_run);
        let driver = Driver::new(
            &self.sim,
            &self.driver_state,
            &process_run,
            if name.starts_with('n') { name } else { "" },
        );
        let task = match name {
            "controllers" => tokio::spawn(controllers(cluster, Arc::clone(&self.sim))),
            // Slim views, as in the program: a rule that reads a detail that they lack fails here.
            "sidecar" => tokio::spawn(sidecar(cluster.with_slim_views(), driver, Arc::clone(&self.sim))),
            node => {
                let find_staged = !self.sim.has(Bug::StagedVolumesNotFound);
                let settings = Settings { recover_staged: find_staged, ..Settings::default() };
                let kernel = Arc::clone(&self.kernels[node]);
                tokio::spawn(kubelet::run(cluster, driver.client(), kernel, node.to_owned(), settings))
            }
        };
        self.running.insert(name, (process_run, task));
    }

    /// Kills a process, as with SIGKILL.
    pub(crate) async fn kill(&mut self, name: &'static str) {
        let Some((process_run, task)) = self.running.remove(name) else { return };
        self.sim.note(format_args!("{name} killed"));
        process_run.end();
        task.abort();
        let _ = task.await;
    }

    /// The remaining files of all nodes.
    pub(crate) fn files(&self) -> Vec<String> {
        let all = self.kernels.values().flat_map(|kernel| kernel.files());
        all.map(|path| path.display().to_string()).collect()
    }
}

async fn controllers(cluster: Cluster, sim: Arc<Sim>) {
    let gate = Gate::new(None, CancellationToken::new());
    let with = |component: &str| Context {
        events: EventRecorder::start(&cluster, component, "sim"),
        cluster: cluster.clone(),
        gate: gate.clone(),
    };
    let mut running = JoinSet::new();
    running.spawn(binder::run(with(binder::COMPONENT), binder::Settings::default()));
    let attach = with(attach_detach::COMPONENT);
    let counted = attach_detach::Metrics::default();
    let settings = attach_detach::Settings {
        uncertain_blocks: !sim.has(Bug::UncertainAttachmentIgnored),
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
        roles: Some([Role::Provisioner, Role::Attacher, Role::Resizer].into()),
        namespace: Some("kube-system".to_owned()),
        ..Config::new("sim".to_owned())
    };
    let client = driver.client();
    let deletes = async {
        if sim.has(Bug::DeleteWhileAttached) {
            planted::delete_released_volumes(cluster.clone(), client.clone()).await;
        }
    };
    tokio::join!(
        controller::run_in_process(cluster.clone(), config, client.clone(), CancellationToken::new()),
        deletes
    );
}
