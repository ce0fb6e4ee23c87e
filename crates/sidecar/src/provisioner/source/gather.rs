//! Reads from the server what no store has: snapshots are rare, and a watch of all of them is not worth it.

use wharf_cluster::{ApiError, Cluster};
use wharf_model::{Key, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotContent};

use super::{Named, bound_content, wanted};

/// The snapshot that a claim names, and what it is bound to; nothing where the claim names none.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) snapshot: Option<VolumeSnapshot>,
    pub(crate) content: Option<VolumeSnapshotContent>,
}

/// Why a snapshot could not be looked at. Says nothing about whether it exists.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatherError {
    #[error(
        "the claim's data source is a VolumeSnapshot, which this cluster does not serve: install the \
         snapshot CRDs ({0})"
    )]
    NotServed(ApiError),
    #[error("cannot read the claim's data source: {0}")]
    Api(ApiError),
}

impl From<ApiError> for GatherError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NotServed(_) => Self::NotServed(error),
            error => Self::Api(error),
        }
    }
}

/// Reads the snapshot that a claim names and the content that it is bound to.
pub(crate) async fn gather(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
) -> Result<Gathered, GatherError> {
    // What is wrong with the claim itself, `resolve` will tell.
    let Ok(Some(Named::Snapshot(key))) = wanted(claim) else { return Ok(Gathered::default()) };
    let Some(snapshot) = cluster.get::<VolumeSnapshot>(&key).await? else { return Ok(Gathered::default()) };
    let content = content_of(cluster, &snapshot).await?;
    Ok(Gathered { snapshot: Some(snapshot), content })
}

/// Reads the content that a snapshot is bound to; `None` if it is bound to none, or the server has no such.
pub(crate) async fn content_of(
    cluster: &Cluster,
    snapshot: &VolumeSnapshot,
) -> Result<Option<VolumeSnapshotContent>, ApiError> {
    let Some((_, content)) = bound_content(snapshot) else { return Ok(None) };
    cluster.get::<VolumeSnapshotContent>(&Key::cluster(content)).await
}
