//! The SnapshotMetadata service: the allocated blocks of a snapshot, and the blocks that differ from an older snapshot, in
//! messages with as many ranges as the caller requests.

use std::sync::Arc;

use tokio_stream::Iter;
use tonic::{Request, Response, Status};
use wharf_csi::v1;

use crate::backend::{BlockRange, BlockRanges, ChangedBlocks, GetAllocatedBlocks, GetChangedBlocks};
use crate::validate::{self, Rules};
use crate::wire;

/// Default number of ranges in one message: about 20 KiB.
const DEFAULT_RANGES: usize = 1024;
/// Maximum number of ranges in one message: about 1.5 MiB.
const MAX_RANGES: usize = 65536;

#[derive(Clone)]
pub(crate) struct SnapshotMetadataService {
    pub(crate) blocks: Arc<dyn ChangedBlocks>,
    pub(crate) rules: Rules,
}

type Messages<T> = Iter<std::vec::IntoIter<Result<T, Status>>>;

#[tonic::async_trait]
impl v1::snapshot_metadata_server::SnapshotMetadata for SnapshotMetadataService {
    type GetMetadataAllocatedStream = Messages<v1::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<v1::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let request = request.into_inner();
        self.rules.id("snapshot_id", &request.snapshot_id)?;
        let max = validate::max("max_results", request.max_results)?;
        let from = offset(request.starting_offset)?;
        let get = GetAllocatedBlocks::new(request.snapshot_id).starting_offset(from).secrets(request.secrets);
        let found = self.blocks.allocated(&get).await?;
        messages(found, from, max, |volume_capacity_bytes, block_metadata| v1::GetMetadataAllocatedResponse {
            block_metadata_type: v1::BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes,
            block_metadata,
        })
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let request = request.into_inner();
        self.rules.id("base_snapshot_id", &request.base_snapshot_id)?;
        self.rules.id("target_snapshot_id", &request.target_snapshot_id)?;
        let max = validate::max("max_results", request.max_results)?;
        let from = offset(request.starting_offset)?;
        let get = GetChangedBlocks::new(request.base_snapshot_id, request.target_snapshot_id)
            .starting_offset(from)
            .secrets(request.secrets);
        let found = self.blocks.changed(&get).await?;
        messages(found, from, max, |volume_capacity_bytes, block_metadata| v1::GetMetadataDeltaResponse {
            block_metadata_type: v1::BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes,
            block_metadata,
        })
    }
}

/// CSI requires OUT_OF_RANGE for a negative offset, not INVALID_ARGUMENT.
fn offset(starting_offset: i64) -> Result<u64, Status> {
    u64::try_from(starting_offset).map_err(|_| Status::out_of_range("starting_offset must not be negative"))
}

/// Returns at least one message, so that the caller also learns the size of a volume without data.
fn messages<T>(
    found: BlockRanges,
    from: u64,
    max: Option<usize>,
    message: impl Fn(i64, Vec<v1::BlockMetadata>) -> T,
) -> Result<Response<Messages<T>>, Status> {
    if from > found.volume_size {
        return Err(Status::out_of_range(format!(
            "starting_offset {from} is past the end: the volume has {} bytes",
            found.volume_size
        )));
    }
    let size = wire::bytes(found.volume_size);
    let metadata = pages(&found.ranges, from, max.unwrap_or(DEFAULT_RANGES).min(MAX_RANGES));
    let all: Vec<Result<T, Status>> = metadata.into_iter().map(|page| Ok(message(size, page))).collect();
    Ok(Response::new(tokio_stream::iter(all)))
}

/// The ranges that end after `from`, in pages.
fn pages(ranges: &[BlockRange], from: u64, max: usize) -> Vec<Vec<v1::BlockMetadata>> {
    let wanted: Vec<v1::BlockMetadata> = ranges
        .iter()
        .filter(|range| range.length > 0 && range.offset.saturating_add(range.length) > from)
        .map(|range| v1::BlockMetadata {
            byte_offset: wire::bytes(range.offset),
            size_bytes: wire::bytes(range.length),
        })
        .collect();
    match wanted.is_empty() {
        true => vec![Vec::new()],
        false => wanted.chunks(max).map(<[v1::BlockMetadata]>::to_vec).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_paged_from_the_offset() {
        let ranges =
            [(0, 10), (10, 0), (20, 10), (40, 10)].map(|(offset, length)| BlockRange { offset, length });
        let offsets = |from, max| -> Vec<Vec<i64>> {
            let page = |page: Vec<v1::BlockMetadata>| page.iter().map(|block| block.byte_offset).collect();
            pages(&ranges, from, max).into_iter().map(page).collect()
        };
        assert_eq!(offsets(0, 2), [vec![0, 20], vec![40]]);
        assert_eq!(offsets(9, 9), [vec![0, 20, 40]]);
        assert_eq!(offsets(10, 9), [vec![20, 40]], "a range that ends before the offset is left out");
        assert_eq!(offsets(29, 1), [vec![20], vec![40]], "a range that contains the offset is included");
        assert_eq!(offsets(50, 1), [Vec::<i64>::new()]);
    }
}
