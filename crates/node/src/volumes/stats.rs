//! Volume statistics from drivers as `kubelet_volume_stats_*`, and abnormal volume conditions as events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tonic::Code;
use wharf_cluster::EventType;
use wharf_csi::v1;
use wharf_csi::v1::volume_usage::Unit;
use wharf_model::Key;
use wharf_model::panics::catch;

use super::manager::Manager;
use super::world::{Progress, Source, Volume};

type Labels = [(&'static str, String); 2];

/// Gauges by claim; clones share the same gauges.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    capacity: Family<Labels, Gauge>,
    available: Family<Labels, Gauge>,
    used: Family<Labels, Gauge>,
    inodes: Family<Labels, Gauge>,
    inodes_free: Family<Labels, Gauge>,
    inodes_used: Family<Labels, Gauge>,
    abnormal: Family<Labels, Gauge>,
    shown: Arc<Mutex<BTreeSet<Key>>>,
}

impl Statistics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, family) in [
            ("capacity_bytes", "Capacity in bytes of the volume", &self.capacity),
            ("available_bytes", "Number of available bytes in the volume", &self.available),
            ("used_bytes", "Number of used bytes in the volume", &self.used),
            ("inodes", "Maximum number of inodes in the volume", &self.inodes),
            ("inodes_free", "Number of free inodes in the volume", &self.inodes_free),
            ("inodes_used", "Number of used inodes in the volume", &self.inodes_used),
            (
                "health_status_abnormal",
                "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 \
                 indicates volume is healthy",
                &self.abnormal,
            ),
        ] {
            registry.register(format!("kubelet_volume_stats_{name}"), help, family.clone());
        }
    }

    fn show(&self, claim: &Key, response: &v1::NodeGetVolumeStatsResponse) {
        let labels = labels(claim);
        for usage in &response.usage {
            let [total, free, used] = match usage.unit() {
                Unit::Bytes => [&self.capacity, &self.available, &self.used],
                Unit::Inodes => [&self.inodes, &self.inodes_free, &self.inodes_used],
                Unit::Unknown => continue,
            };
            total.get_or_create(&labels).set(usage.total);
            free.get_or_create(&labels).set(usage.available);
            used.get_or_create(&labels).set(usage.used);
        }
        if let Some(condition) = &response.volume_condition {
            self.abnormal.get_or_create(&labels).set(condition.abnormal.into());
        }
        self.shown.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(claim.clone());
    }

    /// Removes the gauges of all other claims.
    fn keep(&self, claims: &BTreeSet<Key>) {
        let mut shown = self.shown.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for gone in shown.extract_if(.., |claim| !claims.contains(claim)) {
            let labels = labels(&gone);
            for family in [
                &self.capacity,
                &self.available,
                &self.used,
                &self.inodes,
                &self.inodes_free,
                &self.inodes_used,
                &self.abnormal,
            ] {
                family.remove(&labels);
            }
        }
    }
}

fn labels(claim: &Key) -> Labels {
    [
        ("namespace", claim.namespace.clone().unwrap_or_default()),
        ("persistentvolumeclaim", claim.name.clone()),
    ]
}

/// A pod that has the volume mounted, and the claim; `None` if there are no statistics to query.
fn stats_target(volume: &Volume) -> Option<(&str, Key)> {
    let has = |(pod, _): &(&String, _)| {
        volume.mounts.get(*pod).is_some_and(|mount| mount.progress == Progress::Mounted)
    };
    let (pod, desired) = volume.desired.iter().find(has)?;
    match &desired.source {
        Source::Persistent { claim, .. } => Some((pod, claim.metadata.key())),
        Source::Inline(_) => None,
    }
}

/// Volumes with statistics to query, by driver.
fn by_driver(volumes: Vec<Volume>) -> BTreeMap<String, Vec<Volume>> {
    let mut drivers: BTreeMap<String, Vec<Volume>> = BTreeMap::new();
    for volume in volumes.into_iter().filter(|volume| stats_target(volume).is_some()) {
        drivers.entry(volume.driver.clone()).or_default().push(volume);
    }
    drivers
}

impl Manager {
    /// Queries drivers periodically, for as long as it is polled: the volumes of a driver one by one, all drivers
    /// concurrently, so that a driver that hangs does not block the others.
    pub(super) async fn collect_statistics(self: &Arc<Self>) {
        let mut ticks = interval(self.settings.statistics);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut rounds, mut busy) = (JoinSet::new(), BTreeMap::<String, AbortHandle>::new());
        loop {
            ticks.tick().await;
            while rounds.try_join_next().is_some() {}
            busy.retain(|_, round| !round.is_finished());
            let volumes: Vec<Volume> = self.world().volumes.values().cloned().collect();
            let claims = volumes.iter().filter_map(stats_target).map(|(_, claim)| claim).collect();
            self.statistics.keep(&claims);
            for (driver, volumes) in by_driver(volumes) {
                busy.entry(driver.clone()).or_insert_with(|| {
                    let manager = Arc::clone(self);
                    // After a panic the next tick queries the driver again.
                    let queried = driver.clone();
                    rounds.spawn(async move {
                        let _ = catch("volume-stats", queried, manager.query_all_stats(&volumes)).await;
                    })
                });
            }
        }
    }

    /// Queries all volumes of a driver. After a timeout the remaining volumes are skipped.
    async fn query_all_stats(&self, volumes: &[Volume]) {
        for volume in volumes {
            let Some((pod, claim)) = stats_target(volume) else { continue };
            if self.query_stats(volume, pod, &claim).await == Err(Code::DeadlineExceeded) {
                return;
            }
        }
    }

    async fn query_stats(&self, volume: &Volume, pod: &str, claim: &Key) -> Result<(), Code> {
        let Some(plugin) = self.parts.plugins.get(&volume.driver) else { return Ok(()) };
        if !plugin.capabilities.stats {
            return Ok(());
        }
        let staging = match plugin.capabilities.stage_unstage {
            true => volume.staging(&self.parts.root).display().to_string(),
            false => String::new(),
        };
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: volume.handle.clone(),
            volume_path: volume.target(&self.parts.root, pod).display().to_string(),
            staging_target_path: staging,
        };
        let client = plugin.client().with_deadline(self.settings.timeout);
        match client.node().node_get_volume_stats(request).await {
            Ok(response) => {
                let response = response.into_inner();
                self.statistics.show(claim, &response);
                if let Some(condition) = response.volume_condition.filter(|condition| condition.abnormal)
                    && plugin.capabilities.condition
                {
                    self.record_abnormal_event(volume, &condition.message);
                }
                Ok(())
            }
            Err(status) => {
                tracing::debug!(volume_handle = volume.handle, pvc = %claim, error = %status, "NodeGetVolumeStats failed");
                Err(status.code())
            }
        }
    }

    fn record_abnormal_event(&self, volume: &Volume, message: &str) {
        for desired in volume.desired.values() {
            for name in &desired.names {
                let note = format!("Volume {name}: {message}");
                self.parts.events.record_for(
                    &*desired.pod,
                    EventType::Warning,
                    "VolumeConditionAbnormal",
                    note,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn response() -> v1::NodeGetVolumeStatsResponse {
        let usage = |unit: Unit, total, available| v1::VolumeUsage {
            total,
            available,
            used: total - available,
            unit: unit.into(),
        };
        v1::NodeGetVolumeStatsResponse {
            usage: vec![usage(Unit::Bytes, 100, 40), usage(Unit::Inodes, 10, 7)],
            volume_condition: Some(v1::VolumeCondition { abnormal: true, message: "bad".into() }),
        }
    }

    /// kubernetes.md 1.8 "Statistics": kubelet's names and labels; gauges of unmounted volumes are removed.
    #[test]
    fn gauges_match_kubelet() {
        let statistics = Statistics::default();
        let mut registry = Registry::default();
        statistics.register(&mut registry);
        let claim = Key::namespaced("ns", "data");
        statistics.show(&claim, &response());
        let text = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        let shown = text();
        for (name, value) in [
            ("capacity_bytes", 100),
            ("available_bytes", 40),
            ("used_bytes", 60),
            ("inodes", 10),
            ("inodes_free", 7),
            ("inodes_used", 3),
            ("health_status_abnormal", 1),
        ] {
            let line = format!(
                "kubelet_volume_stats_{name}{{namespace=\"ns\",persistentvolumeclaim=\"data\"}} {value}\n"
            );
            assert!(shown.contains(&line), "{line} is not in {shown}");
        }
        statistics.keep(&[claim.clone()].into());
        assert_eq!(text(), shown);
        statistics.keep(&BTreeSet::new());
        assert!(!text().contains("data"));
    }
}
