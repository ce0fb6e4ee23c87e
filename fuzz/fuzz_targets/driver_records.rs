//! Records of drivers: those of a local pool and the notes of the DigitalOcean driver.
//!
//! Promise: decoding never panics. A record that is decoded, encoded and decoded again is unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_driver_digitalocean::fuzzing::rewrite_note;
use wharf_driver_local::fuzzing::rewrite_record;
use wharf_fuzz::assert_stable;

const FILES: [&str; 5] = [
    "pool.json",
    "volumes/vol-1/record.json",
    "snapshots/snap-1/record.json",
    "groups/group-1.json",
    "freeze.json",
];

fuzz_target!(|data: &[u8]| {
    let [choice, record @ ..] = data else { return };
    match FILES.get(*choice as usize % (FILES.len() + 1)) {
        Some(file) => assert_stable(record, |record| rewrite_record(file, record)),
        None => assert_stable(record, rewrite_note),
    }
});
