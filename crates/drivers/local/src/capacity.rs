//! What a pool can still promise. Thin volumes are promised up to the overcommit ratio; thick ones only what
//! is really free; and once the pool is full by its threshold nothing new is promised at all, so that the
//! rest stays for what the existing volumes write.

use wharf_linux::Usage;

use crate::Config;
use crate::size::{MAXIMUM, UNIT};

/// How full a pool is, by its thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fullness {
    /// Below both.
    Fine,
    /// A warning.
    NearlyFull,
    /// Nothing new.
    Full,
}

/// What can be promised now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// For thin volumes, together.
    pub thin: u64,
    /// For thick volumes, together; also what a full copy may take at once.
    pub thick: u64,
    pub fullness: Fullness,
    /// Percent in use, rounded down.
    pub percent: u8,
}

/// What `committed` bytes of promised volumes leave.
pub(crate) fn room(usage: &Usage, committed: u128, config: &Config) -> Room {
    // As df counts: blocks kept for root alone are nobody's.
    let usable = u128::from(usage.used_bytes) + u128::from(usage.available_bytes);
    let used = u128::from(usage.used_bytes);
    let percent = (used * 100).checked_div(usable).map_or(100, |percent| percent as u8);
    let fullness = match percent {
        p if p >= config.full_threshold => Fullness::Full,
        p if p >= config.warn_threshold => Fullness::NearlyFull,
        _ => Fullness::Fine,
    };
    if fullness == Fullness::Full {
        return Room { thin: 0, thick: 0, fullness, percent };
    }
    // A float keeps 53 bits: exact enough for a limit that is a rule of thumb; the cast saturates.
    let promised = (usable as f64 * config.overcommit) as u128;
    let until_full = (usable * u128::from(config.full_threshold) / 100).saturating_sub(used);
    let thin = whole(promised.saturating_sub(committed));
    let thick = whole(until_full).min(thin);
    Room { thin, thick, fullness, percent }
}

/// Why something cannot be made that promises `promised` bytes and takes `taken` of them at once.
pub(crate) fn admits(room: &Room, promised: u64, taken: u64) -> Result<(), String> {
    let Room { thin, thick, fullness, percent } = *room;
    if fullness == Fullness::Full {
        return Err(format!(
            "the pool is full ({percent}% in use): delete volumes or snapshots, or enlarge its file system"
        ));
    }
    if promised > thin {
        return Err(format!("{promised} bytes are asked for, the pool can promise {thin} more"));
    }
    if taken > thick {
        return Err(format!("{taken} bytes would be taken at once, the pool has {thick} to give"));
    }
    Ok(())
}

/// In whole units, and no more than one volume can have: GetCapacity answers an i64.
fn whole(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).min(MAXIMUM) / UNIT * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn usage(used: u64, available: u64) -> Usage {
        Usage {
            used_bytes: used,
            available_bytes: available,
            total_bytes: used + available,
            ..Usage::default()
        }
    }

    fn config(overcommit: f64) -> Config {
        Config { overcommit, ..Config::new("n", "/pool") }
    }

    #[test]
    fn rooms() {
        use Fullness::*;
        let gib = u128::from(GIB);
        let cases = [
            // used, available, committed, ratio -> thin, thick, fullness
            (0, 100 * GIB, 0, 1.0, 100 * GIB, 95 * GIB, Fine),
            (0, 100 * GIB, 0, 2.0, 200 * GIB, 95 * GIB, Fine),
            (0, 100 * GIB, 150 * gib, 2.0, 50 * GIB, 50 * GIB, Fine),
            (0, 100 * GIB, 200 * gib, 2.0, 0, 0, Fine),
            (0, 100 * GIB, u128::MAX, 2.0, 0, 0, Fine),
            (50 * GIB, 50 * GIB, 0, 1.0, 100 * GIB, 45 * GIB, Fine),
            (84 * GIB, 16 * GIB, 0, 1.0, 100 * GIB, 11 * GIB, Fine),
            (85 * GIB, 15 * GIB, 0, 1.0, 100 * GIB, 10 * GIB, NearlyFull),
            (94 * GIB, 6 * GIB, 0, 1.0, 100 * GIB, GIB, NearlyFull),
            (95 * GIB, 5 * GIB, 0, 1.0, 0, 0, Full),
            (100 * GIB, 0, 0, 2.0, 0, 0, Full),
            (0, 0, 0, 2.0, 0, 0, Full),
        ];
        for (used, available, committed, ratio, thin, thick, fullness) in cases {
            let room = room(&usage(used, available), committed, &config(ratio));
            assert_eq!((room.thin, room.thick, room.fullness), (thin, thick, fullness), "{used} {available}");
        }
    }

    #[test]
    fn admission() {
        let room = Room { thin: 100, thick: 10, fullness: Fullness::NearlyFull, percent: 90 };
        let full = Room { fullness: Fullness::Full, ..room };
        assert_eq!(admits(&room, 100, 10), Ok(()));
        for (room, promised, taken, word) in
            [(room, 101, 0, "promise 100"), (room, 100, 11, "has 10"), (full, 0, 0, "is full")]
        {
            assert!(admits(&room, promised, taken).unwrap_err().contains(word));
        }
    }

    #[test]
    fn huge_pools_do_not_overflow() {
        let huge = usage(u64::MAX / 2, u64::MAX / 2);
        let room = room(&huge, 0, &config(1000.0));
        assert_eq!(room.thin, MAXIMUM);
        assert_eq!(room.percent, 50);
    }
}
