//! Usage of volumes: from memory while it is recent, else from the server with a deadline.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wharf_driver::backend::{FsUsage, GetUsage, TargetError};

use super::{NodeMounts, target_error, unexpected};
use crate::mount;
use crate::worker::{NodeRequest, NodeResponse, WorkerErrorKind};

/// How long the last numbers are served if the server does not answer.
const LAST_ANSWER: Duration = Duration::from_secs(600);

/// The last numbers of each volume, by volume ID.
pub(super) struct UsageCache {
    fresh: Duration,
    entries: Mutex<HashMap<String, (Instant, FsUsage)>>,
}

/// What to do with remembered numbers of an age.
#[derive(Debug, PartialEq, Eq)]
enum Remembered {
    Fresh,
    /// Only if the server does not answer.
    Fallback,
    TooOld,
}

fn judge(age: Duration, fresh: Duration) -> Remembered {
    match age {
        age if age < fresh => Remembered::Fresh,
        age if age < LAST_ANSWER => Remembered::Fallback,
        _ => Remembered::TooOld,
    }
}

impl UsageCache {
    pub(super) fn new(fresh: Duration) -> Self {
        Self { fresh, entries: Mutex::default() }
    }

    fn get(&self, id: &str) -> Option<(Remembered, FsUsage)> {
        let entries = self.lock();
        let (at, usage) = entries.get(id)?;
        Some((judge(at.elapsed(), self.fresh), *usage))
    }

    fn put(&self, id: &str, usage: FsUsage) {
        self.lock().insert(id.to_owned(), (Instant::now(), usage));
    }

    pub(super) fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Instant, FsUsage)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeMounts {
    pub(super) async fn read_usage(&self, request: &GetUsage) -> Result<FsUsage, TargetError> {
        let path = self.resolve(&request.path).await?;
        let Some(mount) = self.table()?.at(&path).cloned() else {
            return Err(TargetError::NotFound(format!("no volume is mounted at {}", path.display())));
        };
        let remembered = self.usage.get(&request.id);
        if let Some((Remembered::Fresh, usage)) = remembered {
            return Ok(usage);
        }
        let server = mount::server_of(&mount).map(|server| server.server);
        let read = NodeRequest::Usage(path);
        match self.workers.node(server.as_deref(), read, self.options.stats_timeout).await {
            Ok(NodeResponse::Usage(usage)) => {
                self.usage.put(&request.id, usage.into());
                Ok(usage.into())
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => match remembered {
                Some((Remembered::Fallback, usage)) if error.kind() == WorkerErrorKind::Unavailable => {
                    Ok(usage)
                }
                _ => Err(target_error(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_fresh_then_a_fallback_then_forgotten() {
        let minute = Duration::from_secs(60);
        for (age, fresh, expected) in [
            (Duration::ZERO, minute, Remembered::Fresh),
            (minute, minute, Remembered::Fallback),
            (9 * minute, minute, Remembered::Fallback),
            (10 * minute, minute, Remembered::TooOld),
            (11 * minute, 30 * minute, Remembered::Fresh),
            (Duration::ZERO, Duration::ZERO, Remembered::Fallback),
        ] {
            assert_eq!(judge(age, fresh), expected, "{age:?} {fresh:?}");
        }
        let cache = UsageCache::new(minute);
        assert!(cache.get("v").is_none());
        let usage = FsUsage { total_bytes: 5, ..FsUsage::default() };
        cache.put("v", usage);
        assert_eq!(cache.get("v"), Some((Remembered::Fresh, usage)));
        cache.forget("v");
        assert!(cache.get("v").is_none());
    }
}
