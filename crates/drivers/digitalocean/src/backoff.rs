//! Exponential backoff with jitter, so that many clients do not send their requests at the same moment.

use std::time::Duration;

/// A random number in `0.0..1.0`; 0.5 if the system has no randomness, which is no reason to fail.
pub(crate) fn jitter() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

/// `start`, doubled with each earlier failure, at most `max`, shortened by up to a quarter.
pub(crate) fn exponential(start: Duration, max: Duration, failures: u32, jitter: f64) -> Duration {
    let factor = 2_u32.checked_pow(failures).unwrap_or(u32::MAX);
    start.saturating_mul(factor).min(max).mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let (start, max) = (Duration::from_millis(250), Duration::from_secs(5));
        for (failures, jitter, millis) in [
            (0, 0.0, 250),
            (1, 0.0, 500),
            (4, 0.0, 4_000),
            (5, 0.0, 5_000),
            (u32::MAX, 0.0, 5_000),
            (2, 1.0, 750),
        ] {
            assert_eq!(exponential(start, max, failures, jitter).as_millis(), millis, "{failures}");
        }
        assert!((0..1000).all(|_| (0.0..1.0).contains(&jitter())));
    }
}
