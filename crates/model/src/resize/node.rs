//! What the node writes of its part of an expansion.

use serde_json::json;

use super::{CONDITIONS, refusal};
use crate::claim::ResizeStatus;
use crate::names::condition;
use crate::patch::{self, Guard, Patch, holds};
use crate::{PersistentVolumeClaim, Quantity, Time};

/// Says that the node has begun. Before the call, and only for the version that was seen: the user may just have asked
/// for another size.
pub fn begin(claim: &PersistentVolumeClaim) -> Patch {
    let status = json!({
        "allocatedResourceStatuses": {"storage": ResizeStatus::NodeResizeInProgress.as_str()},
    });
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// The claim has its size, and nothing of the expansion is left.
pub fn finished(claim: &PersistentVolumeClaim, size: Quantity) -> Patch {
    let status = json!({
        "capacity": {"storage": size.to_string()},
        "conditions": patch::conditions(&[], &patch::present(claim, &CONDITIONS)),
        "allocatedResourceStatuses": {"storage": null},
    });
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// The driver refused, finally. That is true of any version of the claim, so it is written over any.
pub fn failed(claim: &PersistentVolumeClaim, error: &str, infeasible: bool, now: Time) -> Patch {
    let failed = holds(condition::NODE_RESIZE_ERROR, "", &refusal(error), now);
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
    fn begun_and_done() {
        let begun = begin(&claim());
        assert_eq!(body(&begun)["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        assert_eq!(
            body(&begun)["status"],
            json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}})
        );
        let done = finished(&claim(), Quantity::from_bytes(1 << 30));
        assert_eq!(
            body(&done)["status"],
            json!({
                "capacity": {"storage": "1Gi"},
                "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}],
                "allocatedResourceStatuses": {"storage": null},
            })
        );
        assert_eq!(body(&done)["metadata"]["annotations"], Value::Null, "the controller's own word stays");
    }

    /// kubernetes.md 1.4 "Node errors".
    #[test]
    fn refused() {
        for (infeasible, state) in [(false, Value::Null), (true, json!({"storage": "NodeResizeInfeasible"}))]
        {
            let patch = failed(&claim(), "rpc error", infeasible, Time(0));
            let status = &body(&patch)["status"];
            assert_eq!(status["allocatedResourceStatuses"], state);
            assert_eq!(status["conditions"][0]["type"], "NodeResizeError");
            assert_eq!(status["conditions"][0]["message"], "failed to expand pvc with rpc error");
            assert_eq!(body(&patch)["metadata"], json!({"uid": "u"}));
        }
    }
}
