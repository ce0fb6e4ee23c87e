//! Creating and deleting volumes.

use wharf_driver::backend::{
    AvailableCapacity, BackendError, Capability, CapacityQuery, CreateError, DeleteError, FormatState,
    ListPage, NewVolume, Volume, VolumeContentSource,
};
use wharf_linux::random_uuid;

use super::PoolCore;
use super::reflink::ReflinkCopy;
use super::space::Refusal;
use crate::account::Demand;
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::locks::VolumeLock;
use crate::parameters::{self, MKFS_OPTIONS, Parameters};
use crate::record::{Access, Phase, Provisioning, Timestamp, VERSION, VolumeRecord};
use crate::{plan, size, store};

/// The source of a new volume, locked against changes.
struct CopySource<'a> {
    id: String,
    size: u64,
    format: FormatState,
    /// The record of a volume; `None` for a snapshot.
    volume: Option<VolumeRecord>,
    _lock: VolumeLock<'a>,
}

impl PoolCore {
    /// Creates a volume. Idempotent: an existing volume with this name is returned if it satisfies the request.
    pub fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError> {
        let id = ids::derive(Kind::Volume, &wanted.name);
        let parameters = parameters::of_volume(&wanted.parameters)
            .map_err(|error| CreateError::Invalid(error.to_string()))?;
        let _lock = self.locks.exclusive(&id)?;
        self.check_identity()?;
        self.refuse_broken(&id)?;
        if let Some(failure) = self.copies.take_failure(&id) {
            return Err(failure.into());
        }
        let existing = self.index().volume(&id).cloned();
        match existing {
            // An earlier attempt that failed and could not be undone.
            Some(VolumeRecord { state: Phase::Creating, .. }) => self.discard(&id)?,
            Some(record) => {
                return match plan::incompatibility(&record, wanted, &parameters) {
                    Some(difference) => Err(CreateError::Exists(difference)),
                    None => self.wait_for_volume(&id),
                };
            }
            None => {}
        }
        if !plan::satisfies_topology(&wanted.requisite, &self.config.node_id) {
            return Err(CreateError::Exhausted(format!(
                "volumes of this pool can only be on node {}",
                self.config.node_id
            )));
        }
        let origin = wanted.source.as_ref().map(|source| self.lock_source(source)).transpose()?;
        let record = new_record(&id, wanted, parameters, origin.as_ref())?;
        self.reserve(&record, origin.as_ref())?;
        if let Err(error) = self.create_image(record, origin.as_ref()) {
            if let Err(fault) = self.discard(&id) {
                tracing::error!(volume_handle = id, error = %fault, "failed to undo an incomplete volume; the next call or start retries");
            }
            return Err(error);
        }
        drop(origin);
        self.wait_for_volume(&id)
    }

    /// Validates and locks the source to copy from.
    fn lock_source(&self, source: &VolumeContentSource) -> Result<CopySource<'_>, CreateError> {
        match source {
            VolumeContentSource::Snapshot(id) => {
                let missing = || CreateError::NotFound(format!("there is no snapshot {id}"));
                let (_lock, record) = self.lock_ready_snapshot(id)?.ok_or_else(missing)?;
                let stat = self.store.stat(&store::image_of(id)).during("stat its image", id)?;
                self.verify_image(id, stat, record.image_inode, record.size)
                    .map_err(CreateError::Precondition)?;
                Ok(CopySource {
                    id: record.id,
                    size: record.size,
                    format: record.format,
                    volume: None,
                    _lock,
                })
            }
            VolumeContentSource::Volume(id) => {
                let missing = || CreateError::NotFound(format!("there is no volume {id}"));
                if self.ready_volume(id)?.is_none() {
                    return Err(missing());
                }
                let _lock = self.locks.shared(id)?;
                let record = self.ready_volume(id)?.ok_or_else(missing)?;
                self.refuse_formatting(&record)?;
                let stat = self.store.stat(&store::image_of(id)).during("stat its image", id)?;
                self.verify_image(id, stat, record.image_inode, record.size)
                    .map_err(CreateError::Precondition)?;
                if !self.reflink && !self.loop_devices_of(&record)?.is_empty() {
                    return Err(CreateError::Precondition(cannot_copy_in_use(id)));
                }
                Ok(CopySource {
                    id: record.id.clone(),
                    size: record.size,
                    format: record.format.clone(),
                    volume: Some(record),
                    _lock,
                })
            }
        }
    }

    /// Adds the volume to the index if the pool has space for it, so that the space is not promised twice.
    fn reserve(&self, record: &VolumeRecord, origin: Option<&CopySource<'_>>) -> Result<(), CreateError> {
        let demand = || {
            let now = match origin.filter(|_| !self.reflink) {
                Some(origin) => self.allocated(&origin.id)?,
                None => 0,
            };
            Ok(match record.provisioning {
                Provisioning::Thin => Demand { thin: record.size, now, ..Demand::default() },
                Provisioning::Thick => Demand { thick: record.size, now, ..Demand::default() },
            })
        };
        self.admit(demand, |index| index.put_volume(record.clone())).map_err(|refusal| match refusal {
            Refusal::Exhausted(reason) => CreateError::Exhausted(reason),
            Refusal::Fault(fault) => fault.into(),
        })
    }

    /// Bytes allocated to an image.
    pub(super) fn allocated(&self, id: &str) -> Result<u64, Fault> {
        let stat = self.store.stat(&store::image_of(id)).during("stat its image", id)?;
        Ok(stat.map_or(0, |stat| stat.allocated))
    }

    fn create_image(
        &self,
        mut record: VolumeRecord,
        origin: Option<&CopySource<'_>>,
    ) -> Result<(), CreateError> {
        let id = record.id.clone();
        let path = store::image_of(&id);
        let image = self.store.at(&path);
        self.create_dir(&id)?;
        self.save_volume(record.clone())?;
        self.reserve_record(&record)?;
        match origin {
            Some(origin) if self.reflink => match &origin.volume {
                // A crash-consistent copy is logged; its log or journal is replayed when it gets its UUID.
                Some(source) => drop(self.reflink_all(&[ReflinkCopy { source, target: &id }])?),
                None => self.reflink(&origin.id, &id)?,
            },
            Some(_) | None => {}
        }
        self.kernel().set_size(&image, record.size).during("set its size", &id)?;
        if record.provisioning == Provisioning::Thick {
            self.kernel().allocate(&image, record.size).during("reserve its blocks", &id)?;
        }
        record.image_inode = Some(self.persist_image(&id)?);
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

    /// Returns the volume once its copy is done; waits up to `COPY_WAIT` for it.
    fn wait_for_volume(&self, id: &str) -> Result<Volume, CreateError> {
        self.enqueue_and_wait(&[id]);
        if let Some(failure) = self.copies.take_failure(id) {
            return Err(failure.into());
        }
        let ready = self.index().volume(id).filter(|record| record.state == Phase::Ready).cloned();
        match ready {
            Some(record) => Ok(self.volume(&record)),
            None => Err(BackendError::Busy(format!("{}: retry", self.progress(id))).into()),
        }
    }

    /// Deletes a volume. Succeeds if it does not exist.
    pub fn delete(&self, id: &str) -> Result<(), DeleteError> {
        if !ids::is(Kind::Volume, id) {
            return Ok(());
        }
        self.check_identity()?;
        self.refuse_broken(id)?;
        if self.index().volume(id).is_none() {
            return Ok(());
        }
        let _lock = self.locks.exclusive(id)?;
        if !self.copies.cancel(id) {
            return Err(BackendError::Busy(format!("{}: retry", self.progress(id))).into());
        }
        let Some(record) = self.index().volume(id).cloned() else { return Ok(()) };
        if let Some(attachment) = &record.attached {
            return Err(DeleteError::InUse(format!("{id} is attached to node {}", attachment.node)));
        }
        self.refuse_copy_source(id).map_err(DeleteError::InUse)?;
        if let Some(device) = self.loop_devices_of(&record)?.first() {
            let device = device.path.display();
            return Err(DeleteError::InUse(format!(
                "{id} is in use (as {device}): unpublish and unstage it first"
            )));
        }
        self.discard(id)?;
        tracing::info!(volume_handle = id, "deleted volume");
        Ok(())
    }

    /// Refuses to change the source of a running copy.
    pub(super) fn refuse_copy_source(&self, id: &str) -> Result<(), String> {
        let copy = self.index().copy_reading(id).map(str::to_owned);
        match copy {
            Some(copy) => Err(format!(
                "{}: {id} must not change until then (delete {copy} to abandon the copy)",
                self.progress(&copy)
            )),
            None => Ok(()),
        }
    }

    /// One volume, if it is ready.
    pub fn get(&self, id: &str) -> Result<Option<Volume>, BackendError> {
        Ok(self.ready_volume(id)?.map(|record| self.volume(&record)))
    }

    /// At most `max` volumes whose id is greater than `after`.
    pub fn list(&self, after: Option<&str>, max: usize) -> ListPage<Volume> {
        let index = self.index();
        let mut ready = index.volumes_after(after).filter(|record| record.state == Phase::Ready);
        let entries = ready.by_ref().take(max).map(|record| self.volume(record)).collect();
        ListPage { entries, more: ready.next().is_some() }
    }

    /// Why this volume, or any volume if `id` is `None`, does not support this capability.
    pub fn refuses(&self, id: Option<&str>, capability: &Capability) -> Option<String> {
        plan::refuses(capability).or_else(|| {
            let index = self.index();
            let record = index.volume(id?)?;
            plan::refuses_for(record, capability)
        })
    }

    /// What can still be provisioned.
    pub fn capacity(&self, query: &CapacityQuery) -> Result<AvailableCapacity, BackendError> {
        let CapacityQuery { parameters, capabilities, topology, .. } = query;
        let elsewhere = topology.as_ref().is_some_and(|term| !plan::matches_node(term, &self.config.node_id));
        let possible =
            parameters::of_volume(parameters).ok().zip(plan::resolve_access(capabilities, None).ok());
        let Some((parameters, access)) = possible.filter(|_| !elsewhere) else {
            return Ok(AvailableCapacity { available: 0, maximum_volume: Some(0), minimum_volume: None });
        };
        self.check_identity()?;
        let account = self.account()?;
        let available = match parameters.provisioning {
            Provisioning::Thin => account.thin,
            Provisioning::Thick => account.thick,
        };
        let minimum = plan::minimum_size(&access).max(size::UNIT);
        Ok(AvailableCapacity { available, maximum_volume: Some(available), minimum_volume: Some(minimum) })
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

/// The error for copying a volume in use on a pool without reflinks.
pub(super) fn cannot_copy_in_use(id: &str) -> String {
    format!(
        "{id} is in use, and this pool's file system does not support reflinks: copying a volume while it is being \
         written would give an inconsistent copy; stop its pods and retry, or use a pool on xfs or btrfs"
    )
}

fn new_record(
    id: &str,
    wanted: &NewVolume,
    parameters: Parameters,
    origin: Option<&CopySource<'_>>,
) -> Result<VolumeRecord, CreateError> {
    let invalid = CreateError::Invalid;
    let access =
        plan::resolve_access(&wanted.capabilities, origin.and_then(|origin| plan::fs_in(&origin.format)))
            .map_err(invalid)?;
    if let Some(fs) = plan::fs_of(&access) {
        wharf_linux::check_mkfs_options(fs, &parameters.mkfs_options).map_err(invalid)?;
    }
    let minimum = plan::minimum_size(&access);
    let size = match origin {
        None => size::of_new(wanted.size, minimum),
        Some(origin) => size::of_copy(wanted.size, minimum, origin.size, plan::minimum_grown(&origin.format)),
    };
    let size = size.map_err(|error| CreateError::OutOfRange(format!("volume {:?}: {error}", wanted.name)))?;
    Ok(VolumeRecord {
        version: VERSION,
        id: id.to_owned(),
        name: wanted.name.clone(),
        created: Timestamp::now(),
        state: Phase::Creating,
        size,
        requested: size::rounded_up_from(wanted.size, size),
        growing_to: None,
        provisioning: parameters.provisioning,
        format: format_of(origin, &access)?,
        access,
        mkfs_options: parameters.mkfs_options,
        source: wanted.source.clone(),
        image_inode: None,
        attached: None,
        growing_offline: false,
    })
}

fn format_of(origin: Option<&CopySource<'_>>, access: &[Access]) -> Result<FormatState, CreateError> {
    let Some(origin) = origin else { return Ok(FormatState::Blank) };
    let uuid = random_uuid().during("choose a UUID", &origin.id)?;
    plan::copied_format(&origin.format, access, uuid).map_err(|reason| {
        CreateError::Invalid(format!("{} cannot be the source of this volume: {reason}", origin.id))
    })
}
