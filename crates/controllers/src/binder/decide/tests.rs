//! Upstream's scenarios, reimplemented. A row has the id of upstream's table, starts with claims and volumes, and runs
//! until nothing is left to do. Each row is also interrupted after every write and has to end in the same state.

mod any;
mod bound;
mod by_name;
mod provision;
mod reclaim;
mod world;

use super::super::write::{Part, Write};
use super::*;
