//! Upstream's sidecars and ours, each in turn on the same scripted driver and a real API server: what is left at the end,
//! the events and the calls must be the same, but for a short list of differences.
//!
//! [`load`] reads scenarios, which are data; [`Ground`] runs one by one side; [`Comparison`] says how the two sides
//! differ, and [`Allowed`] which differences are as they should be.

mod all;
mod allowed;
mod controller;
mod ground;
mod normal;
mod outcome;
mod place;
mod scenario;
mod within;

pub use all::{Outcomes, differing_alone, run_all};
pub use allowed::{Allowed, Class, allowed};
pub use controller::Controller;
pub use ground::{Ground, Side};
pub use outcome::{Comparison, Outcome};
pub use place::Place;
pub use scenario::{Scenario, load};
