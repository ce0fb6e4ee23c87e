//! Contents that this process created for snapshots that are not ready yet, to undo the creation if the snapshot is gone.
//!
//! kube-apiserver can remove an object to which a finalizer was just added: a DELETE may decide by a version that it read
//! before. So a snapshot can vanish without ever being in deletion, right after its content was created, and nothing would
//! delete that content and the snapshot in the driver. In general a content without its snapshot is kept, because it may have been
//! imported. It is deleted only on proof: this process created it for this snapshot, and the server reports that this
//! snapshot does not exist.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wharf_cluster::ApiError;
use wharf_model::snapshot::{DeletionPolicy, names};
use wharf_model::{Key, Kind as _, VolumeSnapshot, VolumeSnapshotContent, patch};

use super::SnapshotController;

/// A content that this process created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CreatedContent {
    snapshot_uid: String,
    name: String,
}

/// The created contents, by the key of their snapshot. Bounded by the number of snapshots that are not ready.
#[derive(Debug, Default)]
pub(super) struct CreatedContents(Mutex<BTreeMap<Key, CreatedContent>>);

impl CreatedContents {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, CreatedContent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything, because another process may act on the snapshots from now on.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// Records that the content of this snapshot is about to be created.
    pub(super) fn insert(&self, snapshot: &VolumeSnapshot) {
        let (snapshot_uid, name) = (snapshot.metadata.uid.clone(), snapshot.expected_content_name());
        self.lock().insert(snapshot.key(), CreatedContent { snapshot_uid, name });
    }

    /// The content that was created for a snapshot that the store does not have. A snapshot that is ready or in deletion
    /// needs no record: its content is deleted with it.
    fn orphan(&self, key: &Key, snapshot: Option<&VolumeSnapshot>) -> Option<CreatedContent> {
        let mut created = self.lock();
        let content = created.get(key)?;
        match snapshot.filter(|snapshot| snapshot.metadata.uid == content.snapshot_uid) {
            None => Some(content.clone()),
            Some(snapshot) => {
                if snapshot.is_ready() || snapshot.metadata.is_deleting() {
                    created.remove(key);
                }
                None
            }
        }
    }
}

impl SnapshotController {
    /// Deletes the content that this process created for a snapshot that is gone. Returns whether nothing is left to do.
    pub(super) async fn undo_creation(
        &self,
        key: &Key,
        snapshot: Option<&VolumeSnapshot>,
    ) -> Result<bool, ApiError> {
        let Some(CreatedContent { snapshot_uid, name }) = self.created.orphan(key, snapshot) else {
            return Ok(true);
        };
        let cluster = &self.context.cluster;
        let found = cluster.get::<VolumeSnapshot>(key).await?;
        if found.is_some_and(|found| found.metadata.uid == snapshot_uid) {
            // The store has it again: it takes over what is read.
            return Ok(false);
        }
        let content = cluster.get::<VolumeSnapshotContent>(&Key::cluster(&*name)).await?;
        let own = |content: &VolumeSnapshotContent| {
            content.spec.volume_snapshot_ref.uid == snapshot_uid
                && content.spec.deletion_policy == DeletionPolicy::Delete
        };
        if let Some(content) = content.filter(own) {
            // The snapshotter deletes the snapshot in the driver only if this annotation is set.
            let mark = [(names::BEING_DELETED, Some("yes"))];
            if !self.write(&content, None, Some(patch::annotate(&content.metadata, &mark))).await? {
                return Ok(false);
            }
            self.delete(&content).await?;
            tracing::info!(
                snapshot = %key,
                snapshot_content = name,
                "deleted content: its snapshot was deleted while the content was created"
            );
        }
        self.created.lock().remove(key);
        Ok(true)
    }
}
