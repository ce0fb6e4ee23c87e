//! The writes for the members of a group snapshot. A step for a member that has left the cache does nothing: the group is
//! decided again.

use serde_json::json;
use wharf_cluster::ApiError;
use wharf_model::group_snapshot::VolumeSnapshotInfo;
use wharf_model::snapshot::names;
use wharf_model::{Key, Kind as _, VolumeGroupSnapshot, VolumeSnapshot};

use super::super::super::SnapshotController;
use super::super::super::write as snapshot_write;
use super::super::write;

impl SnapshotController {
    pub(super) async fn create_member(
        &self,
        group: &VolumeGroupSnapshot,
        info: &VolumeSnapshotInfo,
        claim: &str,
    ) -> Result<(), ApiError> {
        let (namespace, body) = (group.metadata.namespace.as_deref(), write::member(group, info, claim));
        self.create_object::<VolumeSnapshot>(namespace, &body).await.map(drop)
    }

    /// Sets the snapshot's UID in the member's content.
    pub(super) async fn bind_member_content(&self, content: String, snapshot: &str) -> Result<(), ApiError> {
        let Some(content) = self.contents.get(&Key::cluster(content)) else { return Ok(()) };
        let patch = write::bind_member_content(&content.metadata, snapshot);
        self.write(&*content, None, Some(patch)).await.map(drop)
    }

    /// Writes the driver's report to the status of the member's content.
    pub(super) async fn write_member_status(
        &self,
        group: &VolumeGroupSnapshot,
        group_handle: Option<&str>,
        info: &VolumeSnapshotInfo,
    ) -> Result<(), ApiError> {
        let (_, name) = names::member_names(&group.metadata.uid, &info.volume_handle);
        let Some(content) = self.contents.get(&Key::cluster(name)) else { return Ok(()) };
        let status = write::member_status(group_handle, info);
        let patch = snapshot_write::status(&content.metadata, &status);
        self.write(&*content, Some("status"), Some(patch)).await.map(drop)
    }

    /// Sets the content's name in the status of the member's snapshot.
    pub(super) async fn bind_member(
        &self,
        group: &VolumeGroupSnapshot,
        info: &VolumeSnapshotInfo,
    ) -> Result<(), ApiError> {
        let (snapshot, content) = names::member_names(&group.metadata.uid, &info.volume_handle);
        let key = Key { namespace: group.metadata.namespace.clone(), name: snapshot };
        let Some(snapshot) = self.snapshots.get(&key) else { return Ok(()) };
        let status = json!({"boundVolumeSnapshotContentName": content});
        let patch = snapshot_write::status(&snapshot.metadata, &status);
        self.write(&*snapshot, Some("status"), Some(patch)).await.map(drop)
    }

    pub(super) async fn delete_member(&self, group: &VolumeGroupSnapshot, key: &Key) -> Result<(), ApiError> {
        let Some(member) = self.snapshots.get(key) else { return Ok(()) };
        let deleted = self.delete(&*member).await;
        self.record_rejected_write(group, "SnapshotDeleteError", &deleted, |error| {
            let group = group.key();
            format!("failed to delete snapshot API object {key} part of group snapshot {group}: {error}")
        });
        deleted
    }
}
