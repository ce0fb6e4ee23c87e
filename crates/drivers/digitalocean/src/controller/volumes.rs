//! Create, delete, expand.
//!
//! A create can be retried regardless of what happened to the one before: the volume is searched by name first, and
//! again after a call that may have taken effect. The API does not allow two volumes with one name in a region.
//!
//! After a final error the external-provisioner drops the name, and with it the volume. So a create fails finally only
//! if no volume exists (or it belongs to someone else); any other error is UNAVAILABLE, and is retried.

use std::collections::BTreeMap;

use async_trait::async_trait;
use wharf_driver::backend::{
    BackendError, Capability, CreateError, DeleteError, DeleteVolume, ExpandError, ExpandVolume,
    ExpandedVolume, Expansion, GetVolume, NewVolume, Volume, VolumeAccess, VolumeContentSource, Volumes,
};

use super::plan::{Plan, is_reachable, is_unused, plan};
use super::{Controller, parameters, to_sdk_volume};
use crate::client::ApiErrorKind;
use crate::names::{DESCRIPTION, volume_name};
use crate::size::{self, bytes};
use crate::{api, errors};

#[async_trait]
impl Volumes for Controller {
    async fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError> {
        if !is_reachable(&self.region, &wanted.requisite) {
            return Err(CreateError::Exhausted(format!(
                "volumes are created in region {}, which is not in the requested topology",
                self.region
            )));
        }
        let context = parameters::context_of(&wanted.parameters, &wanted.capabilities)?;
        let name = volume_name(&wanted.name);
        let found = self.find_by_name(&name).await?;
        let volume = match plan(&found, wanted)? {
            Plan::Create => self.create_new(&name, wanted).await?,
            existing => self.use_existing(found, existing).await?,
        };
        Ok(Volume { context, source: wanted.source.clone(), ..to_sdk_volume(&volume) })
    }

    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
        let deleted = self.client.delete_volume(&request.id).await.map_err(errors::delete);
        self.cache.invalidate_volumes();
        deleted
    }

    async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError> {
        Ok(self.client.volume(&request.id).await?.as_ref().map(to_sdk_volume))
    }

    fn refuses(&self, _volume: Option<&Volume>, capability: &Capability) -> Option<String> {
        if !capability.mode.is_single_node() {
            return Some(format!(
                "{:?} is not supported: a DigitalOcean volume is attached to one droplet at a time",
                capability.mode
            ));
        }
        match &capability.access {
            VolumeAccess::Mount(mount) if !["", "ext4", "xfs"].contains(&mount.fs_type.as_str()) => {
                Some(format!("file system {:?} is not supported: use ext4 or xfs", mount.fs_type))
            }
            VolumeAccess::Mount(_) | VolumeAccess::Block => None,
        }
    }

    fn refuses_parameters(&self, _parameters: &BTreeMap<String, String>) -> Option<String> {
        None
    }
}

#[async_trait]
impl Expansion for Controller {
    async fn expand(&self, request: &ExpandVolume) -> Result<ExpandedVolume, ExpandError> {
        let id = &request.id;
        let volume = self.client.volume(id).await.map_err(BackendError::from)?;
        let volume = volume.ok_or_else(|| ExpandError::NotFound(format!("there is no volume {id}")))?;
        let gib = size::choose(request.size, volume.size_gigabytes)?;
        let volume = match gib > volume.size_gigabytes {
            true => self.attachments.resize(id, gib).await.map_err(errors::expand)?,
            false => volume,
        };
        let raw = request.capability.as_ref().is_some_and(|used| used.access == VolumeAccess::Block);
        Ok(ExpandedVolume { capacity: bytes(volume.size_gigabytes), node_expansion_required: !raw })
    }

    fn online(&self) -> bool {
        true
    }
}

impl Controller {
    /// Volumes that an earlier call may have created. If the search fails, a volume may exist: the error is retryable.
    async fn find_by_name(&self, name: &str) -> Result<Vec<api::Volume>, BackendError> {
        self.client.volumes_named(name, &self.region).await.map_err(errors::lookup)
    }

    /// Completes an existing volume according to the plan.
    async fn use_existing(&self, found: Vec<api::Volume>, plan: Plan) -> Result<api::Volume, CreateError> {
        match (plan, found.into_iter().next()) {
            (Plan::UseExisting, Some(volume)) => Ok(volume),
            (Plan::Grow(gib), Some(volume)) => self.grow(&volume, gib).await,
            // Created by another driver, so it is not deleted; if the limit is reached, the caller retries.
            (Plan::RoundUp(gib), Some(volume)) => {
                let grown = self.attachments.resize(&volume.id, gib).await;
                grown.map_err(|error| match errors::grow(error) {
                    CreateError::Exhausted(reason) => BackendError::Unavailable(reason).into(),
                    other => other,
                })
            }
            (Plan::Differs(reason), _) => Err(CreateError::Exists(reason)),
            (Plan::Duplicate(count), _) => {
                let reason = format!(
                    "{count} volumes in {} have the same name, which the API should not allow; delete those that are not needed",
                    self.region
                );
                Err(BackendError::Unavailable(reason).into())
            }
            (Plan::Create | Plan::UseExisting | Plan::Grow(_) | Plan::RoundUp(_), _) => {
                Err(BackendError::Internal("internal error: the volume found by name is missing".into())
                    .into())
            }
        }
    }

    /// Creates the volume, and resizes it if it was restored from a smaller snapshot.
    async fn create_new(&self, name: &str, wanted: &NewVolume) -> Result<api::Volume, CreateError> {
        let snapshot = match &wanted.source {
            Some(VolumeContentSource::Snapshot(id)) => Some(self.snapshot_to_restore(id).await?),
            Some(VolumeContentSource::Volume(_)) => {
                return Err(CreateError::Invalid(
                    "cloning a volume from another volume is not supported".into(),
                ));
            }
            None => None,
        };
        let gib = size::choose(wanted.size, snapshot.as_ref().map_or(0, |snapshot| snapshot.min_disk_size))?;
        let new = api::NewVolume {
            name: name.to_owned(),
            region: self.region.clone(),
            size_gigabytes: gib,
            description: DESCRIPTION.to_owned(),
            snapshot_id: snapshot.map(|snapshot| snapshot.id),
            tags: self.tags(),
        };
        let volume = match self.client.create_volume(&new).await {
            Ok(volume) => volume,
            // The volume may exist: from this call, or from an earlier one that the first search did not show yet.
            Err(error) if error.uncertain() || error.kind() == ApiErrorKind::Conflict => {
                let found = self.find_by_name(name).await?;
                return match plan(&found, wanted)? {
                    Plan::Create => Err(errors::create(error)),
                    existing => self.use_existing(found, existing).await,
                };
            }
            Err(error) => return Err(errors::create(error)),
        };
        self.cache.invalidate_volumes();
        if volume.size_gigabytes >= gib {
            return Ok(volume);
        }
        self.grow(&volume, gib).await
    }

    /// Resizes a restored volume. A retry would also do it; but if the limit is reached, the caller may give up, so the
    /// volume is deleted first.
    async fn grow(&self, volume: &api::Volume, gib: u64) -> Result<api::Volume, CreateError> {
        match self.attachments.resize(&volume.id, gib).await.map_err(errors::grow) {
            Err(CreateError::Exhausted(reason)) => Err(self.undo(volume, reason).await),
            grown => grown,
        }
    }

    /// The snapshot to restore; it must be in the driver's region.
    async fn snapshot_to_restore(&self, id: &str) -> Result<api::Snapshot, CreateError> {
        let snapshot = self.client.snapshot(id).await.map_err(errors::lookup)?;
        let snapshot = snapshot.ok_or_else(|| CreateError::NotFound(format!("there is no snapshot {id}")))?;
        match snapshot.regions.contains(&self.region) {
            true => Ok(snapshot),
            false => Err(CreateError::Exhausted(format!(
                "snapshot {id} is in {}, but volumes are created in {}",
                snapshot.regions.join(", "),
                self.region
            ))),
        }
    }

    /// Deletes a volume that this call or an earlier one created but never returned. The create fails finally only if
    /// that succeeds.
    async fn undo(&self, volume: &api::Volume, reason: String) -> CreateError {
        let left = |obstacle: String| {
            CreateError::Backend(BackendError::Unavailable(format!(
                "{reason}; volume {} (id {}) was not deleted: {obstacle}",
                volume.name, volume.id
            )))
        };
        if !is_unused(volume) {
            return left("it was created by another client, or is attached".to_owned());
        }
        let deleted = self.client.delete_volume(&volume.id).await;
        self.cache.invalidate_volumes();
        match deleted {
            Ok(()) => CreateError::Exhausted(reason),
            Err(error) => left(error.to_string()),
        }
    }
}
