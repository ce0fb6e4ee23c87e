//! The node half on the real kernel: a driver over a unix socket, images on loop devices, real mounts.
//! Needs root. Each test has its own directory, and leaves neither a mount nor a loop device, pass or fail.

#![allow(missing_docs, clippy::unwrap_used)]

mod expand;
mod format;
mod health;
mod images;
mod publish;
mod share;
mod stage;
mod support;
mod takeover;
