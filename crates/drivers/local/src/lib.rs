//! The local driver: volumes are image files in a pool directory, attached through loop devices.
//!
//! [`Pool`] is the storage. It is synchronous, performs every side effect through [`wharf_linux::Kernel`], and
//! keeps its decisions in separate pure functions. [`LocalBackend`] implements the SDK's traits on top of it,
//! and [`driver`] builds a driver from that.

use std::sync::Arc;

use wharf_driver::{Driver, DriverNameError, NodeInfo};
use wharf_linux::Kernel;

mod backend;
mod capacity;
mod config;
pub mod disk;
mod extents;
mod fault;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod ids;
mod index;
mod locks;
mod parameters;
mod plan;
mod pool;
mod record;
mod size;
mod store;

pub use backend::LocalBackend;
pub use config::{Config, ConfigError};
pub use pool::{
    Finding, GroupEntry, Inspection, Maintenance, OpenError, Pool, PoolContents, PoolCore, PoolEntry,
    PurgedPath, Severity, SnapshotEntry, VolumeEntry,
};
pub use record::Provisioning;

/// The driver's name.
pub const DRIVER_NAME: &str = "local.csi.wharf.dev";

/// Topology key; its value is the node that holds the pool.
pub const TOPOLOGY_KEY: &str = "local.csi.wharf.dev/node";

/// Opens the pool and builds the driver that serves it.
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

/// Why the driver could not be built.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The pool could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The SDK rejected the driver name.
    #[error(transparent)]
    Name(#[from] DriverNameError),
}
