//! What users are told of a pod that has to wait: an event, and the condition PodScheduled, in upstream's words.

use serde_json::json;
use wharf_cluster::{ApiError, EventType, Patch, now};
use wharf_model::whole::Pod;
use wharf_model::{Kind, Time};

use super::Scheduler;

/// Pod, Normal: it has its node.
pub(super) const SCHEDULED: &str = "Scheduled";
/// Pod, Warning: it has none.
const FAILED: &str = "FailedScheduling";

const CONDITION: &str = "PodScheduled";
/// The condition's reason while no node will do.
pub(super) const UNSCHEDULABLE: &str = "Unschedulable";
/// The condition's reason after a failure.
pub(super) const ERROR: &str = "SchedulerError";

impl Scheduler {
    /// Tells why a pod has no node yet.
    pub(super) async fn report(&self, pod: &Pod, reason: &str, message: &str) {
        tracing::info!(pod = %pod.metadata.key(), message, "not scheduled");
        self.context.events.tell(pod, EventType::Warning, FAILED, message);
        // Who put it on a node has said all that is to be said of that.
        if !pod.spec.node_name.is_empty() {
            return;
        }
        let now_known = self.pods.get(&pod.metadata.key());
        let Some(patch) = condition(now_known.as_deref().unwrap_or(pod), reason, message, now()) else {
            return;
        };
        match self.context.cluster.patch(&Pod::API, &pod.metadata.key(), Some("status"), patch).await {
            Ok(_) | Err(ApiError::NotFound(_)) => {}
            Err(error) => tracing::warn!(%error, "cannot write why a pod has no node"),
        }
    }
}

/// The condition, if it is not on the pod already. Its time is that of the last change of its status.
fn condition(pod: &Pod, reason: &str, message: &str, now: Time) -> Option<Patch> {
    let present = pod.status.conditions.iter().find(|condition| condition.kind == CONDITION);
    let waits = present.filter(|present| present.status == "False");
    if waits.is_some_and(|present| present.reason == reason && present.message == message) {
        return None;
    }
    let since = waits.and_then(|present| present.last_transition_time).unwrap_or(now);
    Some(Patch::Strategic(json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {"conditions": [{
            "type": CONDITION, "status": "False", "reason": reason, "message": message,
            "lastProbeTime": null, "lastTransitionTime": since.to_string(),
        }]},
    })))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::testing::pod;
    use super::*;

    /// The pod's condition PodScheduled: False, Unschedulable.
    #[test]
    fn the_condition() {
        let now = Time(1_800_000_000_000);
        let with = |condition: Value| pod(json!({"status": {"conditions": [condition]}}));
        let written = |pod: &Pod| condition(pod, UNSCHEDULABLE, "m", now).map(|patch| patch.body().clone());
        let time = |pod: &Pod| written(pod).unwrap()["status"]["conditions"][0]["lastTransitionTime"].clone();
        let first = written(&pod(json!({}))).unwrap();
        assert_eq!(
            first,
            json!({"metadata": {"uid": "pod-uid"}, "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m",
                "lastProbeTime": null, "lastTransitionTime": "2027-01-15T08:00:00Z",
            }]}})
        );
        let before = "2026-01-15T08:00:00Z";
        let same = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m", "lastTransitionTime": before});
        assert_eq!(written(&with(same)), None);
        let other = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "n", "lastTransitionTime": before});
        assert_eq!(time(&with(other)), before);
        let was_true = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": before});
        assert_eq!(time(&with(was_true)), "2027-01-15T08:00:00Z");
    }
}
