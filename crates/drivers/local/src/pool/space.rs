//! The pool's account: reads its facts, and admits new promises one at a time.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use wharf_driver::backend::VolumeContentSource;

use super::{PoolCore, lock};
use crate::account::{Account, Demand, Facts, Fullness, Holding, SparseFile};
use crate::fault::{During as _, Fault};
use crate::index::{Index, promised};
use crate::record::{Phase, Provisioning, VolumeRecord};

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

    /// Runs `promise`, which adds new promises to the index, if the pool has space for `demand`. Checks one demand
    /// at a time: what another call has promised counts, also before its blocks are allocated.
    pub(super) fn admit(&self, demand: Demand, promise: impl FnOnce(&mut Index)) -> Result<(), Refusal> {
        let _one_at_a_time = lock(&self.admission);
        let account = self.account().map_err(Refusal::Fault)?;
        match account.refuses(demand) {
            Some(reason) => Err(Refusal::Exhausted(reason)),
            None => {
                promise(&mut self.index());
                Ok(())
            }
        }
    }

    /// What a snapshot or clone of this volume adds to what the volume can still take.
    pub(super) fn demand_of_sharing(&self, record: &VolumeRecord) -> Result<Demand, Fault> {
        let shares = self.reflink && volumes_that_share(&self.index()).contains(&record.id);
        if !self.reflink || shares {
            return Ok(Demand::default());
        }
        let extra = self.allocated(&record.id)?.min(promised(record));
        Ok(match record.provisioning {
            Provisioning::Thin => Demand { thin: extra, ..Demand::default() },
            Provisioning::Thick => Demand { thick: extra, ..Demand::default() },
        })
    }

    fn facts(&self) -> Result<Facts, Fault> {
        let (volumes, snapshots) = {
            let index = self.index();
            let sharing = if self.reflink { volumes_that_share(&index) } else { BTreeSet::new() };
            let volumes: Vec<_> = index
                .volumes()
                .map(|record| {
                    let shares = sharing.contains(&record.id);
                    (record.id.clone(), record.provisioning, promised(record), shares)
                })
                .collect();
            let snapshots: Vec<_> = index
                .snapshots()
                .map(|record| {
                    let copied_from = match record.state {
                        Phase::Creating | Phase::Copying { .. } if !self.reflink => {
                            Some(record.source.clone())
                        }
                        _ => None,
                    };
                    (record.id.clone(), copied_from)
                })
                .collect();
            (volumes, snapshots)
        };
        // Allocation before free space: what is allocated in between is counted twice, never zero times.
        let mut holdings = Vec::with_capacity(volumes.len());
        for (id, provisioning, size, shares) in volumes {
            holdings.push(Holding { provisioning, size, allocated: self.allocated(&id)?, shares });
        }
        let (mut of_snapshots, mut copying) = (0u64, 0u64);
        for (id, copied_from) in snapshots {
            let allocated = self.allocated(&id)?;
            of_snapshots = of_snapshots.saturating_add(allocated);
            if let Some(source) = copied_from {
                copying = copying.saturating_add(self.allocated(&source)?.saturating_sub(allocated));
            }
        }
        let beneath = self
            .kernel()
            .file_beneath(&self.store.root)
            .during("read the free space beneath its file", "the pool")?;
        let sparse = beneath.map(|file| SparseFile {
            unallocated: file.stat.size.saturating_sub(file.stat.allocated),
            usage: file.usage,
        });
        Ok(Facts { usage: self.usage()?, sparse, volumes: holdings, copying, snapshots: of_snapshots })
    }
}

/// Volumes that may share blocks with a snapshot or another volume, on a pool with reflinks. A volume with a source
/// counts also after the source was deleted: others may have been made from that.
fn volumes_that_share(index: &Index) -> BTreeSet<String> {
    let mut sharing: BTreeSet<String> = index.snapshots().map(|snapshot| snapshot.source.clone()).collect();
    for record in index.volumes() {
        if let Some(source) = &record.source {
            sharing.insert(record.id.clone());
            if let VolumeContentSource::Volume(source) = source {
                sharing.insert(source.clone());
            }
        }
    }
    sharing
}
