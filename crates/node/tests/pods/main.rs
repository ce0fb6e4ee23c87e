//! Runs pods on the real kernel with the embedded API server, the volume manager and the container runtime. Needs root.

// Clippy's exception for tests does not cover test helpers.
#![allow(clippy::unwrap_used)]

mod fake_runtime;
mod files;
mod harness;
mod lifecycle;
mod restart;
