//! Snapshots.

use async_trait::async_trait;
use wharf_driver::backend::{
    BackendError, DeleteError, NewSnapshot, Page, Snapshot, SnapshotError, SnapshotFilter, Snapshots,
};

use super::listing::page_of;
use super::plan::is_reachable;
use super::{Controller, described_snapshot};
use crate::client::Kind;
use crate::names::DESCRIPTION;
use crate::{api, fault};

#[async_trait]
impl Snapshots for Controller {
    async fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        if !is_reachable(&self.region, &wanted.requisite) {
            return Err(SnapshotError::Exhausted(format!(
                "snapshots are in region {}, and none of the places where this one must be is there",
                self.region
            )));
        }
        if let Some(found) = self.snapshot_named(wanted).await? {
            return Ok(described_snapshot(&found)?);
        }
        let new = api::NewSnapshot {
            volume_id: wanted.source.clone(),
            name: wanted.name.clone(),
            description: DESCRIPTION.to_owned(),
            tags: self.tags(),
        };
        let snapshot = match self.client.create_snapshot(&new).await {
            Ok(snapshot) => snapshot,
            // It may be there all the same.
            Err(error) if error.uncertain() || error.kind() == Kind::Conflict => {
                match self.snapshot_named(wanted).await? {
                    Some(found) => found,
                    None => return Err(fault::snapshot(error)),
                }
            }
            Err(error) => return Err(fault::snapshot(error)),
        };
        self.recent.forget_snapshots();
        Ok(described_snapshot(&snapshot)?)
    }

    async fn delete_snapshot(&self, id: &str) -> Result<(), DeleteError> {
        let deleted = self.client.delete_snapshot(id).await.map_err(fault::delete);
        self.recent.forget_snapshots();
        deleted
    }

    async fn get_snapshot(&self, id: &str) -> Result<Option<Snapshot>, BackendError> {
        self.client.snapshot(id).await?.as_ref().map(described_snapshot).transpose()
    }

    async fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        after: Option<&str>,
        max: usize,
    ) -> Result<Page<Snapshot>, BackendError> {
        let mut listed = self.all_snapshots(after.is_some()).await?;
        if let Some(source) = &filter.source {
            listed = listed.iter().filter(|snapshot| snapshot.resource_id == *source).cloned().collect();
        }
        let page = page_of(&listed, |snapshot| &snapshot.id, after, max);
        let entries = page.entries.iter().map(described_snapshot).collect::<Result<_, _>>()?;
        Ok(Page { entries, more: page.more })
    }
}

impl Controller {
    /// The snapshot of that name, of whichever volume: the API lets two volumes' snapshots have one name, CSI does
    /// not.
    async fn snapshot_named(&self, wanted: &NewSnapshot) -> Result<Option<api::Snapshot>, BackendError> {
        let all = self.client.snapshots(&self.region).await?;
        Ok(all.into_iter().find(|snapshot| snapshot.name == wanted.name))
    }
}
