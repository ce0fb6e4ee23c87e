//! Limits the number of open watches and counts them by resource and scope.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::route::Target;

/// Upstream's metric of long-running requests. Only watches are counted here.
const METRIC: &str = "apiserver_longrunning_requests";

/// The open watches of an API server. Clones share them.
#[derive(Clone)]
pub(crate) struct OpenWatches {
    limit: Arc<Semaphore>,
    counts: Arc<Mutex<BTreeMap<WatchedResource, usize>>>,
}

/// The resource and scope of a watch: the labels of upstream's metric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct WatchedResource {
    group: &'static str,
    resource: &'static str,
    version: &'static str,
    scope: &'static str,
}

/// An open watch. Dropping it releases its place and decrements the count.
pub(crate) struct OpenWatch {
    watches: OpenWatches,
    resource: WatchedResource,
    _permit: OwnedSemaphorePermit,
}

impl OpenWatches {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: Arc::new(Semaphore::new(limit)), counts: Arc::default() }
    }

    /// Opens a watch. `name` is set if the watch selects a single object. Returns `None` if the limit is reached.
    pub(crate) fn open(&self, target: &Target, name: Option<&str>) -> Option<OpenWatch> {
        let permit = Arc::clone(&self.limit).try_acquire_owned().ok()?;
        let scope = match (name, target.namespace.as_str()) {
            (Some(_), _) => "resource",
            (None, "") => "cluster",
            (None, _) => "namespace",
        };
        let kind = target.kind;
        let resource =
            WatchedResource { group: kind.group, resource: kind.plural, version: kind.version, scope };
        *self.counts().entry(resource.clone()).or_default() += 1;
        Some(OpenWatch { watches: self.clone(), resource, _permit: permit })
    }

    /// The open watches as upstream's metric, in the text format of Prometheus.
    pub(crate) fn metrics(&self) -> String {
        let mut text = format!(
            "# HELP {METRIC} Gauge of all active long-running apiserver requests broken out by verb, group, version, \
             resource, scope and component. Not all requests are tracked this way.\n# TYPE {METRIC} gauge\n",
        );
        for (WatchedResource { group, resource, version, scope }, count) in &*self.counts() {
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "{METRIC}{{component=\"apiserver\",group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",\
                 subresource=\"\",verb=\"WATCH\",version=\"{version}\"}} {count}",
            );
        }
        text
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<WatchedResource, usize>> {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut counts = self.watches.counts();
        let Some(count) = counts.get_mut(&self.resource) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.resource);
        }
    }
}
