//! Create, delete, expand.
//!
//! A create is safe to repeat whatever became of the one before: the volume is looked for by its name first, and
//! again after a call that may have had its effect. The API lets no name be used twice in a region.
//!
//! An orchestrator that gets a final error forgets the name, and with it the volume. So a create fails for good only
//! where it is known that there is no volume (or that it is somebody else's); all else is UNAVAILABLE, and repeated.

use std::collections::BTreeMap;

use async_trait::async_trait;
use wharf_driver::backend::{
    BackendError, Capability, CreateError, DeleteError, ExpandError, Expanded, Expansion, NewVolume, Secrets,
    SizeRange, Source, Volume, VolumeAccess, Volumes,
};

use super::plan::{Plan, is_reachable, is_unused, plan};
use super::{Controller, described, parameters};
use crate::client::Kind;
use crate::names::{DESCRIPTION, volume_name};
use crate::size::{self, bytes};
use crate::{api, fault};

#[async_trait]
impl Volumes for Controller {
    async fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError> {
        if !is_reachable(&self.region, &wanted.requisite) {
            return Err(CreateError::Exhausted(format!(
                "volumes are made in region {}, and none of the places where this one must be is there",
                self.region
            )));
        }
        let context = parameters::context_of(&wanted.parameters, &wanted.capabilities)?;
        let name = volume_name(&wanted.name);
        let found = self.named(&name).await?;
        let volume = match plan(&found, wanted)? {
            Plan::Make => self.make(&name, wanted).await?,
            found_so => self.found(found, found_so).await?,
        };
        Ok(Volume { context, source: wanted.source.clone(), ..described(&volume) })
    }

    async fn delete(&self, id: &str, _secrets: &Secrets) -> Result<(), DeleteError> {
        let deleted = self.client.delete_volume(id).await.map_err(fault::delete);
        self.recent.forget_volumes();
        deleted
    }

    async fn get(&self, id: &str) -> Result<Option<Volume>, BackendError> {
        Ok(self.client.volume(id).await?.as_ref().map(described))
    }

    fn refuses(&self, _volume: Option<&Volume>, capability: &Capability) -> Option<String> {
        if !capability.mode.is_single_node() {
            return Some(format!(
                "{:?} is not possible: a DigitalOcean volume is attached to one droplet at a time",
                capability.mode
            ));
        }
        match &capability.access {
            VolumeAccess::Mount { fs_type, .. } if !["", "ext4", "xfs"].contains(&fs_type.as_str()) => {
                Some(format!("file system {fs_type:?} is not possible: use ext4 or xfs"))
            }
            VolumeAccess::Mount { .. } | VolumeAccess::Block => None,
        }
    }

    fn refuses_parameters(&self, _parameters: &BTreeMap<String, String>) -> Option<String> {
        None
    }
}

#[async_trait]
impl Expansion for Controller {
    async fn expand(
        &self,
        id: &str,
        range: SizeRange,
        used_as: Option<&Capability>,
    ) -> Result<Expanded, ExpandError> {
        let volume = self.client.volume(id).await.map_err(BackendError::from)?;
        let volume = volume.ok_or_else(|| ExpandError::NotFound(format!("there is no volume {id}")))?;
        let gib = size::choose(range, volume.size_gigabytes)?;
        let volume = match gib > volume.size_gigabytes {
            true => self.attachments.resize(id, gib).await.map_err(fault::expand)?,
            false => volume,
        };
        let raw = used_as.is_some_and(|capability| capability.access == VolumeAccess::Block);
        Ok(Expanded { capacity: bytes(volume.size_gigabytes), node_expansion: !raw })
    }

    fn online(&self) -> bool {
        true
    }
}

impl Controller {
    /// What an earlier call may have made. Who cannot see that does not know that there is nothing.
    async fn named(&self, name: &str) -> Result<Vec<api::Volume>, BackendError> {
        self.client.volumes_named(name, &self.region).await.map_err(fault::unseen)
    }

    /// A volume that is there, as the plan has it.
    async fn found(&self, found: Vec<api::Volume>, plan: Plan) -> Result<api::Volume, CreateError> {
        match (plan, found.into_iter().next()) {
            (Plan::Take, Some(volume)) => Ok(volume),
            (Plan::Grow(gib), Some(volume)) => self.grow(&volume, gib).await,
            // Not ours to take back: without room it is waited for.
            (Plan::RoundUp(gib), Some(volume)) => {
                let grown = self.attachments.resize(&volume.id, gib).await;
                grown.map_err(|error| match fault::grow(error) {
                    CreateError::Exhausted(why) => BackendError::Unavailable(why).into(),
                    other => other,
                })
            }
            (Plan::Differs(why), _) => Err(CreateError::Exists(why)),
            (Plan::Doubled(count), _) => {
                let why = format!(
                    "{count} volumes in {} have the same name, which cannot be; delete those that are not needed",
                    self.region
                );
                Err(BackendError::Unavailable(why).into())
            }
            (Plan::Make | Plan::Take | Plan::Grow(_) | Plan::RoundUp(_), _) => {
                Err(BackendError::Internal("a volume that was found is not there; this is a bug".into())
                    .into())
            }
        }
    }

    /// Makes a volume that is not there, and lets it grow if it was restored smaller.
    async fn make(&self, name: &str, wanted: &NewVolume) -> Result<api::Volume, CreateError> {
        let snapshot = match &wanted.source {
            Some(Source::Snapshot(id)) => Some(self.restorable(id).await?),
            Some(Source::Volume(_)) => {
                return Err(CreateError::Invalid("a volume cannot be copied from another volume".into()));
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
            // It may be there: by this call, or by one before it that the first look did not see yet.
            Err(error) if error.uncertain() || error.kind() == Kind::Conflict => {
                let found = self.named(name).await?;
                return match plan(&found, wanted)? {
                    Plan::Make => Err(fault::create(error)),
                    found_so => self.found(found, found_so).await,
                };
            }
            Err(error) => return Err(fault::create(error)),
        };
        self.recent.forget_volumes();
        if volume.size_gigabytes >= gib {
            return Ok(volume);
        }
        self.grow(&volume, gib).await
    }

    /// Lets a volume that was restored grow. The same call again would do it; but where there is no room, the caller
    /// may want to hear of it and give up, so nothing may be left then.
    async fn grow(&self, volume: &api::Volume, gib: u64) -> Result<api::Volume, CreateError> {
        match self.attachments.resize(&volume.id, gib).await.map_err(fault::grow) {
            Err(CreateError::Exhausted(why)) => Err(self.undo(volume, why).await),
            grown => grown,
        }
    }

    /// The snapshot to restore; it must be in our region.
    async fn restorable(&self, id: &str) -> Result<api::Snapshot, CreateError> {
        let snapshot = self.client.snapshot(id).await.map_err(fault::unseen)?;
        let snapshot = snapshot.ok_or_else(|| CreateError::NotFound(format!("there is no snapshot {id}")))?;
        match snapshot.regions.contains(&self.region) {
            true => Ok(snapshot),
            false => Err(CreateError::Exhausted(format!(
                "snapshot {id} is in {}, and volumes are made in {}",
                snapshot.regions.join(", "),
                self.region
            ))),
        }
    }

    /// Deletes what this call, or one before it, made and nobody has been told of. Only if it is gone is the create
    /// at its end.
    async fn undo(&self, volume: &api::Volume, why: String) -> CreateError {
        let left = |reason: String| {
            CreateError::Backend(BackendError::Unavailable(format!(
                "{why}; volume {} (id {}) was not taken back: {reason}",
                volume.name, volume.id
            )))
        };
        if !is_unused(volume) {
            return left("somebody else made it, or uses it".to_owned());
        }
        let deleted = self.client.delete_volume(&volume.id).await;
        self.recent.forget_volumes();
        match deleted {
            Ok(()) => CreateError::Exhausted(why),
            Err(error) => left(error.to_string()),
        }
    }
}
