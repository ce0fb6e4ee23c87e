//! Places pods on nodes.
