//! What the benchmarks share.

pub mod table;
