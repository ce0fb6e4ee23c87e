//! What a metadata service says of a snapshot's blocks, checked: a range that is wrong would make a backup that is.

use std::ops::Range;

use wharf_csi::snapshotmetadata::{BlockMetadata, BlockMetadataType};

/// What a service must not say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MetadataError {
    /// No size, or another one than before.
    #[error("the service says that the volume has {now} bytes, after {before:?}")]
    Capacity { before: Option<u64>, now: i64 },
    /// No kind of ranges, or another one than before.
    #[error("the service gives ranges of kind {now}, after {before:?}")]
    Kind { before: Option<i32>, now: i32 },
    /// A range of nothing, or outside the volume, or before one that came before.
    #[error("the service gives the range {offset}+{size} after byte {position} of {capacity}")]
    Range { offset: i64, size: i64, position: u64, capacity: u64 },
}

/// The answer so far. It may come in several streams: each goes on where the one before broke off.
#[derive(Debug, Default)]
pub(super) struct Answer {
    capacity: Option<u64>,
    kind: Option<i32>,
    /// Everything before is known.
    position: u64,
    /// The first range of this stream may begin before that.
    resumed: bool,
}

impl Answer {
    /// Where the next stream has to begin.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The volume's size, once a message has come.
    pub(super) fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    /// Another stream begins at [`Answer::position`].
    pub(super) fn resume(&mut self) {
        self.resumed = true;
    }

    /// Takes a message; gives the ranges that are new, in order.
    pub(super) fn take(
        &mut self,
        kind: i32,
        capacity: i64,
        blocks: &[BlockMetadata],
    ) -> Result<Vec<Range<u64>>, MetadataError> {
        let told =
            u64::try_from(capacity).ok().filter(|told| self.capacity.is_none_or(|before| before == *told));
        let Some(size) = told else {
            return Err(MetadataError::Capacity { before: self.capacity, now: capacity });
        };
        let known = BlockMetadataType::try_from(kind).is_ok_and(|kind| kind != BlockMetadataType::Unknown);
        if !known || self.kind.is_some_and(|before| before != kind) {
            return Err(MetadataError::Kind { before: self.kind, now: kind });
        }
        (self.capacity, self.kind) = (Some(size), Some(kind));
        let mut ranges = Vec::with_capacity(blocks.len());
        for block in blocks {
            let wrong = || MetadataError::Range {
                offset: block.byte_offset,
                size: block.size_bytes,
                position: self.position,
                capacity: size,
            };
            let start = u64::try_from(block.byte_offset).map_err(|_| wrong())?;
            let length =
                u64::try_from(block.size_bytes).ok().filter(|length| *length > 0).ok_or_else(wrong)?;
            // Blocks of a fixed length may go past the end of a volume that is no multiple of it.
            let end = start.checked_add(length).ok_or_else(wrong)?.min(size);
            let in_order = start >= self.position || std::mem::take(&mut self.resumed);
            if !in_order || start >= size || end <= self.position {
                return Err(wrong());
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

    fn taken(answer: &mut Answer, pairs: &[(i64, i64)]) -> Option<Vec<(u64, u64)>> {
        let ranges = answer.take(VARIABLE, 100, &blocks(pairs)).ok()?;
        Some(ranges.into_iter().map(|range| (range.start, range.end)).collect())
    }

    fn blocks(pairs: &[(i64, i64)]) -> Vec<BlockMetadata> {
        pairs.iter().map(|&(byte_offset, size_bytes)| BlockMetadata { byte_offset, size_bytes }).collect()
    }

    #[test]
    fn ranges_come_in_order_within_the_volume() {
        for (pairs, expected) in [
            (&[][..], Some(vec![])),
            (&[(0, 10), (10, 5), (90, 10)], Some(vec![(0, 10), (10, 15), (90, 100)])),
            // The last block of a fixed length.
            (&[(96, 16)], Some(vec![(96, 100)])),
            (&[(10, 10), (15, 10)], None),
            (&[(10, 10), (0, 5)], None),
            (&[(10, 0)], None),
            (&[(-1, 5)], None),
            (&[(5, -5)], None),
            (&[(100, 5)], None),
            (&[(5, i64::MAX)], Some(vec![(5, 100)])),
        ] {
            assert_eq!(taken(&mut Answer::default(), pairs), expected, "{pairs:?}");
        }
    }

    #[test]
    fn the_volume_stays_the_same() {
        let mut answer = Answer::default();
        assert!(answer.take(0, 100, &[]).is_err());
        assert!(answer.take(VARIABLE, -1, &[]).is_err());
        answer.take(VARIABLE, 100, &blocks(&[(0, 10)])).unwrap();
        assert!(answer.take(VARIABLE, 200, &[]).is_err());
        assert!(answer.take(FIXED, 100, &[]).is_err());
        assert!(answer.take(VARIABLE, 100, &blocks(&[(5, 10)])).is_err(), "also across messages");
        assert_eq!(taken(&mut answer, &[(20, 10)]), Some(vec![(20, 30)]));
    }

    #[test]
    fn a_stream_goes_on_where_another_broke_off() {
        let mut answer = Answer::default();
        answer.take(VARIABLE, 100, &blocks(&[(0, 10), (20, 10)])).unwrap();
        assert_eq!(answer.position(), 30);
        answer.resume();
        // It may begin with a range that was begun already, but not with one that was told whole.
        assert_eq!(taken(&mut answer, &[(25, 10), (50, 1)]), Some(vec![(30, 35), (50, 51)]));
        assert!(answer.take(VARIABLE, 100, &blocks(&[(45, 10)])).is_err(), "only the first one of a stream");
        answer.resume();
        assert!(answer.take(VARIABLE, 100, &blocks(&[(20, 5)])).is_err());
    }
}
