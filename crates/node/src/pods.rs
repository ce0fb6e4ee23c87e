//! A pod's life on this node.
