//! Tests of the fake's interfaces: the HTTP API, and the block devices that it attaches to this machine.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "fake/client.rs"]
mod client;
#[path = "fake/devices.rs"]
mod devices;
#[path = "fake/over_http.rs"]
mod over_http;
