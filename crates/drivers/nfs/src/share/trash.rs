//! The trash: deleted directories, purged in the background.
//!
//! `trash/<id>/data` is purged only if it is the directory that `trash/<id>/item.json` names. A directory that got there by
//! a race (see [`super::delete`]) has another file ID and stays.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::During as _;
use super::files::none_if_missing;
use super::record::{DirectoryIdentity, VERSION, to_bytes};
use super::root::own;
use super::{PurgeTrash, Share, ShareError};

/// Directories deeper than this are moved up before they are purged, so that the purge needs little memory.
const MAX_DEPTH: usize = 32;

/// Directories with a longer path are moved up as well: the kernel takes paths of up to 4095 bytes, and a name has up to 255.
const MAX_PATH: usize = 3072;

/// How often a directory is gone through to remove it in place: a copy has at most 2048 levels.
const ROUNDS: usize = 128;

/// What a trash entry holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrashItem {
    version: u32,
    file_id: u64,
}

impl Share {
    /// Prepares the trash entry of a directory. Can be repeated.
    pub(super) fn prepare_trash(&self, id: &str, identity: &DirectoryIdentity) -> Result<(), ShareError> {
        self.ensure_dir(&own(["trash", id]))?;
        let item = TrashItem { version: VERSION, file_id: identity.file_id };
        self.publish(&to_bytes(&item), &own(["trash", id, "item.json"])).map(drop)
    }

    /// Moves one of the driver's own directories to the trash; a missing one is success.
    pub(super) fn discard(&self, dir: &Path) -> Result<(), ShareError> {
        let Some(entry) = self.stat(dir)? else { return Ok(()) };
        // The usual case: nothing is left in it.
        if self.files.remove_dir(dir).is_ok() {
            return Ok(());
        }
        let id = self.new_id()?;
        self.prepare_trash(&id, &DirectoryIdentity { file_id: entry.file_id, xattr: None })?;
        let moved = none_if_missing(self.files.rename(dir, &trash_data(&id)));
        moved.map(drop).during("move to the trash", &dir.display().to_string())
    }

    /// Purges up to a number of entries. Returns whether nothing is left that can be purged.
    pub(super) fn purge_trash(&self, request: &PurgeTrash) -> Result<bool, ShareError> {
        let mut budget = request.max_entries;
        let (mut failed, mut purged) = (None, 0_u64);
        let mut complete = true;
        for id in self.names(&own(["trash"]))? {
            complete = budget > 0;
            if !complete {
                break;
            }
            match self.purge_item(&id, &mut budget) {
                Ok(true) => purged += 1,
                Ok(false) => complete = budget > 0,
                // The others can be purged all the same.
                Err(error) => {
                    tracing::warn!(trash = %id, %error, "failed to purge a deleted directory");
                    failed = Some(error);
                }
            }
        }
        if purged > 0 {
            tracing::info!(directories = purged, "purged deleted directories");
        }
        match failed {
            Some(error) if complete => Err(error),
            _ => Ok(complete),
        }
    }

    /// Purges one trash entry; true if it is gone.
    fn purge_item(&self, id: &str, budget: &mut u64) -> Result<bool, ShareError> {
        let entry = own(["trash", id]);
        let item_file = entry.join("item.json");
        let data = trash_data(id);
        let item = self.files.read(&item_file).during("read", id)?;
        let item: Option<TrashItem> = item.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut purged = false;
        if let Some(found) = self.stat(&data)? {
            if item.as_ref().map(|item| item.file_id) != Some(found.file_id) {
                tracing::warn!(trash = %id, "did not purge trash entry: it is not the directory that was deleted");
                return Ok(false);
            }
            // It became a share after it was deleted, or an earlier release deleted it.
            if self.is_share(&data).during("look for another share's records in", id)? {
                tracing::warn!(trash = %id, "trash entry has records of another share; not purged");
                return Ok(false);
            }
            if !self.purge_tree(&entry, &data, 0, budget)? {
                return Ok(false);
            }
            purged = true;
        }
        // What was too deep.
        for name in self.names(&entry)? {
            let deep = entry.join(&name);
            if name.starts_with("deep-") && !self.purge_tree(&entry, &deep, 0, budget)? {
                return Ok(false);
            }
        }
        // An entry without a directory is being prepared, unless it is old. Without its item, what arrives there later would
        // never be purged.
        if !purged && !self.is_abandoned(&entry, self.server_time()?)? {
            return Ok(false);
        }
        self.remove(&item_file)?;
        self.remove_own_dir(&entry)
    }

    /// Directories in the trash that are not what was deleted.
    pub(super) fn misplaced_trash(&self) -> Result<Vec<PathBuf>, ShareError> {
        let mut misplaced = Vec::new();
        for id in self.names(&own(["trash"]))? {
            let data = trash_data(&id);
            let Some(found) = self.stat(&data)? else { continue };
            let item = self.files.read(&own(["trash", &id, "item.json"])).during("read", &id)?;
            let item: Option<TrashItem> = item.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            if item.is_some_and(|item| item.file_id != found.file_id) {
                misplaced.push(data);
            }
        }
        Ok(misplaced)
    }

    /// Removes one of the driver's own directories in place; what other processes add meanwhile can stay.
    pub(super) fn remove_tree(&self, dir: &Path) -> Result<(), ShareError> {
        // Each round removes what the one before has moved up.
        for _ in 0..ROUNDS {
            let mut unlimited = u64::MAX;
            if self.purge_tree(dir, dir, 0, &mut unlimited)? {
                break;
            }
        }
        Ok(())
    }

    /// Removes a tree, itself included; false if something is left.
    fn purge_tree(
        &self,
        entry: &Path,
        dir: &Path,
        depth: usize,
        budget: &mut u64,
    ) -> Result<bool, ShareError> {
        let object = dir.display().to_string();
        let Some(removed) =
            none_if_missing(self.files.remove_entries(dir, *budget)).during("purge", &object)?
        else {
            return Ok(true);
        };
        *budget = budget.saturating_sub(removed.removed);
        self.tick();
        if removed.more {
            return Ok(false);
        }
        for name in removed.directories {
            if *budget == 0 {
                return Ok(false);
            }
            let child = dir.join(&name);
            if depth < MAX_DEPTH && child.as_os_str().len() < MAX_PATH {
                if !self.purge_tree(entry, &child, depth + 1, budget)? {
                    return Ok(false);
                }
            } else {
                let up = entry.join(format!("deep-{}", self.new_id()?));
                none_if_missing(self.files.rename(&child, &up)).during("purge", &object)?;
                *budget -= 1;
            }
        }
        *budget = budget.saturating_sub(1);
        self.remove_own_dir(dir)
    }

    /// Removes a directory; false if something is in it: an open file that the client renamed, or a new name.
    pub(super) fn remove_own_dir(&self, dir: &Path) -> Result<bool, ShareError> {
        match self.files.remove_dir(dir) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error).during("remove", &dir.display().to_string()),
        }
    }
}

/// The deleted directory of a trash entry.
pub(super) fn trash_data(id: &str) -> PathBuf {
    own(["trash", id, "data"])
}
