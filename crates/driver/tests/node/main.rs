//! The Node service on the real kernel: a driver on a unix socket, images on loop devices, real mounts. Needs root. Each
//! test has its own directory, and removes all its mounts and loop devices when it passes or fails.

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
