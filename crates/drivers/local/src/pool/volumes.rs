//! Making and deleting volumes.

use wharf_driver::backend::{
    BackendError, Capability, CapacityAnswer, CapacityQuery, CreateError, DeleteError, Format, NewVolume,
    Page, Source, Volume,
};
use wharf_linux::random_uuid;

use super::Core;
use super::cut::Cut;
use crate::capacity;
use crate::claims::Claim;
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::parameters::{self, MKFS_OPTIONS, Parameters};
use crate::record::{Access, Moment, Phase, Provisioning, VERSION, VolumeRecord};
use crate::{plan, size, store};

/// What a new volume is filled with, kept as it is meanwhile.
struct Origin<'a> {
    id: String,
    size: u64,
    format: Format,
    /// The record of a volume; `None` for a snapshot.
    volume: Option<VolumeRecord>,
    _claim: Claim<'a>,
}

impl Core {
    /// Makes a volume; the same name again is the same volume, if it satisfies the request.
    pub fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError> {
        let id = ids::derive(Kind::Volume, &wanted.name);
        let parameters = parameters::of_volume(&wanted.parameters)
            .map_err(|error| CreateError::Invalid(error.to_string()))?;
        let _claim = self.claims.exclusive(&id)?;
        self.refuse_broken(&id)?;
        if let Some(failure) = self.copies.take_failure(&id) {
            return Err(failure.into());
        }
        let existing = self.index().volume(&id).cloned();
        match existing {
            // An earlier attempt that could not even be undone.
            Some(VolumeRecord { state: Phase::Creating, .. }) => self.discard(&id)?,
            Some(record) => {
                return match plan::differs(&record, wanted, &parameters) {
                    Some(difference) => Err(CreateError::Exists(difference)),
                    None => self.settled_volume(&id),
                };
            }
            None => {}
        }
        if !plan::is_reachable(&wanted.requisite, &self.config.node_id) {
            return Err(CreateError::Exhausted(format!(
                "volumes of this pool can only be on node {}",
                self.config.node_id
            )));
        }
        let origin = wanted.source.as_ref().map(|source| self.origin(source)).transpose()?;
        let record = new_record(&id, wanted, parameters, origin.as_ref())?;
        self.reserve(&record, origin.as_ref())?;
        if let Err(error) = self.make_volume(record, origin.as_ref()) {
            if let Err(fault) = self.discard(&id) {
                tracing::error!(id, %fault, "a failed creation could not be undone; the next call or start will");
            }
            return Err(error);
        }
        drop(origin);
        self.settled_volume(&id)
    }

    /// What to copy from, and the right to.
    fn origin(&self, source: &Source) -> Result<Origin<'_>, CreateError> {
        match source {
            Source::Snapshot(id) => {
                let missing = || CreateError::NotFound(format!("there is no snapshot {id}"));
                self.refuse_broken(id)?;
                if self.index().snapshot(id).is_none() {
                    return Err(missing());
                }
                let _claim = self.claims.shared(id)?;
                let record = self.index().snapshot(id).cloned().ok_or_else(missing)?;
                if record.state != Phase::Ready {
                    let message = format!("{}: call again when it is ready", self.progress(id));
                    return Err(BackendError::Unavailable(message).into());
                }
                let stat = self.store.stat(&store::image_of(id)).during("look at its image", id)?;
                self.prove_image(id, stat, record.image_inode, record.size)
                    .map_err(CreateError::Precondition)?;
                Ok(Origin { id: record.id, size: record.size, format: record.format, volume: None, _claim })
            }
            Source::Volume(id) => {
                let missing = || CreateError::NotFound(format!("there is no volume {id}"));
                if self.ready_volume(id)?.is_none() {
                    return Err(missing());
                }
                let _claim = self.claims.shared(id)?;
                let record = self.ready_volume(id)?.ok_or_else(missing)?;
                self.must_be_settled(&record)?;
                let stat = self.store.stat(&store::image_of(id)).during("look at its image", id)?;
                self.prove_image(id, stat, record.image_inode, record.size)
                    .map_err(CreateError::Precondition)?;
                if !self.reflink && !self.loops_of(&record)?.is_empty() {
                    return Err(CreateError::Precondition(unsharable(id)));
                }
                Ok(Origin {
                    id: record.id.clone(),
                    size: record.size,
                    format: record.format.clone(),
                    volume: Some(record),
                    _claim,
                })
            }
        }
    }

    /// Enters the volume into the index if there is room for it, so that nobody else is promised the same.
    fn reserve(&self, record: &VolumeRecord, origin: Option<&Origin<'_>>) -> Result<(), CreateError> {
        let usage = self.usage()?;
        let copied = match origin {
            Some(origin) if !self.reflink => self.allocated(&origin.id)?,
            _ => 0,
        };
        let mut index = self.index();
        let room = self.room(&usage, index.committed());
        let taken_now = if record.provisioning == Provisioning::Thick { record.size } else { copied };
        capacity::admits(&room, record.size, taken_now).map_err(CreateError::Exhausted)?;
        index.put_volume(record.clone());
        Ok(())
    }

    /// How many bytes an image occupies.
    pub(super) fn allocated(&self, id: &str) -> Result<u64, Fault> {
        let stat = self.store.stat(&store::image_of(id)).during("look at its image", id)?;
        Ok(stat.map_or(0, |stat| stat.allocated))
    }

    fn make_volume(&self, mut record: VolumeRecord, origin: Option<&Origin<'_>>) -> Result<(), CreateError> {
        let id = record.id.clone();
        let path = store::image_of(&id);
        let image = self.store.at(&path);
        self.make_dir(&id)?;
        self.save_volume(record.clone())?;
        match origin {
            Some(origin) if self.reflink => match &origin.volume {
                Some(source) => self.cut(&[Cut { source, target: &id }])?,
                None => self.reflink(&origin.id, &id)?,
            },
            Some(_) | None => {}
        }
        self.kernel().set_size(&image, record.size).during("set its size", &id)?;
        if record.provisioning == Provisioning::Thick {
            self.kernel().allocate(&image, record.size).during("reserve its blocks", &id)?;
        }
        record.image_inode = Some(self.seal(&id)?);
        match origin {
            Some(origin) if !self.reflink => {
                record.state = Phase::Copying { done: 0, total: origin.size };
                self.save_volume(record)?;
                self.copies.enqueue(&id);
            }
            Some(_) | None => {
                record.state = Phase::Ready;
                self.save_volume(record)?;
            }
        }
        Ok(())
    }

    /// The volume, once its copy is done; for a while it is waited for.
    fn settled_volume(&self, id: &str) -> Result<Volume, CreateError> {
        self.await_copies(&[id]);
        if let Some(failure) = self.copies.take_failure(id) {
            return Err(failure.into());
        }
        let ready = self.index().volume(id).filter(|record| record.state == Phase::Ready).cloned();
        match ready {
            Some(record) => Ok(self.volume(&record)),
            None => Err(BackendError::Busy(format!("{}: call again", self.progress(id))).into()),
        }
    }

    /// Deletes a volume; gone is success.
    pub fn delete(&self, id: &str) -> Result<(), DeleteError> {
        if !ids::is(Kind::Volume, id) {
            return Ok(());
        }
        self.refuse_broken(id)?;
        if self.index().volume(id).is_none() {
            return Ok(());
        }
        let _claim = self.claims.exclusive(id)?;
        if !self.copies.cancel(id) {
            return Err(BackendError::Busy(format!("{}: call again", self.progress(id))).into());
        }
        let Some(record) = self.index().volume(id).cloned() else { return Ok(()) };
        if let Some(attachment) = &record.attached {
            return Err(DeleteError::InUse(format!("{id} is attached to node {}", attachment.node)));
        }
        self.refuse_copied(id).map_err(DeleteError::InUse)?;
        if let Some(device) = self.loops_of(&record)?.first() {
            let device = device.path.display();
            return Err(DeleteError::InUse(format!(
                "{id} is in use (as {device}): unpublish and unstage it first"
            )));
        }
        self.discard(id)?;
        tracing::info!(id, "deleted");
        Ok(())
    }

    /// Refuses to touch what a copy is being made of.
    pub(super) fn refuse_copied(&self, id: &str) -> Result<(), String> {
        let copy = self.index().copy_from(id).map(str::to_owned);
        match copy {
            Some(copy) => Err(format!(
                "{}: {id} must stay as it is until then (deleting {copy} gives it up)",
                self.progress(&copy)
            )),
            None => Ok(()),
        }
    }

    /// One volume that is whole.
    pub fn get(&self, id: &str) -> Result<Option<Volume>, BackendError> {
        Ok(self.ready_volume(id)?.map(|record| self.volume(&record)))
    }

    /// At most `max` volumes whose id is greater than `after`.
    pub fn list(&self, after: Option<&str>, max: usize) -> Page<Volume> {
        let index = self.index();
        let mut ready = index.volumes_after(after).filter(|record| record.state == Phase::Ready);
        let entries = ready.by_ref().take(max).map(|record| self.volume(record)).collect();
        Page { entries, more: ready.next().is_some() }
    }

    /// Why a volume, or any volume, cannot be used in this way.
    pub fn refuses(&self, id: Option<&str>, capability: &Capability) -> Option<String> {
        plan::refuses(capability).or_else(|| {
            let index = self.index();
            let record = index.volume(id?)?;
            plan::refuses_for(record, capability)
        })
    }

    /// What can still be provisioned.
    pub fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer, BackendError> {
        let CapacityQuery { parameters, capabilities, topology } = query;
        let elsewhere = topology.as_ref().is_some_and(|term| !plan::is_here(term, &self.config.node_id));
        let possible = parameters::of_volume(parameters).ok().zip(plan::access(capabilities, None).ok());
        let Some((parameters, access)) = possible.filter(|_| !elsewhere) else {
            return Ok(CapacityAnswer { available: 0, maximum_volume: Some(0), minimum_volume: None });
        };
        let usage = self.usage()?;
        let room = self.room(&usage, self.index().committed());
        let available = match parameters.provisioning {
            Provisioning::Thin => room.thin,
            Provisioning::Thick => room.thick,
        };
        let minimum = plan::minimum(&access).max(size::UNIT);
        Ok(CapacityAnswer { available, maximum_volume: Some(available), minimum_volume: Some(minimum) })
    }

    fn volume(&self, record: &VolumeRecord) -> Volume {
        let options = (!record.mkfs_options.is_empty())
            .then(|| (MKFS_OPTIONS.to_owned(), record.mkfs_options.join(" ")));
        Volume {
            id: record.id.clone(),
            capacity: record.size,
            context: options.into_iter().collect(),
            source: record.source.clone(),
            topology: self.topology(),
            published_nodes: record.attached.iter().map(|attachment| attachment.node.clone()).collect(),
        }
    }
}

/// Why a volume in use is not copied where extents cannot be shared.
pub(super) fn unsharable(id: &str) -> String {
    format!(
        "{id} is in use, and this pool's file system cannot share extents: copying takes so long that the copy \
         of a volume that is being written would be torn; stop its pods and call again, or use a pool on xfs or btrfs"
    )
}

fn new_record(
    id: &str,
    wanted: &NewVolume,
    parameters: Parameters,
    origin: Option<&Origin<'_>>,
) -> Result<VolumeRecord, CreateError> {
    let invalid = CreateError::Invalid;
    let access = plan::access(&wanted.capabilities, origin.and_then(|origin| plan::fs_in(&origin.format)))
        .map_err(invalid)?;
    if let Some(fs) = plan::fs_of(&access) {
        wharf_linux::check_mkfs_options(fs, &parameters.mkfs_options).map_err(invalid)?;
    }
    let minimum = plan::minimum(&access);
    let size = match origin {
        None => size::of_new(wanted.size, minimum),
        Some(origin) => size::of_copy(wanted.size, minimum, origin.size, plan::minimum_grown(&origin.format)),
    };
    let size = size.map_err(|error| CreateError::OutOfRange(format!("volume {:?}: {error}", wanted.name)))?;
    Ok(VolumeRecord {
        version: VERSION,
        id: id.to_owned(),
        name: wanted.name.clone(),
        created: Moment::now(),
        state: Phase::Creating,
        size,
        growing_to: None,
        provisioning: parameters.provisioning,
        format: format_of(origin, &access)?,
        access,
        mkfs_options: parameters.mkfs_options,
        source: wanted.source.clone(),
        image_inode: None,
        attached: None,
    })
}

fn format_of(origin: Option<&Origin<'_>>, access: &[Access]) -> Result<Format, CreateError> {
    let Some(origin) = origin else { return Ok(Format::Blank) };
    let uuid = random_uuid().during("choose a UUID", &origin.id)?;
    plan::copied(&origin.format, access, uuid)
        .map_err(|why| CreateError::Invalid(format!("{} cannot be copied so: {why}", origin.id)))
}
