//! The vocabulary and rules of Kubernetes storage: slim views of the objects we watch, and pure functions over
//! them. No I/O, no runtime, no clock but the one handed in.

mod kind;
mod meta;
mod time;

pub use kind::{Api, Kind, Scope};
pub use meta::{Key, Meta, OwnerRef};
pub use time::Time;
