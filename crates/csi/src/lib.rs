//! CSI 1.13, kubelet's plugin registration and the snapshot metadata API on the wire: types, [`Client`], socket, error classes; and the
//! pages that those who speak it show to probes and Prometheus.
//!
//! The types come from our own `.proto` files. Messages with secrets have a `Debug` that leaves them out.

mod authority;
mod class;
mod client;
mod deadline;
mod endpoint;
mod here;
mod pages;
mod redact;
mod socket;
mod watch;

pub use authority::AnyAuthority;
pub use class::{ErrorClass, Operation, classify, speaks_of_the_request};
pub use client::Client;
pub use deadline::Calls;
pub use endpoint::{Endpoint, EndpointError};
pub use here::Here;
pub use pages::{Page, PageListener, serve_pages};
pub use socket::{BindError, SocketFile, SocketIdentity, bind};
pub use watch::SocketWatch;

/// CSI: messages, clients and servers of all five services, alpha parts included.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/csi.v1.redacted.rs"));
}

/// Kubelet's plugin registration, v1.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod registration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}

/// What backup programs ask about snapshots' blocks, in Kubernetes' own words.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod snapshotmetadata {
    include!(concat!(env!("OUT_DIR"), "/snapshotmetadata.rs"));
    include!(concat!(env!("OUT_DIR"), "/snapshotmetadata.redacted.rs"));
}

/// The compiled descriptors of CSI and plugin registration, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
