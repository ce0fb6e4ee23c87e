//! Which blocks of a snapshot hold data, and which differ from another snapshot. Derived from extent maps only,
//! without reading data: two images that share an extent are equal there, a hole reads as zeroes, and anything
//! that cannot be compared counts as changed. A block that differs is therefore never left out.

use wharf_driver::backend::BlockRange;
use wharf_linux::Extent;

/// The ranges of an image of `size` bytes that hold data, from `from` on.
pub(crate) fn allocated(extents: &[Extent], size: u64, from: u64) -> Vec<BlockRange> {
    let mut ranges = Ranges::new(from, size);
    for extent in extents {
        ranges.add(extent.offset, end(extent));
    }
    ranges.ranges
}

/// The ranges of a target image of `size` bytes that may differ from the base, from `from` on. Past its end
/// the base counts as a hole, because an expanded volume reads as zeroes there.
pub(crate) fn changed(base: &[Extent], target: &[Extent], size: u64, from: u64) -> Vec<BlockRange> {
    let mut ranges = Ranges::new(from, size);
    let (mut base, mut target) = (base, target);
    let mut at = from;
    while at < size {
        let (in_base, base_until) = content_at(&mut base, at, size);
        let (in_target, target_until) = content_at(&mut target, at, size);
        let until = base_until.min(target_until);
        if differ(in_base, in_target) {
            ranges.add(at, until);
        }
        at = until;
    }
    ranges.ranges
}

/// What an image contains at one offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Zeroes.
    Hole,
    /// Data, at this offset of the pool's device.
    Data(u64),
    /// Data whose physical location the file system does not report.
    UnknownLocation,
}

/// The content at `at` and where it ends (always past `at`). Drops the extents that end before `at`.
fn content_at(extents: &mut &[Extent], at: u64, size: u64) -> (Content, u64) {
    while let Some((_, rest)) = extents.split_first().filter(|(first, _)| end(first) <= at) {
        *extents = rest;
    }
    match extents.first() {
        None => (Content::Hole, size),
        Some(next) if next.offset > at => (Content::Hole, next.offset.min(size)),
        Some(extent) => {
            let content = match extent.physical {
                Some(physical) => Content::Data(physical.saturating_add(at - extent.offset)),
                None => Content::UnknownLocation,
            };
            (content, end(extent).min(size))
        }
    }
}

fn differ(base: Content, target: Content) -> bool {
    match (base, target) {
        (Content::Hole, Content::Hole) => false,
        (Content::Data(a), Content::Data(b)) => a != b,
        _ => true,
    }
}

fn end(extent: &Extent) -> u64 {
    extent.offset.saturating_add(extent.length)
}

/// Collects ranges, clipped, with adjacent ranges merged.
struct Ranges {
    from: u64,
    size: u64,
    ranges: Vec<BlockRange>,
}

impl Ranges {
    fn new(from: u64, size: u64) -> Self {
        Self { from, size, ranges: Vec::new() }
    }

    fn add(&mut self, start: u64, end: u64) {
        let (start, end) = (start.max(self.from), end.min(self.size));
        if start >= end {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if last.offset + last.length >= start => {
                last.length = last.length.max(end - last.offset);
            }
            _ => self.ranges.push(BlockRange { offset: start, length: end - start }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(offset: u64, length: u64, physical: impl Into<Option<u64>>) -> Extent {
        Extent { offset, length, physical: physical.into() }
    }

    fn pairs(ranges: &[BlockRange]) -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.offset, range.length)).collect()
    }

    #[test]
    fn allocated_ranges_are_clipped_and_merged() {
        type Case<'a> = (&'a [Extent], u64, u64, &'a [(u64, u64)]);
        let cases: &[Case<'_>] = &[
            (&[], 100, 0, &[]),
            (&[extent(0, 10, 5)], 100, 0, &[(0, 10)]),
            (&[extent(0, 10, 5), extent(10, 10, 77)], 100, 0, &[(0, 20)]),
            (&[extent(0, 10, 5), extent(20, 10, None)], 100, 0, &[(0, 10), (20, 10)]),
            (&[extent(0, 10, 5), extent(20, 10, 9)], 25, 0, &[(0, 10), (20, 5)]),
            (&[extent(0, 10, 5), extent(20, 10, 9)], 100, 5, &[(5, 5), (20, 10)]),
            (&[extent(0, 10, 5)], 100, 50, &[]),
            (&[extent(0, u64::MAX, 5)], 100, 0, &[(0, 100)]),
        ];
        for (extents, size, from, expected) in cases {
            assert_eq!(pairs(&allocated(extents, *size, *from)), *expected, "{extents:?}");
        }
    }

    #[test]
    fn changed_ranges_differ_in_physical_address() {
        type Case<'a> = (&'a str, &'a [Extent], &'a [Extent], &'a [(u64, u64)]);
        let shared = extent(0, 100, 1000);
        let cases: &[Case<'_>] = &[
            ("both holes", &[], &[], &[]),
            ("shared", &[shared], &[shared], &[]),
            ("shared, split differently", &[shared], &[extent(0, 40, 1000), extent(40, 60, 1040)], &[]),
            (
                "overwritten in the middle",
                &[shared],
                &[extent(0, 40, 1000), extent(40, 10, 7000), extent(50, 50, 1050)],
                &[(40, 10)],
            ),
            ("written into a hole", &[], &[extent(20, 10, 7)], &[(20, 10)]),
            ("punched", &[shared], &[extent(0, 40, 1000)], &[(40, 60)]),
            ("moved", &[shared], &[extent(0, 100, 2000)], &[(0, 100)]),
            ("same place, shifted", &[shared], &[extent(10, 90, 1000)], &[(0, 100)]),
            ("unknown location in the base", &[extent(0, 100, None)], &[shared], &[(0, 100)]),
            ("unknown location in both", &[extent(0, 100, None)], &[extent(0, 100, None)], &[(0, 100)]),
            (
                "adjacent ranges are merged",
                &[],
                &[extent(0, 10, 1), extent(10, 10, 500), extent(30, 10, 9)],
                &[(0, 20), (30, 10)],
            ),
            ("past the end", &[], &[extent(90, 500, 1)], &[(90, 10)]),
        ];
        for (name, base, target, expected) in cases {
            assert_eq!(pairs(&changed(base, target, 100, 0)), *expected, "{name}");
        }
        assert_eq!(pairs(&changed(&[], &[shared], 100, 30)), [(30, 70)]);
        assert_eq!(pairs(&changed(&[], &[shared], 100, 100)), []);
    }

    const BLOCKS: u64 = 48;

    /// Sorted extents that do not overlap, over few physical places so that sharing happens.
    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let piece = (0u64..4, 1u64..6, proptest::option::weighted(0.85, 0u64..12));
        proptest::collection::vec(piece, 0..14).prop_map(|pieces| {
            let mut at = 0;
            let mut extents = Vec::new();
            for (gap, length, physical) in pieces {
                extents.push(Extent { offset: at + gap, length, physical });
                at += gap + length;
            }
            extents
        })
    }

    fn content_of_block(extents: &[Extent], block: u64) -> Content {
        let covers = |extent: &&Extent| (extent.offset..end(extent)).contains(&block);
        match extents.iter().find(covers) {
            None => Content::Hole,
            Some(Extent { physical: None, .. }) => Content::UnknownLocation,
            Some(Extent { physical: Some(physical), offset, .. }) => Content::Data(physical + block - offset),
        }
    }

    fn covered(ranges: &[BlockRange]) -> Vec<u64> {
        ranges.iter().flat_map(|range| range.offset..range.offset + range.length).collect()
    }

    fn assert_tidy(ranges: &[BlockRange]) {
        assert!(ranges.iter().all(|range| range.length > 0));
        assert!(ranges.windows(2).all(|pair| pair[0].offset + pair[0].length < pair[1].offset));
    }

    proptest! {
        #[test]
        fn changed_ranges_match_block_by_block_comparison(
            base in extents(), target in extents(), from in 0..BLOCKS, size in 1..BLOCKS
        ) {
            let ranges = changed(&base, &target, size, from);
            assert_tidy(&ranges);
            let expected: Vec<u64> =
                (from..size).filter(|&block| differ(content_of_block(&base, block), content_of_block(&target, block))).collect();
            prop_assert_eq!(covered(&ranges), expected);

            let ranges = allocated(&target, size, from);
            assert_tidy(&ranges);
            let expected: Vec<u64> =
                (from..size).filter(|&block| content_of_block(&target, block) != Content::Hole).collect();
            prop_assert_eq!(covered(&ranges), expected);
        }
    }
}
