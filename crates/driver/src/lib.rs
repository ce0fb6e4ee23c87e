//! The driver SDK: small [backend] traits in, complete CSI services out.
//!
//! Start with [`backend`], what an author implements.

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
