//! The client against the fake API: every response, every limit, every way in which a connection ends.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod attaching;
mod down;
mod errors;
mod killed;
mod limits;
mod listing;
mod machine;
mod polling;
mod queueing;
mod resets;
mod support;
mod token;
