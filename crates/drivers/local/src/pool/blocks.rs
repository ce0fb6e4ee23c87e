//! The CSI SnapshotMetadata service: the allocated blocks of a snapshot, and the blocks that changed between two
//! snapshots.

use wharf_driver::backend::{BlockRange, BlockRanges, SnapshotError};
use wharf_linux::Extent;

use super::PoolCore;
use crate::extents;
use crate::fault::During as _;
use crate::record::SnapshotRecord;
use crate::store;

impl PoolCore {
    /// Blocks of the snapshot that hold data, starting at offset `from`.
    pub fn allocated_blocks(&self, snapshot: &str, from: u64) -> Result<BlockRanges, SnapshotError> {
        let (record, extents) = self.extents(snapshot)?;
        block_ranges(&record, from, |size| extents::allocated(&extents, size, from))
    }

    /// Blocks of `target` that may differ from `base`, starting at offset `from`. Without reflinks, every block that
    /// holds data counts as changed.
    pub fn changed_blocks(&self, base: &str, target: &str, from: u64) -> Result<BlockRanges, SnapshotError> {
        let (base, base_extents) = self.extents(base)?;
        let (target, target_extents) = self.extents(target)?;
        if base.source != target.source {
            return Err(SnapshotError::Invalid(format!(
                "{} is a snapshot of {}, {} one of {}: only snapshots of one volume can be compared",
                base.id, base.source, target.id, target.source
            )));
        }
        block_ranges(&target, from, |size| extents::changed(&base_extents, &target_extents, size, from))
    }

    fn extents(&self, id: &str) -> Result<(SnapshotRecord, Vec<Extent>), SnapshotError> {
        let missing = || SnapshotError::NotFound(format!("there is no snapshot {id}"));
        let (_lock, record) = self.lock_ready_snapshot(id)?.ok_or_else(missing)?;
        let image = store::image_of(id);
        let extents = self.kernel().extents(&self.store.at(&image)).during("read its extent map", id)?;
        Ok((record, extents))
    }
}

fn block_ranges(
    record: &SnapshotRecord,
    from: u64,
    ranges: impl FnOnce(u64) -> Vec<BlockRange>,
) -> Result<BlockRanges, SnapshotError> {
    let size = record.size;
    if from > size {
        return Err(SnapshotError::OutOfRange(format!(
            "{} ends at {size}, requested from {from}",
            record.id
        )));
    }
    Ok(BlockRanges { volume_size: size, ranges: ranges(size) })
}
