//! The zero proof: samples a device and reports whether all sampled ranges are zero.
//!
//! The samples are the head, the tail, every range in which a known format stores a superblock or a copy of it, and one
//! block in each of 512 equal parts, so that a run of data longer than two parts is always found. A device of up to 16 MiB
//! is read completely. A range that cannot be read is an error, never "zero".

use std::path::Path;

use wharf_linux::Kernel;

use super::ZeroProof;

const MIB: u64 = 1 << 20;
/// Size of the head and of the tail, which contain partition tables, RAID and LVM metadata, and the start of most data.
const END: u64 = 4 * MIB;
/// Devices up to this size are read completely, because the samples would cover almost as much.
const WHOLE: u64 = 16 * MIB;
const SAMPLES: u64 = 512;
const SAMPLE: u64 = 4096;
/// The maximum size of one read.
const CHUNK: u64 = MIB;

/// Runs the zero proof. `seed` determines the offset of each sample within its part.
pub(crate) fn prove(
    kernel: &dyn Kernel,
    device: &Path,
    size: u64,
    seed: u64,
) -> wharf_linux::Result<ZeroProof> {
    let mut buffer = Vec::new();
    for (start, end) in ranges(size, &wharf_linux::signature_ranges(size), seed) {
        let mut offset = start;
        while offset < end {
            let length = CHUNK.min(end - offset);
            buffer.resize(length as usize, 0);
            kernel.read_device(device, offset, &mut buffer)?;
            if let Some(at) = buffer.iter().position(|byte| *byte != 0) {
                return Ok(ZeroProof::NonZero { offset: offset + at as u64 });
            }
            offset += length;
        }
    }
    Ok(ZeroProof::AllZero)
}

/// The ranges to read: `(start, end)`, sorted, not overlapping, whole blocks except at the end of the device.
fn ranges(size: u64, signatures: &[(u64, u64)], seed: u64) -> Vec<(u64, u64)> {
    if size <= WHOLE {
        return vec![(0, size)];
    }
    let mut wanted = vec![(0, END), (size - END, size)];
    wanted.extend(signatures.iter().map(|(offset, length)| (*offset, offset.saturating_add(*length))));
    let part = size / SAMPLES;
    let mut random = seed;
    for index in 0..SAMPLES {
        random = scatter(random);
        let start = index * part + random % part;
        wanted.push((start, start + 1));
    }
    let mut blocks: Vec<(u64, u64)> = wanted
        .into_iter()
        .filter(|(start, _)| *start < size)
        .map(|(start, end)| (start / SAMPLE * SAMPLE, end.next_multiple_of(SAMPLE).min(size)))
        .collect();
    blocks.sort_unstable();
    blocks.dedup_by(|next, kept| {
        let overlap = next.0 <= kept.1;
        if overlap {
            kept.1 = kept.1.max(next.1);
        }
        overlap
    });
    blocks
}

/// One step of splitmix64: any seed works, including zero.
fn scatter(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_devices_are_read_completely() {
        for size in [0, 512, MIB, WHOLE] {
            assert_eq!(ranges(size, &[(65536, 4096)], 7), [(0, size)]);
        }
    }

    #[test]
    fn ranges_cover_head_tail_signatures_and_a_sample_of_each_part() {
        for (size, seed) in [(64 * MIB, 0), (WHOLE + 512, 1), (10 << 30, u64::MAX), ((1 << 40) + 512, 42)] {
            let signature = (40 * MIB + 100, 5000);
            let ranges = ranges(size, &[signature, (size, 512), (u64::MAX, 9)], seed);
            let read = |at: u64| ranges.iter().any(|(start, end)| (*start..*end).contains(&at));
            for at in [0, END - 1, size - END, size - 1] {
                assert!(read(at), "{at} of {size}");
            }
            if size > signature.0 + signature.1 {
                assert!(read(signature.0) && read(signature.0 + signature.1 - 1), "{size}");
            }
            let part = size / SAMPLES;
            for index in 0..SAMPLES {
                let touches = |(start, end): &(u64, u64)| *start < (index + 1) * part && *end > index * part;
                assert!(ranges.iter().any(touches), "part {index} of {size}");
            }
            for pair in ranges.windows(2) {
                assert!(pair[0].1 < pair[1].0, "sorted, apart: {pair:?}");
            }
            assert!(ranges.iter().all(|(start, end)| start % SAMPLE == 0 && start < end && *end <= size));
        }
    }

    #[test]
    fn different_seeds_sample_different_ranges() {
        assert_ne!(ranges(10 << 30, &[], 1), ranges(10 << 30, &[], 2));
    }
}
