//! The CSI sidecars in one process. Start reading at [`process`].
//!
//! On a node, the [`registrar`] registers the driver with kubelet and [`liveness`] reports whether the driver
//! responds. For the cluster, the [`controller`] runs the [`provisioner`], [`attacher`], [`resizer`],
//! [`snapshotter`] and [`health_monitor`] of one driver, and on request the snapshot controller of
//! `wharf_controllers`, which works for all drivers.
//! [`snapshot_metadata`] runs next to a driver and serves its changed blocks to backup programs.

pub mod attacher;
mod capability;
mod context;
pub mod controller;
mod doubt;
pub mod driver;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod health_monitor;
pub mod health_registry;
mod lease_label;
mod list_pages;
pub mod liveness;
mod metrics;
mod migration;
pub mod process;
pub mod provisioner;
pub mod registrar;
pub mod resizer;
mod secret;
pub mod snapshot_metadata;
pub mod snapshotter;
mod suspects;

pub use wharf_cluster::work::WorkerOptions;
