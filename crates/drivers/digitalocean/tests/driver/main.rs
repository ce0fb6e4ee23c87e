//! The driver whole, on a double of DigitalOcean whose actions take time and whose volumes are real devices, over its
//! socket as an orchestrator speaks to it. Needs root. Each test has a double and a directory of its own, and leaves
//! neither a mount nor a loop device, pass or fail.

#![allow(missing_docs, clippy::unwrap_used)]

mod codes;
mod crash;
mod faults;
mod life;
mod support;
mod takeover;
