//! CSI 1.13, kubelet plugin registration and the snapshot metadata API on the wire: generated types, [`Client`],
//! socket handling and error classes; and the HTTP pages that drivers and sidecars serve to probes and Prometheus.
//!
//! The types are generated from the `.proto` files in this crate. Messages with secrets have a `Debug` that redacts
//! them. Start reading at [`Client`] (the caller's side) and [`bind`] (the server's side). To write a CSI driver, use the
//! crate `wharf-driver`, which builds on this one.
//!
//! # Examples
//!
//! Ask a driver for its name. The client connects on the first call, and again after the driver was restarted:
//!
//! ```no_run
//! # async fn name() -> Result<String, Box<dyn std::error::Error>> {
//! use wharf_csi::{Client, Endpoint, v1};
//!
//! let endpoint: Endpoint = "unix:///run/csi.sock".parse()?;
//! let info = Client::new(&endpoint).identity().get_plugin_info(v1::GetPluginInfoRequest {}).await?;
//! # Ok(info.into_inner().name)
//! # }
//! ```
//!
//! Secrets do not appear in logs:
//!
//! ```
//! use wharf_csi::v1::DeleteVolumeRequest;
//!
//! let secrets = [("token".to_owned(), "hunter2".to_owned())].into();
//! let request = DeleteVolumeRequest { volume_id: "vol-1".into(), secrets };
//! assert!(!format!("{request:?}").contains("hunter2"));
//! ```

mod authority;
mod capability;
mod class;
mod client;
mod deadline;
mod endpoint;
mod go_text;
mod in_process;
mod pages;
mod redact;
mod socket;
mod watch;

pub use authority::AnyAuthority;
pub use capability::volume_capability;
pub use class::{ErrorClass, Operation, classify, is_request_error};
pub use client::Client;
pub use deadline::DeadlineChannel;
pub use endpoint::{Endpoint, EndpointError};
pub use go_text::{go_code_name, go_error_text};
pub use in_process::InProcessService;
pub use pages::{HttpPage, PageListener, serve_pages};
pub use socket::{BindError, SocketFile, SocketIdentity, bind};
pub use watch::SocketWatch;

/// CSI: messages, clients and servers of all five services, including alpha fields.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/csi.v1.redacted.rs"));
}

/// The kubelet plugin registration API, v1.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod registration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}

/// The Kubernetes SnapshotMetadata API, which backup programs call to read a snapshot's allocated and changed blocks.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod snapshotmetadata {
    include!(concat!(env!("OUT_DIR"), "/snapshotmetadata.rs"));
    include!(concat!(env!("OUT_DIR"), "/snapshotmetadata.redacted.rs"));
}

/// The compiled descriptors of CSI and plugin registration, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
