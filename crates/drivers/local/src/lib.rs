//! The local pool: volumes as images in a directory, attached through loop devices.
//!
//! [`Pool`] is the storage: synchronous, every effect through [`wharf_linux::Kernel`], every decision a pure
//! function beside it. [`LocalBackend`] puts it behind the SDK's traits, and [`driver`] makes a driver of that.

use std::sync::Arc;

use wharf_driver::{Driver, NameError, NodeInfo};
use wharf_linux::Kernel;

mod backend;
mod capacity;
mod claims;
mod config;
pub mod disk;
mod extents;
mod fault;
mod ids;
mod index;
mod parameters;
mod plan;
mod pool;
mod record;
mod size;
mod store;

pub use backend::LocalBackend;
pub use config::{Config, ConfigError};
pub use pool::{
    Contents, Core, Finding, GroupEntry, Inspection, Maintenance, OpenError, Pool, PoolEntry, Purged,
    Severity, SnapshotEntry, VolumeEntry,
};
pub use record::Provisioning;

/// The driver's name.
pub const DRIVER_NAME: &str = "local.csi.wharf.dev";

/// The topology key whose value is the node that a pool is on.
pub const TOPOLOGY_KEY: &str = "local.csi.wharf.dev/node";

/// Opens the pool and makes the driver that serves it.
pub fn driver(kernel: Arc<dyn Kernel>, config: Config) -> Result<Driver, DriverError> {
    let info = NodeInfo { node_id: config.node_id.clone(), max_volumes: config.max_volumes };
    let topology = plan::topology_of(&config.node_id);
    let attach = config.attach;
    let pool = Arc::new(Pool::open(Arc::clone(&kernel), config)?);
    let backend = Arc::new(LocalBackend::new(Arc::clone(&pool)));
    let mut driver = Driver::new(DRIVER_NAME, env!("CARGO_PKG_VERSION"))?
        .volumes(backend.clone())
        .listing(backend.clone())
        .capacity(backend.clone())
        .expansion(backend.clone())
        .snapshots(backend.clone())
        .clones(backend.clone())
        .group_snapshots(backend.clone())
        .changed_blocks(backend.clone())
        .health(backend.clone())
        .topology(topology)
        .ready(Arc::new(move || pool.ready()));
    if attach {
        driver = driver.publishing(backend.clone());
    }
    Ok(driver.block_node(kernel, backend, info).build())
}

/// Why there is no driver.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The pool was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The SDK does not accept the name.
    #[error(transparent)]
    Name(#[from] NameError),
}
