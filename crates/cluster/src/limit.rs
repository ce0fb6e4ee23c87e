//! A token bucket: so many requests a second, with so many at once. Off unless asked for.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Clones of the `Cluster` share one.
#[derive(Debug)]
pub(crate) struct Limit {
    every: Duration,
    burst: u32,
    /// When the bucket would be full again; the further ahead of now, the emptier it is.
    full_at: Mutex<Instant>,
}

impl Limit {
    /// `None` if the rate does not limit anything.
    pub(crate) fn new(qps: f32, burst: u32) -> Option<Self> {
        if !(qps.is_finite() && qps > 0.0) {
            return None;
        }
        let every = Duration::from_secs_f32(1.0 / qps);
        Some(Self { every, burst: burst.max(1), full_at: Mutex::new(Instant::now()) })
    }

    /// Waits for a token.
    pub(crate) async fn wait(&self) {
        let at = self.reserve(Instant::now());
        tokio::time::sleep_until(at).await;
    }

    /// Takes a token and says from when on it may be used.
    fn reserve(&self, now: Instant) -> Instant {
        let mut full_at = self.full_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *full_at = (*full_at).max(now) + self.every;
        let window = self.every * self.burst;
        full_at.checked_sub(window).unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_the_rate() {
        let limit = Limit::new(5.0, 3).unwrap();
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| (limit.reserve(now) - now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        let later = now + Duration::from_secs(60);
        assert_eq!(limit.reserve(later), later);
    }

    #[tokio::test]
    async fn nothing_is_no_limit() {
        for qps in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(Limit::new(qps, 10).is_none(), "{qps}");
        }
    }
}
