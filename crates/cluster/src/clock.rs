//! The wall clock, as rules see it.

pub use wharf_model::chance::now;
