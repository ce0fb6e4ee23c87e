//! Evicts pods whose emptyDir volumes exceed their size limit, as kubelet does.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use wharf_cluster::{EventType, Priority};
use wharf_model::Pod;
use wharf_model::panics::catch;

use super::Pods;
use super::pod_state::PodVolumes;
use crate::volumes::plain::usage;

/// How often usage is measured: kubelet's housekeeping interval of evictions.
const INTERVAL: Duration = Duration::from_secs(10);

impl Pods {
    /// Measures all emptyDir volumes with a limit periodically.
    pub(super) async fn enforce_limits(self: Arc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for uid in self.pod_states.uids() {
                // After a panic the next tick measures again.
                let _ = catch("empty-dir-limits", uid.clone(), self.enforce_limits_of(&uid)).await;
            }
        }
    }

    async fn enforce_limits_of(&self, uid: &str) {
        let pod = self.pod_states.with(uid, |pod_state| {
            let measured = matches!(pod_state.volumes, PodVolumes::Mounted(_)) && pod_state.evicted.is_none();
            measured.then(|| Arc::clone(&pod_state.pod))
        });
        let is_limited = |pod: &Arc<Pod>| !pod.has_ended() && usage::limits(pod).next().is_some();
        let Some(pod) = pod.flatten().filter(is_limited) else { return };
        let (root, measured) = (self.agent.root.clone(), Arc::clone(&pod));
        let exceeded = tokio::task::spawn_blocking(move || usage::exceeded_limit(&root, &measured)).await;
        let Ok(Some(message)) = exceeded else { return };
        tracing::warn!(pod = %pod.metadata.key(), reason = message, "evicting pod");
        self.agent.events.record_for(&*pod, EventType::Warning, "Evicted", message.clone());
        self.pod_states.with(uid, |pod_state| pod_state.evicted = Some(message));
        self.queue.add(uid.to_owned(), Priority::High);
    }
}
