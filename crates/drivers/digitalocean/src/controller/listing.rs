//! Listings. The API pages by position, in its own order, so an entry can be missed or returned twice while volumes are
//! created and deleted. The controller therefore reads the whole list, sorts it by ID and caches it for some seconds, so
//! that the pages of one listing are consistent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use wharf_driver::backend::{BackendError, ListPage, ListVolumes, Listing, Volume};

use super::{Controller, to_sdk_volume};
use crate::api;

/// How long a cached listing is used for further pages.
const CACHE_TTL: Duration = Duration::from_secs(30);

/// Cached listings.
#[derive(Default)]
pub(super) struct ListingCache {
    volumes: Cached<api::Volume>,
    droplets: Cached<api::Droplet>,
    snapshots: Cached<api::Snapshot>,
}

struct Cached<T>(Mutex<Option<(Instant, Arc<[T]>)>>);

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Cached<T> {
    fn get(&self) -> Option<Arc<[T]>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.as_ref().filter(|(when, _)| when.elapsed() < CACHE_TTL).map(|(_, all)| all.clone())
    }

    fn set(&self, all: Option<Arc<[T]>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all.map(|all| (Instant::now(), all));
    }
}

impl ListingCache {
    /// Called after each change by this controller, so that the next listing shows it.
    pub(super) fn invalidate_volumes(&self) {
        self.volumes.set(None);
        self.droplets.set(None);
    }

    pub(super) fn invalidate_snapshots(&self) {
        self.snapshots.set(None);
    }

    /// A volume from the cached listing.
    pub(super) fn volume(&self, id: &str) -> Option<api::Volume> {
        self.volumes.get()?.iter().find(|volume| volume.id == id).cloned()
    }
}

#[async_trait]
impl Listing for Controller {
    async fn list(&self, request: &ListVolumes) -> Result<ListPage<Volume>, BackendError> {
        let cached = self.cache.volumes.get().filter(|_| request.after.is_some());
        let all = match cached {
            Some(all) => all,
            None => {
                let mut all = self.client.volumes(&self.region).await?;
                all.sort_by(|one, other| one.id.cmp(&other.id));
                let all: Arc<[api::Volume]> = all.into();
                self.cache.volumes.set(Some(all.clone()));
                all
            }
        };
        let page = page_of(&all, |volume| &volume.id, request.after.as_deref(), request.max);
        Ok(ListPage { entries: page.entries.iter().map(to_sdk_volume).collect(), more: page.more })
    }
}

impl Controller {
    /// A droplet from a cached listing. A droplet that is not in it may still exist.
    pub(super) async fn cached_droplet(&self, id: u64) -> Result<Option<api::Droplet>, BackendError> {
        let all = match self.cache.droplets.get() {
            Some(all) => all,
            None => {
                let all: Arc<[api::Droplet]> = self.client.droplets().await?.into();
                self.cache.droplets.set(Some(all.clone()));
                all
            }
        };
        Ok(all.iter().find(|droplet| droplet.id == id).cloned())
    }

    /// All snapshots sorted by ID. With `allow_cached`, a cached listing is returned if there is one.
    pub(super) async fn all_snapshots(
        &self,
        allow_cached: bool,
    ) -> Result<Arc<[api::Snapshot]>, BackendError> {
        if let Some(all) = self.cache.snapshots.get().filter(|_| allow_cached) {
            return Ok(all);
        }
        let mut all = self.client.snapshots(&self.region).await?;
        all.sort_by(|one, other| one.id.cmp(&other.id));
        let all: Arc<[api::Snapshot]> = all.into();
        self.cache.snapshots.set(Some(all.clone()));
        Ok(all)
    }
}

/// At most `max` entries with an id greater than `after`; `all` is sorted by id.
pub(super) fn page_of<T: Clone>(
    all: &[T],
    id: impl Fn(&T) -> &str,
    after: Option<&str>,
    max: usize,
) -> ListPage<T> {
    let begin = after.map_or(0, |after| all.partition_point(|entry| id(entry) <= after));
    let rest = &all[begin..];
    ListPage { entries: rest.iter().take(max).cloned().collect(), more: rest.len() > max }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every entry is returned once, with any page size, even if it changes between pages.
    #[test]
    fn every_entry_is_listed_once_for_all_page_sizes() {
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
        assert_eq!(gone.entries, ["06"], "listing continues after a deleted entry");
    }
}
