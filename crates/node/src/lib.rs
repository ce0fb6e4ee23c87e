//! The node side of storage: kubelet's volume handling, and pods that run as host processes.
//!
//! - [`plugins`]: driver registration; publishes each driver's node info to Node and CSINode.
//! - [`volumes`]: stages, publishes, unpublishes and unstages volumes of pods, with kubelet's paths on disk.
//! - [`pods`]: a pod's lifecycle on this node, from admission to the removal of its last file.
//! - [`machine`]: registers the Node object and reports its status.
//!
//! Containers are in the crate `wharf_container`; pods depend on its trait `Containers`.

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod machine;
pub mod paths;
pub mod plugins;
pub mod pods;
pub mod volumes;
