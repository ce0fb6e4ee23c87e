//! A token bucket that limits the rate of requests and their burst. Disabled by default.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// The longest time between two requests: a lower rate is not meant.
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Shared by all clones of a `Cluster`.
#[derive(Debug)]
pub(crate) struct Limit {
    interval: Duration,
    burst: u32,
    /// When the bucket would be full again; the further ahead of now, the emptier it is.
    full_at: Mutex<Instant>,
}

impl Limit {
    /// `None` if the rate is not a positive finite number.
    pub(crate) fn new(qps: f32, burst: u32) -> Option<Self> {
        if !(qps.is_finite() && qps > 0.0) {
            return None;
        }
        // The reciprocal of the smallest rates is no duration.
        let interval = Duration::try_from_secs_f32(1.0 / qps).unwrap_or(MAX_INTERVAL).min(MAX_INTERVAL);
        Some(Self { interval, burst: burst.max(1), full_at: Mutex::new(Instant::now()) })
    }

    /// Waits for a token.
    pub(crate) async fn wait(&self) {
        let at = self.reserve(Instant::now());
        tokio::time::sleep_until(at).await;
    }

    /// Takes a token and returns when it may be used.
    fn reserve(&self, now: Instant) -> Instant {
        let mut full_at = self.full_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *full_at = (*full_at).max(now) + self.interval;
        let window = self.interval.saturating_mul(self.burst);
        full_at.checked_sub(window).unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_is_followed_by_the_rate() {
        let limit = Limit::new(5.0, 3).unwrap();
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| (limit.reserve(now) - now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        let later = now + Duration::from_secs(60);
        assert_eq!(limit.reserve(later), later);
    }

    #[tokio::test(start_paused = true)]
    async fn extreme_rates_and_bursts_are_limited() {
        for (qps, burst) in [
            (f32::MIN_POSITIVE, 0),
            (f32::MIN_POSITIVE, u32::MAX),
            (1e-19, 1),
            (1e-9, u32::MAX),
            (f32::MAX, 1),
            (f32::MAX, u32::MAX),
        ] {
            let limit = Limit::new(qps, burst).unwrap();
            let now = Instant::now();
            for request in 0..3_u32 {
                assert!(limit.reserve(now) <= now + MAX_INTERVAL * request, "{qps} {burst} {request}");
            }
        }
    }

    #[tokio::test]
    async fn invalid_rate_is_no_limit() {
        for qps in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(Limit::new(qps, 10).is_none(), "{qps}");
        }
    }
}
