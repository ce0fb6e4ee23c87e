//! Reports why a pod is not scheduled: an event and the condition PodScheduled, with upstream's reasons and messages.

use serde_json::json;
use wharf_cluster::{ApiError, EventType, Patch, now};
use wharf_model::{Kind, Pod, Time};

use super::Scheduler;

/// Normal event: the pod was bound to a node.
pub(super) const SCHEDULED: &str = "Scheduled";
/// Warning event: the pod was not bound.
const FAILED: &str = "FailedScheduling";

const CONDITION: &str = "PodScheduled";
/// The condition's reason when no node fits.
pub(super) const UNSCHEDULABLE: &str = "Unschedulable";
/// The condition's reason after a failure.
pub(super) const ERROR: &str = "SchedulerError";

impl Scheduler {
    /// Reports why a pod has no node yet.
    pub(super) async fn report(&self, pod: &Pod, reason: &str, message: &str) {
        tracing::info!(pod = %pod.metadata.key(), reason, error = message, "pod not scheduled");
        self.context.events.record_for(pod, EventType::Warning, FAILED, message);
        // A pod that was created with a nodeName has no PodScheduled=False condition.
        if !pod.node_name.is_empty() {
            return;
        }
        let now_known = self.pods.get(&pod.metadata.key());
        let Some(patch) = condition(now_known.as_deref().unwrap_or(pod), reason, message, now()) else {
            return;
        };
        match self.context.cluster.patch(&Pod::API, &pod.metadata.key(), Some("status"), patch).await {
            Ok(_) | Err(ApiError::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(pod = %pod.metadata.key(), %error, "failed to update PodScheduled condition")
            }
        }
    }
}

/// The patch for the condition; `None` if the pod has it. `lastTransitionTime` changes only with the status.
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

    /// The condition PodScheduled: False, Unschedulable.
    #[test]
    fn condition_is_written_once_and_keeps_its_transition_time() {
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
