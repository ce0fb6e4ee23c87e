//! The driver SDK: implement small [backend] traits, and get complete CSI services.
//!
//! # Getting started
//!
//! A driver consists of one trait for each feature of its storage. Two traits are enough to provision and mount volumes:
//! [`Volumes`](backend::Volumes) (create, delete and get volumes), and either [`Devices`](backend::Devices) (a volume is a
//! block device on this node: iSCSI, a cloud disk, a loop device) or [`Shares`](backend::Shares) (a volume is something to
//! mount: a directory, a tmpfs, a network share; [`TargetMounts`](backend::TargetMounts) if file operations on it can block
//! without end). Each further trait adds one capability:
//! [`Snapshots`](backend::Snapshots), [`Expansion`](backend::Expansion), [`Publishing`](backend::Publishing) and so on.
//!
//! This is a complete driver that provisions directories beneath `/srv`:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use wharf_driver::backend::*;
//! use wharf_driver::{Driver, Linux, NodeInfo, ServeOptions, async_trait};
//!
//! struct Directories;
//!
//! impl Directories {
//!     /// IDs come from the caller and become file names.
//!     fn is_id(id: &str) -> bool {
//!         id.len() <= 128 && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
//!     }
//!
//!     fn volume(id: &str) -> Option<Volume> {
//!         let exists = Self::is_id(id) && Path::new("/srv").join(id).is_dir();
//!         exists.then(|| Volume { id: id.to_owned(), ..Volume::default() })
//!     }
//! }
//!
//! #[async_trait]
//! impl Volumes for Directories {
//!     async fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError> {
//!         if !Self::is_id(&wanted.name) {
//!             return Err(CreateError::Invalid("name must have at most 128 letters, digits and -".into()));
//!         }
//!         // Idempotent: a second call with the same name finds the same directory.
//!         let made = std::fs::create_dir_all(Path::new("/srv").join(&wanted.name));
//!         made.map_err(|error| BackendError::Internal(format!("/srv/{}: {error}", wanted.name)))?;
//!         Ok(Volume { id: wanted.name.clone(), ..Volume::default() })
//!     }
//!
//!     async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
//!         let id = &request.id;
//!         match Self::volume(id).map(|volume| std::fs::remove_dir(Path::new("/srv").join(volume.id))) {
//!             None | Some(Ok(())) => Ok(()),
//!             Some(Err(error)) => Err(DeleteError::InUse(format!("/srv/{id}: {error}; empty it first"))),
//!         }
//!     }
//!
//!     async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError> {
//!         Ok(Self::volume(&request.id))
//!     }
//!
//!     fn refuses(&self, _: Option<&Volume>, capability: &Capability) -> Option<String> {
//!         matches!(capability.access, VolumeAccess::Block).then(|| "block access is not supported".into())
//!     }
//!
//!     fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
//!         parameters.keys().next().map(|key| format!("unknown parameter {key:?}"))
//!     }
//! }
//!
//! #[async_trait]
//! impl Shares for Directories {
//!     async fn source(&self, volume: &NodeVolume) -> Result<MountSource, DeviceError> {
//!         let found = Self::volume(&volume.id).ok_or_else(|| DeviceError::NotFound(volume.id.clone()))?;
//!         Ok(MountSource { source: format!("/srv/{}", found.id), fs_type: String::new(), options: vec![] })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = Arc::new(Directories);
//! let node = NodeInfo { node_id: "n1".to_owned(), max_volumes: 0 };
//! let driver = Driver::new("directories.csi.example.com", "0.1.0")?
//!     .volumes(backend.clone())
//!     .share_node(Arc::new(Linux::new()), backend, node)
//!     .build();
//! let endpoint = "unix:///run/csi.sock".parse()?;
//! driver.serve(&endpoint, ServeOptions::default(), async {
//!     let _ = tokio::signal::ctrl_c().await;
//! }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! `driver-template/` in the repository is a similar driver, as a crate to copy: with sizes, ListVolumes, flags and a test.
//! `examples/tmpfs.rs` is a driver in one file. Both pass csi-sanity.
//!
//! # One crate
//!
//! A driver depends on this crate only (and on tokio, to run): [`csi`] and [`linux`] are the crates `wharf-csi` and
//! `wharf-linux`, and [`async_trait`](macro@async_trait) is the attribute that implementations of the traits need.
//!
//! - [`csi`]: CSI on the wire. Tests call a driver with [`csi::Client`].
//! - [`linux`]: mounts, devices, file systems and durable files behind the trait [`Kernel`]; [`Linux`] is the real one.
//!
//! # What the SDK does
//!
//! The SDK validates every request and rejects malformed ones with the code that CSI requires. It runs one operation per
//! volume at a time (a concurrent one is ABORTED), and runs each operation to its end even if the caller disconnects. It
//! pages lists, logs requests without their secrets, exports metrics, checks readiness on every Probe, serves gRPC
//! reflection, protects its socket and stops gracefully. On the node it formats a device only if it is proven to be
//! blank; it also checks, mounts, binds, grows and unmounts file systems and reports usage. It reads the state of mounts
//! from the kernel, so a restart of the driver breaks no mount.
//!
//! # What a backend must do
//!
//! A backend manages the storage and guarantees three things: every operation is idempotent; every error has the right
//! variant (see [`backend`]); and anything that would leak after a crash is recorded before it is created.

pub mod backend;
mod controller;
mod driver;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod identity;
mod locks;
mod metrics;
mod node;
mod observe;
mod paging;
mod server;
mod snapshot_metadata;
mod status;
mod validate;
mod wire;

pub use async_trait::async_trait;
pub use driver::{Driver, DriverBuilder, DriverNameError, NodeInfo};
pub use identity::ReadinessCheck;
pub use server::{ServeError, ServeOptions};
pub use wharf_csi::{self as csi, Endpoint, EndpointError};
pub use wharf_linux::{self as linux, Kernel, Linux};
