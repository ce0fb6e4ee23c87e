//! Times in the API's format, and ids derived from them. Tests can advance the clock, so that they need not wait ten
//! minutes for a rule of ten minutes.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// Milliseconds since 1970.
pub type Millis = i64;

/// A duration in milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// RFC 3339 with whole seconds and Z.
pub(crate) fn rfc3339(at: Millis) -> String {
    Timestamp::from_second(at.div_euclid(1000)).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// The system clock plus an offset that tests can advance.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    ahead: AtomicI64,
}

impl Clock {
    pub(crate) fn now(&self) -> Millis {
        Timestamp::now().as_millisecond().saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.ahead.fetch_add(millis(by), Ordering::Relaxed);
    }
}

/// Between the epoch of UUIDs (1582) and that of Unix, in units of 100 ns.
const GREGORIAN: u64 = 0x01B2_1DD2_1381_4000;

/// A version 1 UUID: the time with `serial` in its last digits, so that ids are unique.
pub(crate) fn uuid_v1(now: Millis, serial: u64) -> String {
    let ticks = GREGORIAN.wrapping_add(now.unsigned_abs().wrapping_mul(10_000)).wrapping_add(serial % 10_000);
    let (low, middle, high) = (ticks as u32, (ticks >> 32) as u16, (ticks >> 48) as u16 & 0x0fff);
    let clock = 0x8000 | ((serial / 10_000) as u16 & 0x3fff);
    format!("{low:08x}-{middle:04x}-{:04x}-{clock:04x}-000f53306ae1", 0x1000 | high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_ids_have_the_api_format() {
        let at = 1_456_938_049_000;
        assert_eq!(rfc3339(at), "2016-03-02T17:00:49Z");
        assert_eq!(rfc3339(at + 999), "2016-03-02T17:00:49Z");
        let id = uuid_v1(at, 1);
        assert_eq!(&id[9..], "e098-11e5-8000-000f53306ae1", "{id}");
        assert_ne!(id, uuid_v1(at, 2));
        assert_ne!(uuid_v1(at, 1), uuid_v1(at, 10_001));
    }

    #[test]
    fn clock_can_be_advanced() {
        let clock = Clock::default();
        let before = clock.now();
        clock.advance(Duration::from_secs(3600));
        assert!(clock.now() >= before + 3_600_000);
    }
}
