//! `wharf up` as a process on the real kernel: killed, robbed of its driver, its disk, its records and its mounts. Whatever
//! happened: pods run or are gone, their data is what they wrote, nothing is mounted that should not be, no volume is
//! attached twice, and when all is deleted nothing is left.
//!
//! Each test has a machine of its own: namespaces for mounts and processes, a data directory, a port.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod absence;
mod addresses;
mod disk;
mod draining;
mod examples;
mod expansion;
mod inside;
mod isolation;
mod kills;
mod machine;
mod objects;
mod plugin;
mod reboot;
mod records;
mod scripted;
mod stopping;
