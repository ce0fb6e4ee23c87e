//! The content of block devices, which decides whether a device is blank and may be formatted.
//!
//! Promise: probing never panics, reads only inside the device, and depends only on the content.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::pieces;
use wharf_linux::signature_ranges;

// The device: pieces of bytes at places where superblocks are, with zeroes between them.
fuzz_target!(|data: &[u8]| {
    let [size, data @ ..] = data else { return };
    let size = 4096_u64 << (size % 28);
    let places = signature_ranges(size);
    let mut content: Vec<(u64, &[u8])> = Vec::new();
    for (place, bytes) in pieces(data) {
        let [low, high, bytes @ ..] = bytes else { continue };
        let offset =
            places[place as usize % places.len()].0 + (u64::from(u16::from_le_bytes([*low, *high])) << 3);
        content.push((offset, bytes));
    }
    let mut read = |offset: u64, buffer: &mut [u8]| {
        let end = offset + buffer.len() as u64;
        assert!(end <= size, "reads {offset}..{end} of {size}");
        for (at, bytes) in &content {
            for (at, byte) in (*at..).zip(*bytes).filter(|(at, _)| (offset..end).contains(at)) {
                buffer[(at - offset) as usize] = *byte;
            }
        }
        Ok(())
    };
    let probe = wharf_linux::fuzzing::probe(size, &mut read).expect("every read succeeds");
    assert_eq!(wharf_linux::fuzzing::probe(size, &mut read).ok(), Some(probe));
});
