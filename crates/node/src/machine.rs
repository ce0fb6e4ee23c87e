//! The Node object of this machine.
