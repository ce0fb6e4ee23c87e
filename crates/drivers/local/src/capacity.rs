//! How much a pool can still provision. Thin volumes are limited by the overcommit ratio, thick volumes by the
//! free space. Once the pool reaches its full threshold it provisions nothing new, so that the remaining space
//! is left for writes to existing volumes.

use wharf_linux::FsUsage;

use crate::Config;
use crate::size::{MAXIMUM, UNIT};

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

/// What can still be provisioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headroom {
    /// Bytes available to all new thin volumes together.
    pub thin: u64,
    /// Bytes available to all new thick volumes together; also the limit for a full copy.
    pub thick: u64,
    pub fullness: Fullness,
    /// Percent in use, rounded down.
    pub percent: u8,
}

/// What is left after `committed` bytes are provisioned to volumes.
pub(crate) fn headroom(usage: &FsUsage, committed: u128, config: &Config) -> Headroom {
    // As df counts: blocks reserved for root are not usable.
    let usable = u128::from(usage.used_bytes) + u128::from(usage.available_bytes);
    let used = u128::from(usage.used_bytes);
    let percent = (used * 100).checked_div(usable).map_or(100, |percent| percent as u8);
    let fullness = match percent {
        p if p >= config.full_threshold => Fullness::Full,
        p if p >= config.warn_threshold => Fullness::NearlyFull,
        _ => Fullness::Normal,
    };
    if fullness == Fullness::Full {
        return Headroom { thin: 0, thick: 0, fullness, percent };
    }
    // An f64 holds 53 bits, which is exact enough for an approximate limit; the cast saturates.
    let promised = (usable as f64 * config.overcommit) as u128;
    let until_full = (usable * u128::from(config.full_threshold) / 100).saturating_sub(used);
    let thin = round_down(promised.saturating_sub(committed));
    let thick = round_down(until_full).min(thin);
    Headroom { thin, thick, fullness, percent }
}

/// Checks whether the pool can provision `promised` bytes, `taken` of which are allocated immediately.
pub(crate) fn check_headroom(room: &Headroom, promised: u64, taken: u64) -> Result<(), String> {
    let Headroom { thin, thick, fullness, percent } = *room;
    if fullness == Fullness::Full {
        return Err(format!(
            "the pool is full ({percent}% in use): delete volumes or snapshots, or enlarge its file system"
        ));
    }
    if promised > thin {
        return Err(format!("{promised} bytes requested, but the pool can provision only {thin} more"));
    }
    if taken > thick {
        return Err(format!("{taken} bytes must be allocated now, but the pool has only {thick} available"));
    }
    Ok(())
}

/// Rounds down to whole units, capped at the maximum volume size: GetCapacity returns an i64.
fn round_down(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).min(MAXIMUM) / UNIT * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn usage(used: u64, available: u64) -> FsUsage {
        FsUsage {
            used_bytes: used,
            available_bytes: available,
            total_bytes: used + available,
            ..FsUsage::default()
        }
    }

    fn config(overcommit: f64) -> Config {
        Config { overcommit, ..Config::new("n", "/pool") }
    }

    #[test]
    fn headroom_by_usage_and_overcommit() {
        use Fullness::*;
        let gib = u128::from(GIB);
        let cases = [
            // used, available, committed, ratio -> thin, thick, fullness
            (0, 100 * GIB, 0, 1.0, 100 * GIB, 95 * GIB, Normal),
            (0, 100 * GIB, 0, 2.0, 200 * GIB, 95 * GIB, Normal),
            (0, 100 * GIB, 150 * gib, 2.0, 50 * GIB, 50 * GIB, Normal),
            (0, 100 * GIB, 200 * gib, 2.0, 0, 0, Normal),
            (0, 100 * GIB, u128::MAX, 2.0, 0, 0, Normal),
            (50 * GIB, 50 * GIB, 0, 1.0, 100 * GIB, 45 * GIB, Normal),
            (84 * GIB, 16 * GIB, 0, 1.0, 100 * GIB, 11 * GIB, Normal),
            (85 * GIB, 15 * GIB, 0, 1.0, 100 * GIB, 10 * GIB, NearlyFull),
            (94 * GIB, 6 * GIB, 0, 1.0, 100 * GIB, GIB, NearlyFull),
            (95 * GIB, 5 * GIB, 0, 1.0, 0, 0, Full),
            (100 * GIB, 0, 0, 2.0, 0, 0, Full),
            (0, 0, 0, 2.0, 0, 0, Full),
        ];
        for (used, available, committed, ratio, thin, thick, fullness) in cases {
            let room = headroom(&usage(used, available), committed, &config(ratio));
            assert_eq!((room.thin, room.thick, room.fullness), (thin, thick, fullness), "{used} {available}");
        }
    }

    #[test]
    fn check_headroom_refuses_what_exceeds_the_pool() {
        let room = Headroom { thin: 100, thick: 10, fullness: Fullness::NearlyFull, percent: 90 };
        let full = Headroom { fullness: Fullness::Full, ..room };
        assert_eq!(check_headroom(&room, 100, 10), Ok(()));
        for (room, promised, taken, word) in
            [(room, 101, 0, "only 100 more"), (room, 100, 11, "only 10"), (full, 0, 0, "is full")]
        {
            assert!(check_headroom(&room, promised, taken).unwrap_err().contains(word));
        }
    }

    #[test]
    fn huge_pools_do_not_overflow() {
        let huge = usage(u64::MAX / 2, u64::MAX / 2);
        let room = headroom(&huge, 0, &config(1000.0));
        assert_eq!(room.thin, MAXIMUM);
        assert_eq!(room.percent, 50);
    }
}
