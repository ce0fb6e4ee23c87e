//! The wall clock, which a simulation can replace.

pub use wharf_model::random::now;
