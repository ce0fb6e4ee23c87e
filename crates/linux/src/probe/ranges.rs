//! All ranges in which a known format stores a superblock or a copy of one. They must read as zeroes before a device
//! counts as blank.

use super::{CHUNK, btrfs, ext, foreign, xfs};

/// The size of one range: the superblock and the rest of its block.
const SUPERBLOCK_SPAN: u64 = 4096;

/// `(offset, length)` of every such range on a device of this size: sorted, not overlapping, within the device. The first
/// and the last MiB are included completely.
pub fn signature_ranges(device_size: u64) -> Vec<(u64, u64)> {
    let table = foreign::SIGNATURES.iter().filter_map(|(_, location, _)| location.offset(device_size));
    let labels = foreign::ZFS_LABELS.iter().filter_map(|location| location.offset(device_size));
    let mut ranges: Vec<(u64, u64)> = table
        .chain(ext::backup_offsets())
        .chain(xfs::backup_offsets(device_size))
        .chain(btrfs::COPIES)
        .map(|offset| offset - offset % SUPERBLOCK_SPAN)
        .map(|start| (start, start + SUPERBLOCK_SPAN))
        .chain(labels.map(|offset| (offset, offset + (256 << 10))))
        .chain([(0, CHUNK), (device_size.saturating_sub(CHUNK), device_size)])
        .map(|(start, end)| (start, end.min(device_size)))
        .filter(|(start, end)| start < end)
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    merged.into_iter().map(|(start, end)| (start, end - start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_disjoint_and_within_the_device() {
        for size in
            [0, 512, 4096, 65536, (1 << 20) - 512, 1 << 20, (300 << 20) + 512, 10 << 30, 1 << 40, 1 << 51]
        {
            let places = signature_ranges(size);
            assert_eq!(places.is_empty(), size == 0, "{size}");
            let mut end = None;
            for (offset, length) in places {
                assert!(length > 0 && offset + length <= size, "{offset}+{length} of {size}");
                assert!(end.is_none_or(|end| end < offset), "{offset} of {size}");
                end = Some(offset + length);
            }
        }
    }

    #[test]
    fn every_superblock_copy_is_covered() {
        let size = 1 << 40;
        let places = signature_ranges(size);
        let covered =
            |at: u64| places.iter().any(|(offset, length)| (*offset..offset + length).contains(&at));
        for at in [
            0,
            1024,
            65536,
            64 << 20,
            256 << 30,
            128 << 20,
            (8 << 20) + 1024,
            size / 4,
            size - 512,
            size - 8192,
        ] {
            assert!(covered(at), "{at}");
        }
    }
}
