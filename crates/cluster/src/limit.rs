//! A token bucket that limits the rate of requests and their burst. Disabled by default.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

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
        let interval = Duration::from_secs_f32(1.0 / qps);
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
        let window = self.interval * self.burst;
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

    #[tokio::test]
    async fn invalid_rate_is_no_limit() {
        for qps in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(Limit::new(qps, 10).is_none(), "{qps}");
        }
    }
}
