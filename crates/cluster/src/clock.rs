//! The clocks, which a simulation can replace.

pub use wharf_model::system::{monotonic, now};
