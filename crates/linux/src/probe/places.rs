//! Every place where a known format keeps a superblock or a copy of one: what must read zero before a device
//! may be called blank.

use super::{PIECE, btrfs, ext, foreign, xfs};

/// How much is looked at around a place: the superblock itself, and whatever shares its block.
const AROUND: u64 = 4096;

/// `(offset, length)` of every such place on a device of this size: sorted, not overlapping, none beyond the
/// end. The first and the last MiB are among them whole.
pub fn signature_offsets(device_size: u64) -> Vec<(u64, u64)> {
    let table = foreign::SIGNATURES.iter().filter_map(|(_, place, _)| place.offset(device_size));
    let labels = foreign::ZFS_LABELS.iter().filter_map(|place| place.offset(device_size));
    let mut ranges: Vec<(u64, u64)> = table
        .chain(ext::copy_offsets())
        .chain(xfs::copy_offsets(device_size))
        .chain(btrfs::COPIES)
        .map(|offset| offset - offset % AROUND)
        .map(|start| (start, start + AROUND))
        .chain(labels.map(|offset| (offset, offset + (256 << 10))))
        .chain([(0, PIECE), (device_size.saturating_sub(PIECE), device_size)])
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
    fn places_are_sorted_apart_and_within_the_device() {
        for size in
            [0, 512, 4096, 65536, (1 << 20) - 512, 1 << 20, (300 << 20) + 512, 10 << 30, 1 << 40, 1 << 51]
        {
            let places = signature_offsets(size);
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
    fn every_copy_is_covered() {
        let size = 1 << 40;
        let places = signature_offsets(size);
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
