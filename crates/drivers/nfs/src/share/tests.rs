//! Tests of volumes on a plain directory.

mod bugs;
mod crashes;
mod faults;
mod races;
mod support;
mod volumes;
