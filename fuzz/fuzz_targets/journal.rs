//! Intents of the provisioner's journal, as a Lease contains them.
//!
//! Promise: decoding an intent never panics, nor does building its CreateVolume request and PersistentVolume. An intent that
//! is decoded, encoded and decoded again is unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::assert_stable;
use wharf_sidecar::fuzzing::rewrite_intent;

fuzz_target!(|data: &[u8]| {
    assert_stable(data, |text| rewrite_intent(str::from_utf8(text).ok()?).map(String::into_bytes));
});
