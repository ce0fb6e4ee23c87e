//! The pool's account: reads its facts, and admits new promises one at a time.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{PoolCore, lock};
use crate::account::{Account, Demand, Facts, Fullness, Holding, SparseFile, shared, worst};
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::index::{Index, promised};
use crate::record::{Phase, Provisioning, SnapshotRecord, VolumeRecord};
use crate::store;

/// How old the account for metrics and for the health of volumes may be. An account reads every image, so one that each
/// of a pool's volumes asks for would be quadratic.
const RECENT: Duration = Duration::from_secs(1);

/// Why a promise was not admitted.
pub(super) enum Refusal {
    /// The pool has no space for it; the message names the way out.
    Exhausted(String),
    Fault(Fault),
}

impl PoolCore {
    /// The account, with what is being created, expanded and copied. Logs each change of the pool's fullness.
    pub(crate) fn account(&self) -> Result<Account, Fault> {
        let account = Account::of(&self.facts()?, &self.config);
        let (percent, now) = (account.percent, account.fullness);
        if self.logged_fullness.swap(now as u8, Ordering::Relaxed) != now as u8 {
            match now {
                Fullness::Normal => tracing::info!(percent, "pool is no longer nearly full"),
                Fullness::NearlyFull => tracing::warn!(percent, "pool is nearly full"),
                Fullness::Full => {
                    tracing::error!(
                        percent,
                        "pool is full: new volumes, snapshots and expansions are refused"
                    )
                }
            }
        }
        Ok(account)
    }

    /// An account that is at most [`RECENT`] old and has the current free space of the pool's file system.
    pub(crate) fn recent_account(&self) -> Result<Account, Fault> {
        let mut recent = lock(&self.recent_account);
        let free = self.usage()?.available_bytes;
        match *recent {
            Some((at, account)) if at.elapsed() < RECENT && account.free == free => Ok(account),
            _ => {
                let account = self.account()?;
                *recent = Some((Instant::now(), account));
                Ok(account)
            }
        }
    }

    /// Runs `promise`, which adds new promises to the index, if the pool has space for `demand`. Computes and checks one
    /// demand at a time: what another call has promised counts, also before its blocks are allocated.
    pub(super) fn admit(
        &self,
        demand: impl FnOnce() -> Result<Demand, Fault>,
        promise: impl FnOnce(&mut Index),
    ) -> Result<(), Refusal> {
        let _one_at_a_time = lock(&self.admission);
        let account = self.account().map_err(Refusal::Fault)?;
        match account.refuses(demand().map_err(Refusal::Fault)?) {
            Some(reason) => Err(Refusal::Exhausted(reason)),
            None => {
                promise(&mut self.index());
                Ok(())
            }
        }
    }

    /// What a snapshot of this volume adds to what the volumes can still take.
    pub(super) fn demand_of_sharing(&self, record: &VolumeRecord) -> Result<Demand, Fault> {
        if !self.reflink || self.index().snapshots_of(&record.id, None).next().is_some() {
            return Ok(Demand::default());
        }
        let extra = self.allocated(&record.id)?.min(promised(record));
        Ok(match record.provisioning {
            Provisioning::Thin => Demand { thin: extra, ..Demand::default() },
            Provisioning::Thick => Demand { thick: extra, ..Demand::default() },
        })
    }

    fn facts(&self) -> Result<Facts, Fault> {
        let before = self.usage()?;
        let (volumes, snapshots, broken): (Vec<_>, Vec<_>, Vec<_>) = {
            let index = self.index();
            let volume = |record: &VolumeRecord| {
                (record.id.clone(), record.provisioning, promised(record), record.source.is_some())
            };
            let snapshot = |record: &SnapshotRecord| {
                let is_left_by_copy = record.is_left_by_copy(index.volume(&record.source));
                (record.id.clone(), record.source.clone(), record.state, is_left_by_copy)
            };
            let broken = index.all_broken().map(|(id, _)| id.clone());
            (
                index.volumes().map(volume).collect(),
                index.snapshots().map(snapshot).collect(),
                broken.collect(),
            )
        };
        // Allocation before free space: what is allocated in between is counted twice, never zero times.
        let mut allocated = BTreeMap::new();
        let ids = volumes.iter().map(|(id, ..)| id).chain(snapshots.iter().map(|(id, ..)| id));
        for id in ids {
            allocated.insert(id.clone(), self.allocated(id)?);
        }
        let allocated = |id: &String| allocated.get(id).copied().unwrap_or(0);
        let (mut of_snapshots, mut copying, mut of_deleted_copies) = (0u64, 0u64, 0u64);
        let mut largest_of = BTreeMap::<&String, u64>::new();
        for (id, source, state, is_left_by_copy) in &snapshots {
            let bytes = allocated(id);
            of_snapshots = of_snapshots.saturating_add(bytes);
            let largest = largest_of.entry(source).or_default();
            *largest = bytes.max(*largest);
            if self.reflink && *is_left_by_copy {
                of_deleted_copies = of_deleted_copies.saturating_add(bytes);
            }
            if !self.reflink && matches!(state, Phase::Creating | Phase::Copying { .. }) {
                copying = copying.saturating_add(allocated(source).saturating_sub(bytes));
            }
        }
        let holding = |(id, provisioning, size, is_copy): &(String, Provisioning, u64, bool)| {
            let (bytes, largest) = (allocated(id), largest_of.get(id).copied());
            let shared = if self.reflink { shared(*size, bytes, *is_copy, largest) } else { 0 };
            Holding { provisioning: *provisioning, size: *size, allocated: bytes, shared }
        };
        let volumes = volumes.iter().map(holding).collect();
        let beneath = self
            .kernel()
            .file_beneath(&self.store.root)
            .during("read the free space beneath its file", "the pool")?;
        let sparse = beneath.map(|file| SparseFile {
            unallocated: file.stat.size.saturating_sub(file.stat.allocated),
            usage: file.usage,
        });
        Ok(Facts {
            usage: worst(&before, &self.usage()?),
            sparse,
            volumes,
            copying,
            snapshots: of_snapshots,
            snapshots_of_deleted_copies: of_deleted_copies,
            unreadable: broken.iter().map(|id| self.unreadable(id)).fold(0, u64::saturating_add),
        })
    }

    /// What the image of an object whose record cannot be read can still take: it may be in use.
    fn unreadable(&self, id: &str) -> u64 {
        // An object of which nothing can be read must not stop the others. The check of the pool reports it.
        let Ok(Some(image)) = self.store.stat(&store::image_of(id)) else { return 0 };
        let shared = if self.reflink { image.allocated } else { 0 };
        match ids::kind_of(id) {
            Some(Kind::Volume) => image.size.saturating_sub(image.allocated).saturating_add(shared),
            // Nothing writes to its image, but its volume may have to rewrite the blocks that it shares.
            Some(Kind::Snapshot) => shared,
            _ => 0,
        }
    }
}
