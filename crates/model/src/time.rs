//! Wall-clock time and monotonic time in milliseconds. Plain numbers, so that tests can write times as literals.
//!
//! Wall time is for what is written to objects, certificates and tokens. Everything that waits uses monotonic time: a
//! wall clock that is set must neither end a wait nor extend it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// This time plus a duration. Saturates instead of overflowing.
    pub fn plus(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// Milliseconds on a clock that is never set, since an arbitrary start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub i64);

impl Monotonic {
    /// This time plus a duration. Saturates instead of overflowing.
    pub fn plus(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The time since an earlier time; zero if that is later.
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }
}

impl fmt::Display for Time {
    /// RFC 3339 with whole seconds, as Kubernetes writes `metav1.Time`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0.div_euclid(1000).saturating_mul(1000)) {
            Ok(timestamp) => write!(f, "{timestamp}"),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let timestamp: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(timestamp.as_millisecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_timestamps_round_trip() {
        for text in ["2026-11-15T10:20:30Z", "1970-01-01T00:00:00Z"] {
            let time: Time = serde_json::from_str(&format!("{text:?}")).unwrap();
            assert_eq!(time.to_string(), text);
        }
        let micro: Time = serde_json::from_str("\"2026-11-15T10:20:30.123456Z\"").unwrap();
        assert_eq!(micro.to_string(), "2026-11-15T10:20:30Z");
    }
}
