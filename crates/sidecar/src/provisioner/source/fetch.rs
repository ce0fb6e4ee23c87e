//! Reads snapshots from the server. They are needed rarely, so watching all of them is not worth it.

use wharf_cluster::{ApiError, Cluster};
use wharf_model::{Key, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotContent};

use super::{SourceRef, requested_source};

/// The snapshot that a claim names and its content. Both are `None` if the claim names no snapshot.
#[derive(Debug, Default)]
pub(crate) struct FetchedSnapshot {
    pub(crate) snapshot: Option<VolumeSnapshot>,
    pub(crate) content: Option<VolumeSnapshotContent>,
}

/// Why a snapshot could not be read. Does not mean that it does not exist.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(
        "the claim's data source is a VolumeSnapshot, but the API server does not serve that kind: install the \
         snapshot CRDs ({0})"
    )]
    NotServed(ApiError),
    #[error("failed to read the claim's data source: {0}")]
    Api(ApiError),
}

impl From<ApiError> for FetchError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NotServed(_) => Self::NotServed(error),
            error => Self::Api(error),
        }
    }
}

/// Reads the snapshot that a claim names and the content that it is bound to.
pub(crate) async fn fetch_snapshot(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
) -> Result<FetchedSnapshot, FetchError> {
    // `resolve` reports errors of the claim itself.
    let Ok(Some(SourceRef::Snapshot(key))) = requested_source(claim) else {
        return Ok(FetchedSnapshot::default());
    };
    let Some(snapshot) = cluster.get::<VolumeSnapshot>(&key).await? else {
        return Ok(FetchedSnapshot::default());
    };
    let content = fetch_content(cluster, &snapshot).await?;
    Ok(FetchedSnapshot { snapshot: Some(snapshot), content })
}

/// Reads the content that a snapshot is bound to. `None`: the snapshot is not bound, or the content does not exist.
pub(crate) async fn fetch_content(
    cluster: &Cluster,
    snapshot: &VolumeSnapshot,
) -> Result<Option<VolumeSnapshotContent>, ApiError> {
    let Some(content) = snapshot.bound_content() else { return Ok(None) };
    cluster.get::<VolumeSnapshotContent>(&Key::cluster(content)).await
}
