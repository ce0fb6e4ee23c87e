//! Growing a volume: the record says how large it is to become, then the image grows, then the record says
//! how large it is. Never the other way, and never smaller, except for what an expansion that failed added.

use wharf_driver::backend::{ExpandError, Expanded, SizeRange};

use super::Core;
use crate::fault::{During as _, Fault};
use crate::record::{Provisioning, VolumeRecord};
use crate::{capacity, plan, size, store};

impl Core {
    /// Grows a volume to at least `range.required`; large enough already is success.
    pub fn expand(&self, id: &str, range: SizeRange) -> Result<Expanded, ExpandError> {
        let missing = || ExpandError::NotFound(format!("there is no volume {id}"));
        if self.ready_volume(id)?.is_none() {
            return Err(missing());
        }
        let _claim = self.claims.exclusive(id)?;
        let mut record = self.ready_volume(id)?.ok_or_else(missing)?;
        if record.growing_to.is_some() {
            record = self.finish_growth(record)?;
        }
        let wanted = size::of_expansion(range, record.size, plan::minimum_grown(&record.format))
            .map_err(|error| ExpandError::OutOfRange(format!("{id}: {error}")))?;
        if wanted > record.size {
            self.refuse_copied(id).map_err(ExpandError::InUse)?;
            self.reserve_growth(&mut record, wanted)?;
            if let Err(fault) = self.save_volume(record.clone()) {
                self.index().put_volume(VolumeRecord { growing_to: None, ..record });
                return Err(fault.into());
            }
            record = self.finish_growth(record)?;
            if record.size < wanted {
                let message =
                    format!("{id}: the pool has no room for {wanted} bytes, it stays at {}", record.size);
                return Err(ExpandError::Exhausted(message));
            }
            tracing::info!(id, size = record.size, "expanded");
        }
        // Also when it is large enough already: the node may not have seen that yet.
        Ok(Expanded { capacity: record.size, node_expansion: true })
    }

    /// Enters the growth into the index if there is room for it.
    fn reserve_growth(&self, record: &mut VolumeRecord, wanted: u64) -> Result<(), ExpandError> {
        let usage = self.usage()?;
        let mut index = self.index();
        let room = self.room(&usage, index.committed());
        let more = wanted - record.size;
        let taken = if record.provisioning == Provisioning::Thick { more } else { 0 };
        capacity::admits(&room, more, taken)
            .map_err(|why| ExpandError::Exhausted(format!("{}: {why}", record.id)))?;
        record.growing_to = Some(wanted);
        index.put_volume(record.clone());
        Ok(())
    }

    /// Finishes a growth that its record promises, or, where the pool has no room, undoes it. Answers the
    /// record as it is then.
    pub(super) fn finish_growth(&self, record: VolumeRecord) -> Result<VolumeRecord, Fault> {
        let Some(wanted) = record.growing_to else { return Ok(record) };
        let grown = match self.grow_image(&record, wanted) {
            Ok(()) => VolumeRecord { size: wanted, growing_to: None, ..record },
            Err(fault) if fault.is_full() => {
                // What was added was never seen: a device only looks again after this has succeeded.
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
        let stat = self.store.stat(&path).during("look at its image", id)?;
        // Fail closed: set_size would make an image of zeroes where one is missing, and cut a larger one.
        let own = stat.filter(|stat| Some(stat.id.inode) == record.image_inode && stat.size <= wanted);
        if own.is_none_or(|stat| stat.size < record.size) {
            let reason = "is not the image that its record describes: see wharf local check".to_owned();
            let source = Box::new(wharf_linux::Error::State { path: image.display(), reason });
            return Err(Fault { object: id.clone(), step: "grow its image", source });
        }
        self.kernel().set_size(&image, wanted).during("grow its image", id)?;
        if record.provisioning == Provisioning::Thick {
            self.kernel().allocate(&image, wanted).during("reserve its blocks", id)?;
        }
        self.store.sync(&path).during("make its growth durable", id)
    }
}
