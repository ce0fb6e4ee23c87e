//! The driver SDK: small [backend] traits in, complete CSI services out.
//!
//! # Where to begin
//!
//! A driver is made of what its storage can do. Two traits are enough for one that provisions volumes and
//! mounts them: [`Volumes`](backend::Volumes) (which volumes there are), and either
//! [`Devices`](backend::Devices) (a volume is a block device on this node: iSCSI, a cloud disk, a loop device)
//! or [`Shares`](backend::Shares) (a volume is something to mount: an NFS export, a directory, a tmpfs). Each
//! further trait is one more capability: [`Snapshots`](backend::Snapshots),
//! [`Expansion`](backend::Expansion), [`Publishing`](backend::Publishing) and so on.
//!
//! This is a whole driver, of directories beneath `/srv`:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use wharf_driver::backend::*;
//! use wharf_driver::{Driver, NodeInfo, ServeOptions};
//!
//! struct Directories;
//!
//! impl Directories {
//!     fn volume(id: &str) -> Option<Volume> {
//!         // An id is the caller's word: it must not lead out of /srv.
//!         let exists = !id.contains(['/', '.']) && Path::new("/srv").join(id).is_dir();
//!         exists.then(|| Volume { id: id.to_owned(), ..Volume::default() })
//!     }
//! }
//!
//! #[async_trait::async_trait]
//! impl Volumes for Directories {
//!     async fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError> {
//!         if wanted.name.contains(['/', '.']) || wanted.name.len() > 128 {
//!             return Err(CreateError::Invalid("name must be usable as that of a directory".into()));
//!         }
//!         // The same name again finds the same directory: a caller that asks twice gets one volume.
//!         let made = std::fs::create_dir_all(Path::new("/srv").join(&wanted.name));
//!         made.map_err(|error| BackendError::Internal(format!("/srv/{}: {error}", wanted.name)))?;
//!         Ok(Volume { id: wanted.name.clone(), ..Volume::default() })
//!     }
//!
//!     async fn delete(&self, id: &str, _: &Secrets) -> Result<(), DeleteError> {
//!         match Self::volume(id).map(|volume| std::fs::remove_dir(Path::new("/srv").join(volume.id))) {
//!             None | Some(Ok(())) => Ok(()),
//!             Some(Err(error)) => Err(DeleteError::InUse(format!("/srv/{id}: {error}; empty it first"))),
//!         }
//!     }
//!
//!     async fn get(&self, id: &str) -> Result<Option<Volume>, BackendError> {
//!         Ok(Self::volume(id))
//!     }
//!
//!     fn refuses(&self, _: Option<&Volume>, capability: &Capability) -> Option<String> {
//!         matches!(capability.access, VolumeAccess::Block).then(|| "directories are no devices".into())
//!     }
//!
//!     fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
//!         parameters.keys().next().map(|key| format!("there is no parameter {key:?}"))
//!     }
//! }
//!
//! #[async_trait::async_trait]
//! impl Shares for Directories {
//!     async fn source(&self, volume: &StageVolume) -> Result<MountSource, DeviceError> {
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
//!     .share_node(Arc::new(wharf_linux::Linux::new()), backend, node)
//!     .build();
//! let endpoint = "unix:///run/csi.sock".parse()?;
//! driver.serve(&endpoint, ServeOptions::default(), async {
//!     let _ = tokio::signal::ctrl_c().await;
//! }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/tmpfs.rs` is the same with sizes and a list of volumes, and passes csi-sanity.
//!
//! # What the SDK does
//!
//! It checks every request and answers malformed ones with the code that CSI names. It runs one operation a
//! volume at a time (a second one is ABORTED) and each to its end, whether or not the caller still waits. It
//! pages listings, logs requests without their secrets, counts them, answers Probe with the truth, serves
//! reflection, guards its socket, and stops gracefully. On the node it formats only what is proven to be
//! blank, checks, mounts, binds, grows, measures and unmounts, and reads what is mounted from the kernel, so
//! that a restart of the driver breaks no mount.
//!
//! # What is left to a backend
//!
//! Storage, and three promises: every operation can be repeated; an error says of which kind it is (see
//! [`backend`]); and what would leak if the process died half-way is written down first.

pub mod backend;
mod controller;
mod driver;
mod format;
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

pub use driver::{Driver, DriverBuilder, NameError, NodeInfo};
pub use identity::Ready;
pub use server::{ServeError, ServeOptions};
