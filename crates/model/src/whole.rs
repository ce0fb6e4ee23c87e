//! Full views of pods and nodes, for components that schedule and run pods. The slim views, [`crate::Pod`] and
//! [`crate::Node`], are for components that only need to know which claims are in use.

pub mod container;
pub mod node;
pub mod pod;

pub use node::Node;
pub use pod::Pod;
