//! Expanding a volume: write the target size to the record, grow the image, then write the new size to the record.
//! Always in this order. An image never shrinks, except to undo a failed expansion.

use wharf_driver::backend::{ExpandError, ExpandedVolume, SizeRange};

use super::PoolCore;
use super::space::Refusal;
use crate::account::{Demand, REMEDY};
use crate::fault::{During as _, Fault};
use crate::record::{Provisioning, VolumeRecord};
use crate::{plan, size, store};

impl PoolCore {
    /// Expands a volume to at least `range.required`. Succeeds if it is already large enough.
    pub fn expand(&self, id: &str, range: SizeRange) -> Result<ExpandedVolume, ExpandError> {
        let missing = || ExpandError::NotFound(format!("there is no volume {id}"));
        if self.ready_volume(id)?.is_none() {
            return Err(missing());
        }
        let _lock = self.locks.exclusive(id)?;
        let mut record = self.ready_volume(id)?.ok_or_else(missing)?;
        if record.growing_to.is_some() {
            record = self.finish_growth(record)?;
        }
        let wanted = size::of_expansion(range, record.size, plan::minimum_grown(&record.format))
            .map_err(|error| ExpandError::OutOfRange(format!("{id}: {error}")))?;
        if wanted > record.size {
            self.refuse_copy_source(id).map_err(ExpandError::InUse)?;
            self.reserve_growth(&mut record, wanted)?;
            if let Err(fault) = self.save_volume(record.clone()) {
                self.index().put_volume(VolumeRecord { growing_to: None, ..record });
                return Err(fault.into());
            }
            record = self.finish_growth(record)?;
            if record.size < wanted {
                let message = format!(
                    "{id}: the pool has no space for {wanted} bytes, the volume keeps its {} bytes: {REMEDY}",
                    record.size
                );
                return Err(ExpandError::Exhausted(message));
            }
            if let Some(requested) = size::rounded_up_from(range, wanted) {
                record.requested = Some(requested);
                self.save_volume(record.clone())?;
            }
            tracing::info!(volume_handle = id, size = record.size, "expanded volume");
        }
        // Also if it was large enough before: the node may not have applied that yet.
        Ok(ExpandedVolume { capacity: record.size, node_expansion_required: true })
    }

    /// Reserves the additional space in the index if the pool has it.
    fn reserve_growth(&self, record: &mut VolumeRecord, wanted: u64) -> Result<(), ExpandError> {
        let more = wanted - record.size;
        let demand = match record.provisioning {
            Provisioning::Thin => Demand { thin: more, ..Demand::default() },
            Provisioning::Thick => Demand { thick: more, ..Demand::default() },
        };
        let grown = VolumeRecord { growing_to: Some(wanted), ..record.clone() };
        self.admit(|| Ok(demand), |index| index.put_volume(grown.clone())).map_err(
            |refusal| match refusal {
                Refusal::Exhausted(reason) => ExpandError::Exhausted(format!("{}: {reason}", record.id)),
                Refusal::Fault(fault) => fault.into(),
            },
        )?;
        *record = grown;
        Ok(())
    }

    /// Finishes a recorded expansion, or undoes it if the pool is out of space. Returns the updated record.
    pub(super) fn finish_growth(&self, record: VolumeRecord) -> Result<VolumeRecord, Fault> {
        let Some(wanted) = record.growing_to else { return Ok(record) };
        let grown = match self.grow_image(&record, wanted) {
            Ok(()) => VolumeRecord { size: wanted, requested: None, growing_to: None, ..record },
            Err(fault) if fault.is_full() => {
                // No device has used the added space: devices are refreshed only after this has succeeded.
                let path = store::image_of(&record.id);
                self.kernel()
                    .set_size(&self.store.at(&path), record.size)
                    .during("undo its growth", &record.id)?;
                VolumeRecord { growing_to: None, ..record }
            }
            Err(fault) => return Err(fault),
        };
        self.save_volume(grown.clone())?;
        Ok(grown)
    }

    fn grow_image(&self, record: &VolumeRecord, wanted: u64) -> Result<(), Fault> {
        let id = &record.id;
        let path = store::image_of(id);
        let image = self.store.at(&path);
        let stat = self.store.stat(&path).during("stat its image", id)?;
        // Fail closed: set_size would create an image of zeroes if none exists, and truncate a larger one.
        let own = stat.filter(|stat| Some(stat.id.inode) == record.image_inode && stat.size <= wanted);
        if own.is_none_or(|stat| stat.size < record.size) {
            let reason = "is not the image that its record describes: run wharf local check".to_owned();
            let source = Box::new(wharf_linux::Error::InvalidState { path: image.display(), reason });
            return Err(Fault { object: id.clone(), step: "grow its image", source });
        }
        self.kernel().set_size(&image, wanted).during("grow its image", id)?;
        if record.provisioning == Provisioning::Thick {
            self.kernel().allocate(&image, wanted).during("reserve its blocks", id)?;
        }
        self.store.sync(&path).during("make its growth durable", id)
    }
}
