//! Recovery at startup: finishes or undoes interrupted operations. The order allows every step to be interrupted
//! again: freezes first, because writers are blocked; then groups with their members; then single objects; then
//! leftovers.

use std::path::Path;

use super::PoolCore;
use super::load::Leftover;
use crate::fault::Fault;
use crate::record::{FreezeRecord, GroupState, Phase};
use crate::store::{self, Store};

impl PoolCore {
    /// Restores a consistent pool. Interrupted copies are only queued again.
    pub(super) fn recover(&self, leftovers: &[Leftover]) -> wharf_linux::Result<()> {
        thaw_interrupted(&self.store, Unseen::Drop)?;
        self.sync_records();
        self.secure_published()?;
        let unfinished = |state| matches!(state, GroupState::Creating | GroupState::Deleting);
        let groups: Vec<_> = self.index().groups().filter(|group| unfinished(group.state)).cloned().collect();
        for group in groups {
            tracing::warn!(group_snapshot = group.id, state = ?group.state, "undoing an unfinished group snapshot");
            self.undo_group(group).map_err(source_of)?;
        }
        let (mut undo, mut copies) = (Vec::new(), Vec::new());
        {
            let index = self.index();
            let volumes = index.volumes().map(|record| (&record.id, record.state));
            let snapshots = index.snapshots().map(|record| (&record.id, record.state));
            for (id, state) in volumes.chain(snapshots) {
                match state {
                    Phase::Creating => undo.push(id.clone()),
                    Phase::Copying { .. } => copies.push(id.clone()),
                    Phase::Ready => {}
                }
            }
        }
        for id in undo {
            tracing::warn!(id, "undoing an unfinished creation");
            self.discard(&id).map_err(source_of)?;
        }
        let growing: Vec<_> =
            self.index().volumes().filter(|record| record.growing_to.is_some()).cloned().collect();
        for record in growing {
            // One volume that cannot be expanded must not prevent the driver from serving the others.
            if let Err(error) = self.finish_growth(record.clone()) {
                tracing::error!(volume_handle = record.id, %error, "failed to finish or undo an expansion");
            }
        }
        self.reserve_records();
        for id in copies {
            tracing::info!(id, "resuming copy");
            self.copies.enqueue(&id);
        }
        for leftover in leftovers {
            self.remove_leftover(leftover)?;
        }
        Ok(())
    }

    /// Before the first change of a record: an earlier driver may have been killed between an exchange of the record with its
    /// spare and the sync of the directory. On the disk the spare is then still the record, and a power cut while the next
    /// change overwrites it would damage the record.
    fn sync_records(&self) {
        let ids: Vec<_> = self.index().volumes().map(|record| record.id.clone()).collect();
        for id in ids {
            if let Err(error) = self.store.sync(&store::dir_of(&id)) {
                tracing::warn!(volume_handle = id, %error, "failed to sync the directory of a record");
            }
        }
    }

    /// Reserves blocks for records that have none: those of earlier versions, or after a crash.
    fn reserve_records(&self) {
        let volumes: Vec<_> = self.index().volumes().cloned().collect();
        for record in volumes {
            if let Err(error) = self.reserve_record(&record) {
                tracing::warn!(volume_handle = record.id, %error, "failed to reserve blocks for a record; the next start retries");
            }
        }
    }

    fn remove_leftover(&self, leftover: &Leftover) -> wharf_linux::Result<()> {
        match leftover {
            Leftover::File(path) => self.store.remove_file(path),
            // It may have been moved to the trash, or it held an unfinished write that is already removed.
            Leftover::Dir(path) => self.kernel().remove_dir(&self.store.at(path)),
        }
    }
}

/// Mount points in the freeze record that are not mounted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unseen {
    /// For the driver, which sees all mounts that it made: they have been unmounted.
    Drop,
    /// For another process: they may be in the mount namespace of the driver.
    Keep,
}

/// Thaws what a driver left frozen when it crashed together with its freeze helper. Returns whether there was something to
/// thaw.
pub(super) fn thaw_interrupted(store: &Store, unseen: Unseen) -> wharf_linux::Result<bool> {
    let path = Path::new(store::FREEZE);
    let record: FreezeRecord = match store.load(path, None) {
        Ok(None) => return Ok(false),
        Ok(Some(record)) => record,
        Err(error) => {
            tracing::error!(%error, "failed to read the freeze record: check for blocked writers");
            return Ok(false);
        }
    };
    let table = store.kernel.mount_table()?;
    let (mut found, mut left) = (false, Vec::new());
    for mount_point in &record.mount_points {
        if table.at(mount_point).is_none() {
            left.extend((unseen == Unseen::Keep).then(|| mount_point.clone()));
            continue;
        }
        found = true;
        match store.kernel.thaw(mount_point) {
            Ok(()) => {
                tracing::warn!(mount_point = %mount_point.display(), "thawed file system after a crash")
            }
            Err(error) => {
                tracing::error!(%error, "failed to thaw file system: run fsfreeze --unfreeze on it");
                left.push(mount_point.clone());
            }
        }
    }
    // Keep the record of what may still be frozen.
    match left.as_slice() {
        [] => store.remove_file(path)?,
        left if left.len() == record.mount_points.len() => {}
        _ => {
            // A full pool may have no block for it. The longer record does no harm: what is not frozen cannot be thawed.
            if let Err(error) = store.save(path, &FreezeRecord { mount_points: left, ..record }) {
                tracing::warn!(%error, "failed to shorten the freeze record");
            }
        }
    }
    Ok(found)
}

fn source_of(fault: Fault) -> wharf_linux::Error {
    *fault.source
}
