//! The client half against the double of the API: every answer, every limit, every way in which a connection ends.

mod attaching;
mod down;
mod errors;
mod limits;
mod listing;
mod machine;
mod polling;
mod queueing;
mod resets;
mod support;
mod token;
