//! The wall clock, which a simulation can replace.

pub use wharf_model::system::now;
