//! The complete driver over its socket, on a fake DigitalOcean whose actions take time and whose volumes are real
//! devices. Needs root. Each test has its own fake and directory, and leaves
//! neither a mount nor a loop device, pass or fail.

#![allow(missing_docs, clippy::unwrap_used)]

mod codes;
mod crash;
mod faults;
mod lifecycle;
mod support;
mod takeover;
