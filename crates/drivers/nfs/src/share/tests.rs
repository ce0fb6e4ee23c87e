//! Tests of volumes on a plain directory.

mod bugs;
mod crashes;
mod faults;
mod hazards;
mod interleaved;
mod quotas;
mod races;
mod sharing;
mod snapshot_crashes;
mod snapshots;
pub(crate) mod support;
mod volumes;
