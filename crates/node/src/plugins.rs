//! Drivers that have registered on this node.
