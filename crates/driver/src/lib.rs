//! The driver SDK: small [backend] traits in, complete CSI services out.
//!
//! Start with [`backend`], what an author implements.

pub mod backend;
mod driver;
mod format;
mod locks;
mod node;
mod status;
mod validate;

pub use driver::NodeInfo;
