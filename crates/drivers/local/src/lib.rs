//! The local driver: volumes are image files in a pool directory, attached through loop devices.
//!
//! [`Pool`] is the storage. It is synchronous, performs every side effect through [`wharf_linux::Kernel`], and
//! keeps its decisions in separate pure functions. [`LocalBackend`] implements the SDK's traits on top of it,
//! and [`driver`] builds a driver from that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wharf_driver::{Driver, DriverBuilder, DriverNameError, NodeInfo};
use wharf_linux::Kernel;

mod account;
mod backend;
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
    let mut driver = with_gauges(Driver::new(DRIVER_NAME, env!("CARGO_PKG_VERSION"))?, &pool)
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

/// Adds the pool's account to the metrics. While the account cannot be read, a gauge keeps its last value.
fn with_gauges(driver: DriverBuilder, pool: &Arc<Pool>) -> DriverBuilder {
    type Read = fn(&account::Account) -> u128;
    let gauges: [(&str, &str, Read); 8] = [
        ("size", "Size of the pool's file system", |account| account.size.into()),
        ("used", "Used bytes of the pool's file system", |account| account.used.into()),
        ("allocated", "Bytes allocated to images; shared blocks count in each", |account| {
            account.allocated.into()
        }),
        ("promised", "Sizes of all volumes", |account| account.promised),
        ("outstanding", "Bytes that the volumes can still take", |account| account.outstanding),
        (
            "reserved_for_snapshots",
            "Part of the outstanding bytes that is needed because blocks are shared",
            |account| account.reserved_for_snapshots,
        ),
        ("reserved_for_records", "Bytes that are never promised", |account| {
            account.reserved_for_records.into()
        }),
        ("unpromised", "Bytes that new thin volumes can get", |account| account.thin.into()),
    ];
    gauges.into_iter().fold(driver, |driver, (name, help, of)| {
        let (pool, last) = (Arc::clone(pool), AtomicU64::default());
        let read = move || {
            match pool.recent_account() {
                Ok(account) => last.store(u64::try_from(of(&account)).unwrap_or(u64::MAX), Ordering::Relaxed),
                Err(error) => tracing::warn!(gauge = name, %error, "failed to read the account of the pool"),
            }
            last.load(Ordering::Relaxed)
        };
        driver.gauge(&format!("wharf_local_pool_{name}_bytes"), help, Arc::new(read))
    })
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
