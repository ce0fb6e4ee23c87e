//! The fake from the outside: over HTTP, and as devices on this machine.

#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the response

#[path = "fake/client.rs"]
mod client;
#[path = "fake/devices.rs"]
mod devices;
#[path = "fake/over_http.rs"]
mod over_http;
