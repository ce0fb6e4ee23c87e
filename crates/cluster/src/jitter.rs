//! Jitter, so that many processes do not send requests at the same moment.

use std::time::Duration;

/// A random number in `0.0..1.0`; 0.5 if the system provides no randomness, which is not worth failing for.
pub fn jitter() -> f64 {
    let mut bytes = [0; 4];
    match wharf_model::system::fill_random(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

/// `start`, doubled for each earlier failure, at most `max`, shortened by up to a quarter.
pub(crate) fn exponential(start: Duration, max: Duration, failures: u32, jitter: f64) -> Duration {
    let factor = 2_u32.checked_pow(failures).unwrap_or(u32::MAX);
    start.saturating_mul(factor).min(max).mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_the_maximum() {
        let (start, max) = (Duration::from_secs(1), Duration::from_secs(300));
        for (failures, jitter, millis) in [
            (0, 0.0, 1_000),
            (1, 0.0, 2_000),
            (8, 0.0, 256_000),
            (9, 0.0, 300_000),
            (u32::MAX, 0.0, 300_000),
            (0, 1.0, 750),
        ] {
            assert_eq!(exponential(start, max, failures, jitter).as_millis(), millis, "{failures}");
        }
        assert!((0..1000).all(|_| (0.0..1.0).contains(&jitter())));
    }
}
