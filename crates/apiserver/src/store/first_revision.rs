//! The first revision of a new store file, whether empty or restored from a backup.
//!
//! Clients may know revisions of an earlier store, which was removed or lost. If this store served a watch or a list from
//! one of them, a client would keep objects that do not exist here, or miss some. Every file therefore begins above all
//! earlier revisions, without history: such a client gets 410 Gone and lists again.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Revision;
use super::dir_lock::DirLock;

/// JavaScript clients cannot represent larger integers.
const MAX: Revision = 1 << 53;

/// The revision of a new file in this directory. `backup` is that of its objects; 0 if it has none.
pub(super) fn first_revision(backup: Revision, lock: &DirLock) -> Revision {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    above_all(backup, lock.acknowledged(), now.as_micros())
}

/// A revision above that of the backup, above the last one that was acknowledged in the directory, and above the clock in
/// microseconds. No store writes a million revisions per second, so the clock is above every earlier revision, wherever
/// the earlier store was.
fn above_all(backup: Revision, acknowledged: Option<Revision>, micros: u128) -> Revision {
    let micros = u64::try_from(micros).unwrap_or(0).min(MAX);
    // A larger one is not a revision, but damage.
    let acknowledged = acknowledged.filter(|acknowledged| *acknowledged <= MAX).unwrap_or(0);
    micros.max(backup.max(acknowledged).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_763_000_000_000_000;

    #[test]
    fn first_revision_is_above_all_earlier_ones() {
        for (backup, acknowledged, micros, expected) in [
            (0, None, NOW.into(), NOW),
            (7, None, NOW.into(), NOW),
            (NOW + 7, None, NOW.into(), NOW + 8),
            (7, Some(NOW + 7), NOW.into(), NOW + 8),
            // The clock was set back, or is not set yet.
            (0, None, 0, 1),
            (7, None, 0, 8),
            (0, Some(NOW), 60_000_000, NOW + 1),
            (7, Some(6), 0, 8),
            (7, None, u128::MAX, 8),
            (7, Some(u64::MAX), NOW.into(), NOW),
        ] {
            assert_eq!(
                above_all(backup, acknowledged, micros),
                expected,
                "{backup} {acknowledged:?} {micros}"
            );
        }
    }
}
