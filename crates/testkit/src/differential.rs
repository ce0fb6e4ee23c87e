//! Runs the same scenarios with upstream's sidecars and with ours, against the scripted driver and a real API server.
//! The remaining objects, the events and the CSI calls must be the same, except for a short list of allowed differences.
//!
//! [`load`] reads scenarios from data files, [`ScenarioRunner`] runs a scenario for one side, [`Comparison`] compares the
//! outcomes of both sides, and [`AllowedDifference`] describes an intended difference.

mod all;
mod allowed;
mod in_process;
mod normalize;
mod outcome;
mod runner;
mod scenario;
mod snapshot_controller;
mod target;

pub use all::{Outcomes, differing_after_rerun, run_all};
pub use allowed::{AllowedDifference, Class, parse_allowed};
pub use outcome::{Comparison, Outcome};
pub use runner::{ScenarioRunner, Side};
pub use scenario::{Scenario, load};
pub use snapshot_controller::SnapshotController;
pub use target::ApiTarget;
