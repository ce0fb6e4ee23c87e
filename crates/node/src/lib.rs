//! The node's half of storage: what kubelet does for volumes, and pods as host processes.
//!
//! - [`plugins`]: drivers register themselves; what they say of the node goes to Node and CSINode.
//! - [`volumes`]: volumes of pods are staged and published, and taken down again, with kubelet's paths on disk.
//! - [`pods`]: a pod's life on this node, from the first look to the last file.
//! - [`containers`]: what pods ask of whatever runs their containers; [`runtime`]: containers as host processes.
//! - [`machine`]: the Node object: that it is there, and how it is.

pub mod containers;
mod hidden;
pub mod machine;
pub mod paths;
pub mod plugins;
pub mod pods;
pub mod runtime;
pub mod volumes;
