//! The operator's settings for a pool, validated once at startup.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// This node's CSI node ID; also the value of the topology key.
    pub node_id: String,
    /// The pool's directory. It must exist: if the pool's disk is not mounted, a new pool must not be created
    /// on the file system below.
    pub pool: PathBuf,
    /// Create a pool if the directory is empty. Without it a pool is created by [`crate::Pool::init`] only.
    pub create_pool: bool,
    /// A file on another file system that has the identity of the pool: written at the first start, compared at every
    /// other.
    pub pool_id_file: Option<PathBuf>,
    /// How long a file system may stay frozen for a snapshot: writers block that long.
    pub freeze_limit: Duration,
    /// Serve ControllerPublish and ControllerUnpublish.
    pub attach: bool,
    /// Bytes that thin volumes may be promised for each free byte. 1.0 disables overcommit.
    pub overcommit: f64,
    /// Usage in percent from which new volumes, snapshots and expansions are refused.
    pub full_threshold: u8,
    /// Usage in percent from which volume health reports a warning.
    pub warn_threshold: u8,
    /// Maximum number of volumes on this node; 0 for no limit.
    pub max_volumes: i64,
}

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The node id cannot be a topology value.
    #[error("node id {0:?}: use 1 to 63 letters, digits, '-', '_' or '.', a letter or digit at both ends")]
    NodeId(String),
    /// The overcommit ratio is out of range.
    #[error("overcommit ratio {0}: use a number from 1 to 1000")]
    Overcommit(String),
    /// The thresholds are not in order.
    #[error("thresholds warn {warn}% and full {full}%: use 1 <= warn <= full <= 100")]
    Thresholds {
        /// `warn_threshold`.
        warn: u8,
        /// `full_threshold`.
        full: u8,
    },
    /// The freeze limit is out of range.
    #[error("freeze limit {0} s: use 1 to 60 seconds")]
    FreezeLimit(u64),
    /// The volume limit is negative.
    #[error("maximum number of volumes {0}: use 0 for no limit, or a positive number")]
    MaxVolumes(i64),
}

impl Config {
    /// The defaults: no overcommit, warning at 85 %, full at 95 %, no volume limit, no attach.
    pub fn new(node_id: impl Into<String>, pool: impl Into<PathBuf>) -> Self {
        Self {
            node_id: node_id.into(),
            pool: pool.into(),
            create_pool: false,
            pool_id_file: None,
            freeze_limit: Duration::from_secs(2),
            attach: false,
            overcommit: 1.0,
            full_threshold: 95,
            warn_threshold: 85,
            max_volumes: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { node_id, overcommit, full_threshold, warn_threshold, max_volumes, freeze_limit, .. } =
            self;
        if !is_label_value(node_id) {
            return Err(ConfigError::NodeId(node_id.clone()));
        }
        if !(1.0..=1000.0).contains(overcommit) {
            return Err(ConfigError::Overcommit(overcommit.to_string()));
        }
        let (warn, full) = (*warn_threshold, *full_threshold);
        if !(1 <= warn && warn <= full && full <= 100) {
            return Err(ConfigError::Thresholds { warn, full });
        }
        if !(1..=60).contains(&freeze_limit.as_secs()) {
            return Err(ConfigError::FreezeLimit(freeze_limit.as_secs()));
        }
        if *max_volumes < 0 {
            return Err(ConfigError::MaxVolumes(*max_volumes));
        }
        Ok(())
    }
}

/// Topology values become label values of Kubernetes nodes.
fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= 63
        && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Config)) -> Result<(), ConfigError> {
        let mut config = Config::new("n1", "/pool");
        change(&mut config);
        config.check()
    }

    #[test]
    fn config_out_of_range_is_rejected() {
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|c| c.overcommit = 1.0), Ok(()));
        assert_eq!(with(|c| (c.warn_threshold, c.full_threshold) = (100, 100)), Ok(()));
        for ratio in [0.99, 0.0, -1.0, 1001.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(with(|c| c.overcommit = ratio), Err(ConfigError::Overcommit(_))), "{ratio}");
        }
        for (warn, full) in [(0, 95), (96, 95), (85, 101)] {
            let checked = with(|c| (c.warn_threshold, c.full_threshold) = (warn, full));
            assert_eq!(checked, Err(ConfigError::Thresholds { warn, full }));
        }
        for seconds in [0, 61] {
            let checked = with(|c| c.freeze_limit = Duration::from_secs(seconds));
            assert_eq!(checked, Err(ConfigError::FreezeLimit(seconds)));
        }
        assert_eq!(with(|c| c.max_volumes = -1), Err(ConfigError::MaxVolumes(-1)));
    }

    #[test]
    fn node_id_must_be_a_label_value() {
        for id in ["n", "node-1.example.com", "A_b", &"x".repeat(63)] {
            assert_eq!(with(|c| c.node_id = id.into()), Ok(()), "{id}");
        }
        for id in ["", "-n", "n-", "a/b", "a b", "ü", &"x".repeat(64)] {
            assert_eq!(with(|c| c.node_id = id.into()), Err(ConfigError::NodeId(id.into())), "{id}");
        }
    }
}
