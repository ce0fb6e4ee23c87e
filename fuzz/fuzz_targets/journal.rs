//! Intents of the provisioner's journal, as a Lease contains them.
//!
//! Promise: reading never panics, nor does building the CreateVolume request and the PersistentVolume from an intent that was read.
//! A value that is read and written again reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::assert_stable;
use wharf_sidecar::fuzzing::rewrite_intent;

fuzz_target!(|data: &[u8]| {
    assert_stable(data, |text| rewrite_intent(str::from_utf8(text).ok()?).map(String::into_bytes));
});
