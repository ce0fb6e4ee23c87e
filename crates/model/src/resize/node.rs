//! The patches by which the node records its part of an expansion.

use serde_json::json;

use super::{CONDITIONS, error_message};
use crate::claim::ResizeStatus;
use crate::names::condition;
use crate::patch::{self, Guard, Patch, condition_true};
use crate::{PersistentVolumeClaim, Quantity, Time};

/// Records, before NodeExpandVolume, that the node is expanding. Requires the version that was read: the user may just
/// have requested another size.
pub fn mark_in_progress(claim: &PersistentVolumeClaim) -> Patch {
    let status = json!({
        "allocatedResourceStatuses": {"storage": ResizeStatus::NodeResizeInProgress.as_str()},
    });
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// Records the new capacity and removes the state of the expansion.
pub fn mark_finished(claim: &PersistentVolumeClaim, size: Quantity) -> Patch {
    let status = json!({
        "capacity": {"storage": size.to_string()},
        "conditions": patch::conditions(&[], &patch::present_conditions(claim, &CONDITIONS)),
        "allocatedResourceStatuses": {"storage": null},
    });
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// Records a final error of the driver. It applies to any version of the claim, so the patch requires none.
pub fn mark_failed(claim: &PersistentVolumeClaim, error: &str, infeasible: bool, now: Time) -> Patch {
    let failed = condition_true(condition::NODE_RESIZE_ERROR, "", &error_message(error), now);
    let mut status = json!({"conditions": patch::conditions(&[failed], &[])});
    if infeasible {
        status["allocatedResourceStatuses"] = json!({"storage": ResizeStatus::NodeResizeInfeasible.as_str()});
    }
    patch::status(&claim.metadata, Guard::Identity, &[], status)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "uid": "u", "resourceVersion": "7"},
            "status": {"conditions": [
                {"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"},
            ]},
        }))
        .unwrap()
    }

    fn body(patch: &Patch) -> &Value {
        patch.body()
    }

    /// kubernetes.md 1.4 "Node writes": in progress with a precondition; done clears state and all resize conditions.
    #[test]
    fn progress_and_completion_are_recorded() {
        let started_size = mark_in_progress(&claim());
        assert_eq!(body(&started_size)["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        assert_eq!(
            body(&started_size)["status"],
            json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}})
        );
        let done = mark_finished(&claim(), Quantity::from_bytes(1 << 30));
        assert_eq!(
            body(&done)["status"],
            json!({
                "capacity": {"storage": "1Gi"},
                "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}],
                "allocatedResourceStatuses": {"storage": null},
            })
        );
        assert_eq!(
            body(&done)["metadata"]["annotations"],
            Value::Null,
            "the controller's annotation is unchanged"
        );
    }

    /// kubernetes.md 1.4 "Node errors".
    #[test]
    fn final_error_is_recorded() {
        for (infeasible, state) in [(false, Value::Null), (true, json!({"storage": "NodeResizeInfeasible"}))]
        {
            let patch = mark_failed(&claim(), "rpc error", infeasible, Time(0));
            let status = &body(&patch)["status"];
            assert_eq!(status["allocatedResourceStatuses"], state);
            assert_eq!(status["conditions"][0]["type"], "NodeResizeError");
            assert_eq!(status["conditions"][0]["message"], "failed to expand pvc with rpc error");
            assert_eq!(body(&patch)["metadata"], json!({"uid": "u"}));
        }
    }
}
