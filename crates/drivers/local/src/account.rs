//! The account of a pool: what is used, what is promised, and what can still be promised. Capacity, health, metrics,
//! `wharf local` and refusals all use it.
//!
//! A volume *can still take* the blocks of its size that are not allocated. Each write to a block that it shares with a
//! snapshot or another volume takes a new one: [`shared`] bounds that. New promises are limited to the free space minus
//! what all volumes can still take: then no volume gets an error for lack of space. Overcommit divides what thin volumes
//! can still take.

use wharf_linux::FsUsage;

use crate::Config;
use crate::record::Provisioning;
use crate::size::{MAXIMUM, UNIT};

/// The smallest reserve for records and the metadata of the pool's file system.
const MIN_RESERVE: u64 = 4 << 20;

/// How full a pool is, relative to its thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fullness {
    /// Below both thresholds.
    Normal,
    /// At or above the warning threshold.
    NearlyFull,
    /// At or above the full threshold: nothing new is provisioned.
    Full,
}

/// What a volume uses and may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    pub provisioning: Provisioning,
    /// Its size, or the size that it is being expanded to.
    pub size: u64,
    /// Bytes allocated to its image.
    pub allocated: u64,
    /// Bytes that the pool may need a second time because blocks are shared; see [`shared`].
    pub shared: u64,
}

impl Holding {
    /// Bytes that it can still take from the pool.
    pub(crate) fn outstanding(&self) -> u64 {
        self.size.saturating_sub(self.allocated).saturating_add(self.shared)
    }
}

/// Bytes that the pool may need a second time because of this volume.
///
/// A block that W volumes and some snapshots share can be needed W more times, without snapshots W - 1 times: the last
/// owner writes it in place. Each volume that was copied from another one or from a snapshot accounts for one time of
/// what it has. Each volume with snapshots accounts for one more time, in place of the volume whose blocks they are. A
/// copy with snapshots may have overwritten blocks that its snapshots and another volume still share: the largest
/// snapshot has all of them.
pub(crate) fn shared(size: u64, allocated: u64, is_copy: bool, largest_snapshot: Option<u64>) -> u64 {
    let of_copy = if is_copy { allocated } else { 0 };
    let of_snapshots = match largest_snapshot {
        Some(largest) if is_copy => allocated.max(largest),
        Some(_) => allocated,
        None => 0,
    };
    of_copy.min(size).saturating_add(of_snapshots.min(size))
}

/// The file system beneath a pool in a file, if not all blocks of that file are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SparseFile {
    /// Bytes of the file without blocks.
    pub unallocated: u64,
    /// The file system that holds the file.
    pub usage: FsUsage,
}

impl SparseFile {
    /// What the file system beneath can still give to the file, if that is less than the file lacks.
    fn limit(&self) -> Option<u64> {
        let usable = self.usage.available_bytes.saturating_sub(host_reserve(&self.usage));
        (self.unallocated > usable).then_some(usable)
    }
}

/// Everything that an account is computed from.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub usage: FsUsage,
    pub sparse: Option<SparseFile>,
    pub volumes: Vec<Holding>,
    /// Bytes that snapshots in progress have yet to copy.
    pub copying: u64,
    /// Bytes allocated to images of snapshots.
    pub snapshots: u64,
    /// Those of snapshots of deleted copies: another volume may share them.
    pub snapshots_of_deleted_copies: u64,
    /// What the images of objects with unreadable records can still take.
    pub unreadable: u64,
}

/// The lower free space and the higher usage of two readings, before and after the images were read: blocks that were freed in
/// between count as allocated to an image or as free, never as both.
pub(crate) fn worst(before: &FsUsage, after: &FsUsage) -> FsUsage {
    FsUsage {
        available_bytes: before.available_bytes.min(after.available_bytes),
        used_bytes: before.used_bytes.max(after.used_bytes),
        ..*after
    }
}

/// New promises: a volume, an expansion or snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    /// Bytes that thin volumes will be able to take.
    pub thin: u64,
    /// Bytes that are taken for sure, by thick volumes and copies.
    pub thick: u64,
    /// Bytes that are taken immediately.
    pub now: u64,
}

impl Demand {
    /// Both demands.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            thin: self.thin.saturating_add(other.thin),
            thick: self.thick.saturating_add(other.thick),
            now: self.now.saturating_add(other.now),
        }
    }
}

/// The account of a pool. All numbers are bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Account {
    /// Size of the pool without what its file system reserves for root.
    pub size: u64,
    pub used: u64,
    /// Free in the pool's file system.
    pub free: u64,
    /// Allocated to images. Shared blocks count in each.
    pub allocated: u64,
    /// The sizes of all volumes.
    pub promised: u128,
    /// What all volumes and copies can still take.
    pub outstanding: u128,
    /// The part of `outstanding` that is needed because volumes share blocks.
    pub reserved_for_snapshots: u128,
    /// Never promised: for records and metadata.
    pub reserved_for_records: u64,
    /// Free on the file system beneath the pool without the host's reserve, if that is less than the file lacks.
    pub free_beneath: Option<u64>,
    /// Bytes available to all new thin volumes together.
    pub thin: u64,
    /// Bytes available to all new thick volumes together.
    pub thick: u64,
    pub fullness: Fullness,
    /// Percent in use, rounded down.
    pub percent: u8,
    /// What can still be promised for sure, not rounded.
    room: u128,
    overcommit: f64,
}

/// What a pool in a file leaves free on the file system that holds it.
pub(crate) fn host_reserve(usage: &FsUsage) -> u64 {
    (usage.total_bytes / 20).min(4 << 30)
}

impl Account {
    pub(crate) fn of(facts: &Facts, config: &Config) -> Self {
        let Facts { usage, sparse, volumes, copying, snapshots, snapshots_of_deleted_copies, unreadable } =
            facts;
        // As df counts: blocks reserved for root are not usable.
        let size = usage.used_bytes.saturating_add(usage.available_bytes);
        let percent = (u128::from(usage.used_bytes) * 100).checked_div(u128::from(size));
        let percent = percent.map_or(100, |percent| percent as u8);
        let slack = u128::from(size) * u128::from(100 - config.full_threshold.min(100));
        let reserved_for_records = (slack.div_ceil(100) as u64).max(MIN_RESERVE);
        let free_beneath = sparse.and_then(|sparse| sparse.limit());
        // The host's reserve is not promised, but a write can use it.
        let is_full_beneath = free_beneath == Some(0)
            && sparse.is_some_and(|sparse| sparse.unallocated > sparse.usage.available_bytes);
        let fullness = match percent {
            p if p >= config.full_threshold || is_full_beneath => Fullness::Full,
            p if p >= config.warn_threshold => Fullness::NearlyFull,
            _ => Fullness::Normal,
        };
        let sum = |of: fn(&Holding) -> u64| volumes.iter().map(|volume| u128::from(of(volume))).sum::<u128>();
        let thin =
            sum(|volume| if volume.provisioning == Provisioning::Thin { volume.outstanding() } else { 0 });
        let of_deleted_copies = u128::from(*snapshots_of_deleted_copies);
        let outstanding =
            sum(Holding::outstanding) + u128::from(*copying) + of_deleted_copies + u128::from(*unreadable);
        let budget = usage.available_bytes.saturating_sub(reserved_for_records);
        let budget = budget.min(free_beneath.unwrap_or(u64::MAX));
        let mut account = Self {
            size,
            used: usage.used_bytes,
            free: usage.available_bytes,
            allocated: snapshots
                .saturating_add(u64::try_from(sum(|volume| volume.allocated)).unwrap_or(u64::MAX)),
            promised: sum(|volume| volume.size),
            outstanding,
            reserved_for_snapshots: sum(|volume| volume.shared) + of_deleted_copies,
            reserved_for_records,
            free_beneath,
            thin: 0,
            thick: 0,
            fullness,
            percent,
            room: 0,
            overcommit: config.overcommit,
        };
        if fullness != Fullness::Full {
            let room = u128::from(budget).saturating_sub(account.weighted(thin, outstanding - thin));
            account.room = room;
            account.thick = round_down(room);
            // An f64 holds 53 bits, which is exact enough here; the cast saturates.
            account.thin = round_down((room as f64 * config.overcommit) as u128);
        }
        account
    }

    /// The free space that these promises need.
    fn weighted(&self, thin: u128, thick: u128) -> u128 {
        ((thin as f64 / self.overcommit).ceil() as u128).saturating_add(thick)
    }

    /// Why the pool cannot promise this; the message names the way out.
    pub(crate) fn refuses(&self, demand: Demand) -> Option<String> {
        let Demand { thin, thick, now } = demand;
        if self.fullness == Fullness::Full {
            return Some(format!("{}: {}", self.fullness_message(), self.remedy()));
        }
        let needed = self.weighted(u128::from(thin), u128::from(thick)).max(u128::from(now));
        let requested = thin.saturating_add(thick).max(now);
        let available = if thin > 0 && now == 0 { self.thin } else { self.thick };
        (needed > self.room).then(|| {
            format!(
                "{requested} bytes are needed, but the pool has {available} that are not promised (size {}, free {}, \
                 volumes can still take {}, reserved {}{}): {}",
                self.size,
                self.free,
                self.outstanding,
                self.reserved_for_records,
                self.free_beneath.map_or(String::new(), |free| format!(", free on the disk beneath {free}")),
                self.remedy()
            )
        })
    }

    /// How full the pool is, in words.
    pub(crate) fn fullness_message(&self) -> String {
        let percent = self.percent;
        match (self.fullness, self.free_beneath) {
            (Fullness::Full, Some(0)) => {
                "the pool is full, because the disk beneath its file is full; new volumes, \
                                          snapshots and expansions are refused"
                    .to_owned()
            }
            (Fullness::Full, _) => {
                format!(
                    "the pool is full ({percent}% in use); new volumes, snapshots and expansions are refused"
                )
            }
            _ => format!("the pool is {percent}% full"),
        }
    }

    /// How to get space.
    pub(crate) fn remedy(&self) -> &'static str {
        match self.free_beneath {
            Some(0) => "delete files from that disk, or delete volumes or snapshots",
            _ => REMEDY,
        }
    }
}

/// How to get space in a pool.
pub(crate) const REMEDY: &str = "delete volumes or snapshots, or enlarge the pool (wharf local grow)";

/// Rounds down to whole units, capped at the maximum volume size: GetCapacity returns an i64.
fn round_down(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).min(MAXIMUM) / UNIT * UNIT
}

#[cfg(test)]
mod tests;
