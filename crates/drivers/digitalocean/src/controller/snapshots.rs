//! Creating, deleting and listing snapshots.

use async_trait::async_trait;
use wharf_driver::backend::{
    BackendError, DeleteError, DeleteSnapshot, GetSnapshot, ListPage, ListSnapshots, NewSnapshot, Snapshot,
    SnapshotError, Snapshots,
};

use super::listing::page_of;
use super::plan::is_reachable;
use super::{Controller, to_sdk_snapshot};
use crate::client::ApiErrorKind;
use crate::names::DESCRIPTION;
use crate::{api, errors};

#[async_trait]
impl Snapshots for Controller {
    async fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        if !is_reachable(&self.region, &wanted.requisite) {
            return Err(SnapshotError::Exhausted(format!(
                "snapshots are created in region {}, which is not in the requested topology",
                self.region
            )));
        }
        if let Some(found) = self.snapshot_named(wanted).await? {
            return Ok(to_sdk_snapshot(&found)?);
        }
        let new = api::NewSnapshot {
            volume_id: wanted.source.clone(),
            name: wanted.name.clone(),
            description: DESCRIPTION.to_owned(),
            tags: self.tags(),
        };
        let snapshot = match self.client.create_snapshot(&new).await {
            Ok(snapshot) => snapshot,
            // It may have been created despite the error.
            Err(error) if error.uncertain() || error.kind() == ApiErrorKind::Conflict => {
                match self.snapshot_named(wanted).await? {
                    Some(found) => found,
                    None => return Err(errors::snapshot(error)),
                }
            }
            Err(error) => return Err(errors::snapshot(error)),
        };
        self.cache.invalidate_snapshots();
        Ok(to_sdk_snapshot(&snapshot)?)
    }

    async fn delete_snapshot(&self, request: &DeleteSnapshot) -> Result<(), DeleteError> {
        let deleted = self.client.delete_snapshot(&request.id).await.map_err(errors::delete);
        self.cache.invalidate_snapshots();
        deleted
    }

    async fn get_snapshot(&self, request: &GetSnapshot) -> Result<Option<Snapshot>, BackendError> {
        self.client.snapshot(&request.id).await?.as_ref().map(to_sdk_snapshot).transpose()
    }

    async fn list_snapshots(&self, request: &ListSnapshots) -> Result<ListPage<Snapshot>, BackendError> {
        let mut listed = self.all_snapshots(request.after.is_some()).await?;
        if let Some(source) = &request.source {
            listed = listed.iter().filter(|snapshot| snapshot.resource_id == *source).cloned().collect();
        }
        let page = page_of(&listed, |snapshot| &snapshot.id, request.after.as_deref(), request.max);
        let entries = page.entries.iter().map(to_sdk_snapshot).collect::<Result<_, _>>()?;
        Ok(ListPage { entries, more: page.more })
    }
}

impl Controller {
    /// The snapshot with that name, of any volume: the API allows the same name for snapshots of different volumes, CSI
    /// does not.
    async fn snapshot_named(&self, wanted: &NewSnapshot) -> Result<Option<api::Snapshot>, BackendError> {
        let all = self.client.snapshots(&self.region).await?;
        Ok(all.into_iter().find(|snapshot| snapshot.name == wanted.name))
    }
}
