//! Containers on the real kernel: needs root. One file for each thing that a container promises.

// Helpers of tests are tests: clippy's exception for tests does not see that.
#![allow(clippy::unwrap_used)]

mod crash;
mod exec;
mod home;
mod isolation;
mod life;
mod logs;
mod volumes;
