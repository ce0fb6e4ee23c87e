//! What an operator decides about a pool, checked once at the start.

use std::path::PathBuf;

/// How a pool is to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// This node, as the orchestrator calls it; also the value of the topology key.
    pub node_id: String,
    /// The pool's directory. It must exist: a pool on a disk that is not mounted must not spring up on the
    /// disk below.
    pub pool: PathBuf,
    /// Serve ControllerPublish and ControllerUnpublish.
    pub attach: bool,
    /// How many bytes may be promised for each byte that the pool's file system has. 1.0 promises no more
    /// than there is.
    pub overcommit: f64,
    /// From this many percent in use on there are no new volumes, snapshots or expansions.
    pub full_threshold: u8,
    /// From this many percent in use on the volumes' health says so.
    pub warn_threshold: u8,
    /// How many volumes can be on this node at once; 0 for no limit.
    pub max_volumes: i64,
}

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The node id cannot be a topology value.
    #[error("node id {0:?}: use 1 to 63 letters, digits, '-', '_' or '.', a letter or digit at both ends")]
    NodeId(String),
    /// The overcommit ratio is no ratio.
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
    /// The limit of volumes is negative.
    #[error("at most {0} volumes: use 0 for no limit, or a positive number")]
    MaxVolumes(i64),
}

impl Config {
    /// Twice as much promised as there is, a warning at 85 %, nothing new from 95 % on, no limit of volumes,
    /// no attach.
    pub fn new(node_id: impl Into<String>, pool: impl Into<PathBuf>) -> Self {
        Self {
            node_id: node_id.into(),
            pool: pool.into(),
            attach: false,
            overcommit: 2.0,
            full_threshold: 95,
            warn_threshold: 85,
            max_volumes: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { node_id, pool: _, attach: _, overcommit, full_threshold, warn_threshold, max_volumes } =
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
    fn settings() {
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
        assert_eq!(with(|c| c.max_volumes = -1), Err(ConfigError::MaxVolumes(-1)));
    }

    #[test]
    fn node_ids() {
        for id in ["n", "node-1.example.com", "A_b", &"x".repeat(63)] {
            assert_eq!(with(|c| c.node_id = id.into()), Ok(()), "{id}");
        }
        for id in ["", "-n", "n-", "a/b", "a b", "ü", &"x".repeat(64)] {
            assert_eq!(with(|c| c.node_id = id.into()), Err(ConfigError::NodeId(id.into())), "{id}");
        }
    }
}
