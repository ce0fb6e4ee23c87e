//! The GroupController service: snapshots of several volumes at the same point in time.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use wharf_csi::v1;

use crate::backend::{
    DeleteGroupSnapshot, GetGroupSnapshot, GroupSnapshot, GroupSnapshots, NewGroupSnapshot,
};
use crate::locks::{Locks, group_key, group_name_key, snapshot_key, volume_key};
use crate::validate::{self, Rules};
use crate::wire;

/// More volumes than any application has, and few enough to be frozen together.
const MAX_MEMBERS: usize = 256;

#[derive(Clone)]
pub(crate) struct GroupService {
    pub(crate) groups: Arc<dyn GroupSnapshots>,
    pub(crate) locks: Locks,
    pub(crate) rules: Rules,
}

#[tonic::async_trait]
impl v1::group_controller_server::GroupController for GroupService {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<v1::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::GroupControllerGetCapabilitiesResponse>, Status> {
        use v1::group_controller_service_capability::{Rpc, Type, rpc};

        let rpc = Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
        let capability = v1::GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) };
        Ok(Response::new(v1::GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<v1::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::CreateVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        validate::name("name", &request.name)?;
        validate::map("parameters", &request.parameters)?;
        let sources = members(self.rules, "source_volume_ids", &request.source_volume_ids)?;
        if sources.is_empty() {
            return Err(validate::missing("source_volume_ids"));
        }
        let sources: Vec<String> = sources.into_iter().map(str::to_owned).collect();
        let requested = NewGroupSnapshot::new(request.name, sources)
            .parameters(request.parameters)
            .secrets(request.secrets);
        let volumes = requested.sources.iter().map(|id| volume_key(id));
        let keys: Vec<String> = volumes.chain([group_name_key(&requested.name)]).collect();
        let (groups, rules) = (self.groups.clone(), self.rules);
        self.locks
            .run(keys, async move {
                let group = groups.create_group(&requested).await?;
                rules.returned_id("group snapshot", &group.id)?;
                for snapshot in &group.snapshots {
                    rules.returned_id("snapshot", &snapshot.id)?;
                }
                let sources: BTreeSet<&String> =
                    group.snapshots.iter().map(|snapshot| &snapshot.source).collect();
                if !sources.into_iter().eq(&requested.sources) {
                    let name = &requested.name;
                    return Err(Status::already_exists(format!(
                        "group snapshot {name:?} already exists, with other source volumes"
                    )));
                }
                Ok(Response::new(v1::CreateVolumeGroupSnapshotResponse {
                    group_snapshot: Some(wire::group(&group)),
                }))
            })
            .await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::DeleteVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let id = request.group_snapshot_id;
        self.rules.id("group_snapshot_id", &id)?;
        let snapshot_ids = members(self.rules, "snapshot_ids", &request.snapshot_ids)?;
        let keys: Vec<String> = snapshot_ids.into_iter().map(snapshot_key).chain([group_key(&id)]).collect();
        let groups = self.groups.clone();
        let get = GetGroupSnapshot::new(id).snapshots(request.snapshot_ids).secrets(request.secrets);
        self.locks
            .run(keys, async move {
                if let Some(group) = groups.get_group(&get).await? {
                    same_members(&group, &get.snapshots)?;
                }
                // Also if the group no longer exists: an earlier delete may be incomplete.
                let GetGroupSnapshot { id, snapshots, secrets } = get;
                groups
                    .delete_group(&DeleteGroupSnapshot::new(id).snapshots(snapshots).secrets(secrets))
                    .await?;
                Ok(Response::new(v1::DeleteVolumeGroupSnapshotResponse {}))
            })
            .await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::GetVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let id = request.group_snapshot_id;
        self.rules.id("group_snapshot_id", &id)?;
        members(self.rules, "snapshot_ids", &request.snapshot_ids)?;
        let get = GetGroupSnapshot::new(id).snapshots(request.snapshot_ids).secrets(request.secrets);
        let group = self.groups.get_group(&get).await?;
        let group =
            group.ok_or_else(|| Status::not_found(format!("there is no group snapshot {}", get.id)))?;
        same_members(&group, &get.snapshots)?;
        Ok(Response::new(v1::GetVolumeGroupSnapshotResponse { group_snapshot: Some(wire::group(&group)) }))
    }
}

/// Validates the ids, and returns them sorted and without duplicates.
fn members<'a>(rules: Rules, field: &str, ids: &'a [String]) -> Result<BTreeSet<&'a str>, Status> {
    if ids.len() > MAX_MEMBERS {
        return Err(validate::invalid(field, &format!("must not have more than {MAX_MEMBERS} members")));
    }
    for id in ids {
        rules.id(field, id)?;
    }
    Ok(ids.iter().map(String::as_str).collect())
}

/// The caller's list of members must match the group.
fn same_members(group: &GroupSnapshot, snapshot_ids: &[String]) -> Result<(), Status> {
    let snapshot_ids: BTreeSet<&str> = snapshot_ids.iter().map(String::as_str).collect();
    let members: BTreeSet<&str> = group.snapshots.iter().map(|snapshot| snapshot.id.as_str()).collect();
    if snapshot_ids != members {
        let members: Vec<&str> = members.into_iter().collect();
        let expected = format!("must be the members of {}: {}", group.id, members.join(", "));
        return Err(validate::invalid("snapshot_ids", &expected));
    }
    Ok(())
}
