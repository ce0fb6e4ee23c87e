//! Tests of volumes on a plain directory.

mod bugs;
mod support;
mod volumes;
