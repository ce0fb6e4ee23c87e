//! Worker processes and the driver as a process, without a kernel NFS client: directories instead of exports, and programs that
//! hang instead of servers that do not answer.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod driver;
mod logs;
mod publish;
mod support;
mod workers;
