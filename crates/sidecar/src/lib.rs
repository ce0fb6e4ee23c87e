//! Everything between a CSI driver and Kubernetes, in one process; start reading at [`process`].
//!
//! On a node the [`registrar`] makes the driver known to kubelet, and [`liveness`] says whether it answers. For
//! the cluster, the [`controller`] runs the [`provisioner`], the [`attacher`], the [`resizer`], the
//! [`snapshotter`] and the [`health_monitor`], and for all drivers the [`snapshot_controller`]. Beside a driver,
//! [`snapshot_metadata`] serves its changed blocks to backup programs.

pub mod attacher;
mod attempts;
pub mod board;
mod capability;
mod context;
pub mod controller;
pub mod driver;
mod finalizer;
pub mod health_monitor;
pub mod liveness;
mod metrics;
pub mod process;
pub mod provisioner;
pub mod registrar;
pub mod resizer;
mod secret;
pub mod snapshot_controller;
pub mod snapshot_metadata;
pub mod snapshotter;

pub use wharf_cluster::work::Pace;
