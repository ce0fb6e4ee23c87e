//! Builds the driver from its settings.

use std::future::Future;
use std::sync::Arc;

use wharf_driver::{Driver, DriverNameError, Endpoint, NodeInfo, ServeError, ServeOptions};

use crate::controller::{ClusterObjects, Controller, ControllerOptions};
use crate::node::{NodeMounts, NodeOptions};
use crate::server::Servers;
use crate::worker::{Exports, WorkerOptions, WorkerProgram, Workers};

/// IDs of csi-driver-nfs contain server, share and directory, so they can be longer than CSI's 128 bytes.
const MAX_ID: usize = 1024;

/// Settings of the driver.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name: that of the driver whose volumes it takes over.
    pub driver_name: String,
    /// Name of this node.
    pub node_id: String,
    /// Where the exports are.
    pub exports: Exports,
    /// The program of the workers.
    pub program: WorkerProgram,
    /// Deadlines of workers, and where they mount.
    pub workers: WorkerOptions,
    /// Settings of the controller service.
    pub controller: ControllerOptions,
    /// Settings of the node service.
    pub node: NodeOptions,
    /// Where the controller reads claims and PersistentVolumes, if it can.
    pub objects: Option<Arc<dyn ClusterObjects>>,
}

impl Config {
    /// The driver under its usual name on this node, with real servers and default settings.
    pub fn new(node_id: &str) -> Self {
        Self {
            driver_name: crate::DRIVER_NAME.to_owned(),
            node_id: node_id.to_owned(),
            exports: Exports::Servers(Arc::new(Servers::default())),
            program: WorkerProgram::default(),
            workers: WorkerOptions::default(),
            controller: ControllerOptions::default(),
            node: NodeOptions::default(),
            objects: None,
        }
    }
}

/// A driver with its workers.
pub struct NfsDriver {
    driver: Driver,
    workers: Workers,
    controller: Arc<Controller>,
}

/// Builds the driver: controller and node service in one process, as csi-driver-nfs.
pub fn driver(config: Config) -> Result<NfsDriver, DriverNameError> {
    let Config { driver_name, node_id, exports, program, workers, controller, node, objects } = config;
    let workers = Workers::new(program, exports, workers);
    let mounts = Arc::new(NodeMounts::new(workers.clone(), node));
    let controller = Arc::new(Controller::new(Arc::new(workers.clone()), objects, controller));
    let (blocked, lazy, unreachable) = (workers.clone(), mounts.clone(), workers.exports().clone());
    let deletions = controller.clone();
    let driver = Driver::new(&driver_name, env!("CARGO_PKG_VERSION"))?
        .max_id_length(MAX_ID)
        .volumes(controller.clone())
        .capacity(controller.clone())
        .expansion(controller.clone())
        .snapshots(controller.clone())
        .clones(controller.clone())
        .health(controller.clone())
        .target_node(mounts, NodeInfo { node_id, max_volumes: 0 })
        .gauge(
            "wharf_nfs_workers_blocked",
            "Worker processes that did not exit after SIGKILL",
            Arc::new(move || u64::try_from(blocked.blocked()).unwrap_or(u64::MAX)),
        )
        .gauge(
            "wharf_nfs_lazy_unmounts",
            "Mounts that were removed while their server did not answer, since the driver started",
            Arc::new(move || lazy.lazy_unmounts()),
        )
        .gauge(
            "wharf_nfs_deletes_without_record_total",
            "Deletions of volumes that have no record, so that nothing was deleted, since the driver started",
            Arc::new(move || deletions.deletes_without_record()),
        )
        .gauge(
            "wharf_nfs_servers_unreachable",
            "Servers that did not answer when they were last used",
            Arc::new(move || {
                let down = unreachable.servers().map_or(0, |servers| servers.unreachable().len());
                u64::try_from(down).unwrap_or(u64::MAX)
            }),
        )
        .build();
    Ok(NfsDriver { driver, workers, controller })
}

impl NfsDriver {
    /// The driver's workers.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Serves until `shutdown` completes. Then running calls get a moment to end; those that wait for a server fail, so that
    /// it cannot delay the shutdown.
    pub async fn serve(
        self,
        endpoint: &Endpoint,
        options: ServeOptions,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let workers = self.workers.clone();
        let stop = async move {
            shutdown.await;
            // Calls that fail now still have to be answered, so the server must go on for the moment.
            tokio::spawn(async move { workers.shutdown().await });
        };
        let controller = self.controller;
        let maintenance = tokio::spawn(async move { controller.maintain().await });
        let served = self.driver.serve(endpoint, options, stop).await;
        maintenance.abort();
        self.workers.shutdown().await;
        served
    }
}
