//! Records of the node agent: `vol_data.json` of volumes, and the files of containers.
//!
//! Promise: decoding never panics. A record that is decoded, encoded and decoded again is unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::assert_stable;
use wharf_container::fuzzing::rewrite_container_record;
use wharf_node::fuzzing::rewrite_volume_data;

const FILES: [&str; 3] = ["order.json", "running.json", "exit.json"];

fuzz_target!(|data: &[u8]| {
    let [choice, record @ ..] = data else { return };
    match FILES.get(*choice as usize % (FILES.len() + 1)) {
        Some(file) => assert_stable(record, |record| rewrite_container_record(file, record)),
        None => {
            for form in 0..2 {
                assert_stable(record, |record| {
                    rewrite_volume_data(record).map(|written| written[form].clone())
                });
            }
        }
    }
});
