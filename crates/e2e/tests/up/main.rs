//! `wharf up` as a process on the real kernel, with kills and with the loss of its driver, disk, records and
//! mounts. In every case: pods run or are gone, their data is what they wrote, nothing is mounted that should not
//! be, no volume is attached twice, and nothing is left after everything is deleted.
//!
//! Each test has a simulated machine ([`machine::Machine`]): mount and PID namespaces, a data directory, a port.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod absence;
mod addresses;
mod disk;
mod draining;
mod examples;
mod expansion;
mod isolation;
mod kills;
mod kubectl;
mod machine;
mod namespaces;
mod objects;
mod panics;
mod plugin;
mod reboot;
mod records;
mod scripted;
mod stopping;
mod watches;
