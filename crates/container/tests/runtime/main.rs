//! Containers on the real kernel: needs root. One file for each aspect.

// Clippy's exception for tests does not cover test helpers.
#![allow(clippy::unwrap_used)]

mod crash;
mod exec;
mod harness;
mod isolation;
mod lifecycle;
mod logs;
mod volumes;
