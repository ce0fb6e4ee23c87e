//! Listings. The API pages by position, in an order of its own, so that an entry can be missed or seen twice while
//! others come and go (and the existing driver's own positions are off by one at times, B8). Here all of it is
//! read, put in the order of ids, and kept for some seconds, so that the pages of one listing fit together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use wharf_driver::backend::{BackendError, Listing, Page, Volume};

use super::{Controller, described};
use crate::api;

/// How long a listing is good for its further pages.
const GOOD_FOR: Duration = Duration::from_secs(30);

/// Listings of late.
#[derive(Default)]
pub(super) struct Recent {
    volumes: Kept<api::Volume>,
    droplets: Kept<api::Droplet>,
    snapshots: Kept<api::Snapshot>,
}

struct Kept<T>(Mutex<Option<(Instant, Arc<[T]>)>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Kept<T> {
    fn get(&self) -> Option<Arc<[T]>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|(when, _)| when.elapsed() < GOOD_FOR).map(|(_, all)| all.clone())
    }

    fn set(&self, all: Option<Arc<[T]>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all.map(|all| (Instant::now(), all));
    }
}

impl Recent {
    /// After each change of ours: whoever asks next must see it.
    pub(super) fn forget_volumes(&self) {
        self.volumes.set(None);
        self.droplets.set(None);
    }

    pub(super) fn forget_snapshots(&self) {
        self.snapshots.set(None);
    }

    /// A volume as a listing of late has it.
    pub(super) fn volume(&self, id: &str) -> Option<api::Volume> {
        self.volumes.get()?.iter().find(|volume| volume.id == id).cloned()
    }
}

#[async_trait]
impl Listing for Controller {
    async fn list(&self, after: Option<&str>, max: usize) -> Result<Page<Volume>, BackendError> {
        let kept = self.recent.volumes.get().filter(|_| after.is_some());
        let all = match kept {
            Some(all) => all,
            None => {
                let mut all = self.client.volumes(&self.region).await?;
                all.sort_by(|one, other| one.id.cmp(&other.id));
                let all: Arc<[api::Volume]> = all.into();
                self.recent.volumes.set(Some(all.clone()));
                all
            }
        };
        let page = page_of(&all, |volume| &volume.id, after, max);
        Ok(Page { entries: page.entries.iter().map(described).collect(), more: page.more })
    }
}

impl Controller {
    /// A droplet as a listing of late has it. One that is not in it may exist all the same.
    pub(super) async fn recent_droplet(&self, id: u64) -> Result<Option<api::Droplet>, BackendError> {
        let all = match self.recent.droplets.get() {
            Some(all) => all,
            None => {
                let all: Arc<[api::Droplet]> = self.client.droplets().await?.into();
                self.recent.droplets.set(Some(all.clone()));
                all
            }
        };
        Ok(all.iter().find(|droplet| droplet.id == id).cloned())
    }

    /// All snapshots by id, from a listing of late if that will do.
    pub(super) async fn all_snapshots(&self, late: bool) -> Result<Arc<[api::Snapshot]>, BackendError> {
        if let Some(all) = self.recent.snapshots.get().filter(|_| late) {
            return Ok(all);
        }
        let mut all = self.client.snapshots(&self.region).await?;
        all.sort_by(|one, other| one.id.cmp(&other.id));
        let all: Arc<[api::Snapshot]> = all.into();
        self.recent.snapshots.set(Some(all.clone()));
        Ok(all)
    }
}

/// At most `max` of what comes after an id, from what is in the order of ids.
pub(super) fn page_of<T: Clone>(
    all: &[T],
    id: impl Fn(&T) -> &str,
    after: Option<&str>,
    max: usize,
) -> Page<T> {
    let begin = after.map_or(0, |after| all.partition_point(|entry| id(entry) <= after));
    let rest = &all[begin..];
    Page { entries: rest.iter().take(max).cloned().collect(), more: rest.len() > max }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B8: with any sizes of pages, changed on the way, each entry comes once.
    #[test]
    fn each_entry_comes_once_whatever_the_pages() {
        let all: Vec<String> = (0..23).map(|number| format!("{number:02}")).collect();
        for sizes in [[1, 1], [2, 3], [5, 10], [10, 5], [23, 1], [22, 1], [100, 100]] {
            let (mut seen, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
            for size in sizes.into_iter().cycle() {
                let page = page_of(&all, |id| id, after.as_deref(), size);
                after = page.entries.last().cloned();
                seen.extend(page.entries);
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, all, "{sizes:?}");
        }
        let gone = page_of(&all, |id| id, Some("05x"), 1);
        assert_eq!(gone.entries, ["06"], "also after one that is gone");
    }
}
