//! What a start finishes or undoes, in an order in which each step may itself be cut short: freezes first,
//! because somebody waits; then groups, whose members go with them; then single objects; then remains.

use std::path::Path;

use super::Core;
use super::load::Leftover;
use crate::fault::Fault;
use crate::record::{FreezeRecord, GroupState, Phase};
use crate::store;

impl Core {
    /// Leaves the pool as if nothing had ever been cut short, except that copies are only queued again.
    pub(super) fn recover(&self, leftovers: &[Leftover]) -> wharf_linux::Result<()> {
        self.thaw_interrupted()?;
        let unfinished = |state| matches!(state, GroupState::Creating | GroupState::Deleting);
        let groups: Vec<_> = self.index().groups().filter(|group| unfinished(group.state)).cloned().collect();
        for group in groups {
            tracing::warn!(group = group.id, state = ?group.state, "undoing a group that was left unfinished");
            self.unmake_group(group).map_err(source_of)?;
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
            tracing::warn!(id, "undoing a creation that was left unfinished");
            self.discard(&id).map_err(source_of)?;
        }
        let growing: Vec<_> =
            self.index().volumes().filter(|record| record.growing_to.is_some()).cloned().collect();
        for record in growing {
            // One volume that cannot grow must not keep the others from being served.
            if let Err(error) = self.finish_growth(record.clone()) {
                tracing::error!(id = record.id, %error, "an expansion could be neither finished nor undone");
            }
        }
        for id in copies {
            tracing::info!(id, "resuming a copy");
            self.copies.enqueue(&id);
        }
        for leftover in leftovers {
            self.remove_leftover(leftover)?;
        }
        Ok(())
    }

    /// Whoever froze a file system and died together with its helper left this note.
    fn thaw_interrupted(&self) -> wharf_linux::Result<()> {
        let path = Path::new(store::FREEZE);
        let record: FreezeRecord = match self.store.load(path, None) {
            Ok(None) => return Ok(()),
            Ok(Some(record)) => record,
            Err(error) => {
                tracing::error!(%error, "a freeze was left, nobody knows of what: look for hanging writers");
                return Ok(());
            }
        };
        let table = self.kernel().mount_table()?;
        let mut all = true;
        for mount_point in record.mount_points.iter().filter(|path| table.at(path).is_some()) {
            match self.kernel().thaw(mount_point) {
                Ok(()) => tracing::warn!(mount_point = %mount_point.display(), "thawed after a crash"),
                Err(error) => {
                    tracing::error!(%error, "could not thaw: run fsfreeze --unfreeze on it");
                    all = false;
                }
            }
        }
        // The note stays for what is still frozen.
        if all { self.store.remove_file(path) } else { Ok(()) }
    }

    fn remove_leftover(&self, leftover: &Leftover) -> wharf_linux::Result<()> {
        match leftover {
            Leftover::File(path) => self.store.remove_file(path),
            // It may have been moved to the trash by now, or held an unfinished write that is gone.
            Leftover::Dir(path) => self.kernel().remove_dir(&self.store.at(path)),
        }
    }
}

fn source_of(fault: Fault) -> wharf_linux::Error {
    *fault.source
}
