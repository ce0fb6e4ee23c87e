//! Validates the block ranges that the metadata service reports: an invalid range would produce an invalid backup.

use std::ops::Range;

use wharf_csi::snapshotmetadata::{BlockMetadata, BlockMetadataType};

/// An invalid response of the service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MetadataError {
    /// The volume's size is invalid or differs from an earlier message.
    #[error("the metadata service reported a volume size of {now} bytes (before: {before:?})")]
    Capacity { before: Option<u64>, now: i64 },
    /// The block metadata type is invalid or differs from an earlier message.
    #[error("the metadata service reported block metadata type {now} (before: {before:?})")]
    Kind { before: Option<i32>, now: i32 },
    /// The range is empty, outside the volume, or overlaps an earlier one.
    #[error(
        "the metadata service reported an invalid range: {size} bytes at {offset}, after byte {position} of {capacity}"
    )]
    Range { offset: i64, size: i64, position: u64, capacity: u64 },
}

/// The response so far. It may consist of several streams: each resumes where the previous one was interrupted.
#[derive(Debug, Default)]
pub(super) struct MetadataResponse {
    capacity: Option<u64>,
    kind: Option<i32>,
    /// All ranges before this offset are known.
    position: u64,
    /// The next range is the first of a resumed stream, so it may start before `position`.
    resumed: bool,
}

impl MetadataResponse {
    /// The offset at which the next stream must start.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The volume's size, once a message has been received.
    pub(super) fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    /// Starts another stream at [`MetadataResponse::position`].
    pub(super) fn resume(&mut self) {
        self.resumed = true;
    }

    /// Validates a message and returns its new ranges, in order.
    pub(super) fn accept(
        &mut self,
        kind: i32,
        capacity: i64,
        blocks: &[BlockMetadata],
    ) -> Result<Vec<Range<u64>>, MetadataError> {
        let reported = u64::try_from(capacity)
            .ok()
            .filter(|reported| self.capacity.is_none_or(|before| before == *reported));
        let Some(size) = reported else {
            return Err(MetadataError::Capacity { before: self.capacity, now: capacity });
        };
        let known = BlockMetadataType::try_from(kind).is_ok_and(|kind| kind != BlockMetadataType::Unknown);
        if !known || self.kind.is_some_and(|before| before != kind) {
            return Err(MetadataError::Kind { before: self.kind, now: kind });
        }
        (self.capacity, self.kind) = (Some(size), Some(kind));
        let mut ranges = Vec::with_capacity(blocks.len());
        for block in blocks {
            let invalid = || MetadataError::Range {
                offset: block.byte_offset,
                size: block.size_bytes,
                position: self.position,
                capacity: size,
            };
            let start = u64::try_from(block.byte_offset).map_err(|_| invalid())?;
            let length =
                u64::try_from(block.size_bytes).ok().filter(|length| *length > 0).ok_or_else(invalid)?;
            // A fixed-length block may extend past the end of a volume whose size is not a multiple of it.
            let end = start.checked_add(length).ok_or_else(invalid)?.min(size);
            let in_order = start >= self.position || std::mem::take(&mut self.resumed);
            if !in_order || start >= size || end <= self.position {
                return Err(invalid());
            }
            ranges.push(start.max(self.position)..end);
            (self.position, self.resumed) = (end, false);
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: i32 = BlockMetadataType::FixedLength as i32;
    const VARIABLE: i32 = BlockMetadataType::VariableLength as i32;

    fn accept_all(response: &mut MetadataResponse, pairs: &[(i64, i64)]) -> Option<Vec<(u64, u64)>> {
        let ranges = response.accept(VARIABLE, 100, &blocks(pairs)).ok()?;
        Some(ranges.into_iter().map(|range| (range.start, range.end)).collect())
    }

    fn blocks(pairs: &[(i64, i64)]) -> Vec<BlockMetadata> {
        pairs.iter().map(|&(byte_offset, size_bytes)| BlockMetadata { byte_offset, size_bytes }).collect()
    }

    #[test]
    fn ranges_must_be_ordered_and_within_the_volume() {
        for (pairs, expected) in [
            (&[][..], Some(vec![])),
            (&[(0, 10), (10, 5), (90, 10)], Some(vec![(0, 10), (10, 15), (90, 100)])),
            // The last fixed-length block.
            (&[(96, 16)], Some(vec![(96, 100)])),
            (&[(10, 10), (15, 10)], None),
            (&[(10, 10), (0, 5)], None),
            (&[(10, 0)], None),
            (&[(-1, 5)], None),
            (&[(5, -5)], None),
            (&[(100, 5)], None),
            (&[(5, i64::MAX)], Some(vec![(5, 100)])),
        ] {
            assert_eq!(accept_all(&mut MetadataResponse::default(), pairs), expected, "{pairs:?}");
        }
    }

    #[test]
    fn size_and_type_must_not_change_between_messages() {
        let mut response = MetadataResponse::default();
        assert!(response.accept(0, 100, &[]).is_err());
        assert!(response.accept(VARIABLE, -1, &[]).is_err());
        response.accept(VARIABLE, 100, &blocks(&[(0, 10)])).unwrap();
        assert!(response.accept(VARIABLE, 200, &[]).is_err());
        assert!(response.accept(FIXED, 100, &[]).is_err());
        assert!(response.accept(VARIABLE, 100, &blocks(&[(5, 10)])).is_err(), "also across messages");
        assert_eq!(accept_all(&mut response, &[(20, 10)]), Some(vec![(20, 30)]));
    }

    #[test]
    fn resumed_stream_may_repeat_part_of_a_range() {
        let mut response = MetadataResponse::default();
        response.accept(VARIABLE, 100, &blocks(&[(0, 10), (20, 10)])).unwrap();
        assert_eq!(response.position(), 30);
        response.resume();
        // It may start with a range that was partly reported, but not with one that was fully reported.
        assert_eq!(accept_all(&mut response, &[(25, 10), (50, 1)]), Some(vec![(30, 35), (50, 51)]));
        assert!(
            response.accept(VARIABLE, 100, &blocks(&[(45, 10)])).is_err(),
            "only the first range of a stream may overlap"
        );
        response.resume();
        assert!(response.accept(VARIABLE, 100, &blocks(&[(20, 5)])).is_err());
    }
}
