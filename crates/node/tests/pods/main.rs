//! Pods on the real kernel, with the embedded API, the volume manager and the container runtime: needs root.

// Helpers of tests are tests: clippy's exception for tests does not see that.
#![allow(clippy::unwrap_used)]

mod files;
mod home;
mod kubectl;
mod life;
mod restart;
mod seam;
mod streams;
