//! Upstream's scenarios, written anew: each row is named by the id that it has in upstream's tables, begins with claims
//! and volumes, and ends when nothing is left to do. Each is also interrupted after every write, and has to end the
//! same.

mod any;
mod bound;
mod by_name;
mod provision;
mod reclaim;
mod world;

use super::super::write::{Part, Write};
use super::*;
