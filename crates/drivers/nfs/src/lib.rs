//! The NFS driver: a volume is a directory on an NFS export. It takes over the volumes of csi-driver-nfs.
//!
//! The driver process never touches a path on an NFS mount: a server that does not answer would block it. All file
//! operations run in worker processes with deadlines (see [`worker`]). Rules over handles, parameters, paths and mount
//! options are pure functions. `docs/design-nfs.md` describes the design.

pub mod agent;
pub mod archive;
pub mod controller;
pub mod copy;
mod driver;
pub mod handle;
pub mod mount;
pub mod node;
pub mod options;
pub mod parameters;
pub mod path;
#[cfg(test)]
mod properties;
pub mod server;
pub mod share;
pub mod template;
pub mod worker;

pub use driver::{Config, NfsDriver, driver};

/// The driver's default name: that of csi-driver-nfs.
pub const DRIVER_NAME: &str = "nfs.csi.k8s.io";
