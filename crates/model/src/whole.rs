//! Pods and nodes as those see them who place and run pods. The slim views, [`crate::Pod`] and [`crate::Node`], are for
//! those who only ask which claims are in use.

pub mod container;
pub mod node;
pub mod pod;

pub use node::Node;
pub use pod::Pod;
