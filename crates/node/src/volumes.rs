//! Volumes of pods on this node.
