//! The objects that are created on all sides.

use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "default";
/// Class for pods: their volumes are provisioned when the pods are scheduled.
pub(crate) const WAITS: &str = "bench-waits";
/// Class for volumes that no pod uses.
pub(crate) const NOW: &str = "bench-now";

pub(crate) fn class(name: &str, driver: &str, mode: &str) -> Value {
    json!({"metadata": {"name": name}, "provisioner": driver, "volumeBindingMode": mode})
}

pub(crate) fn claim(name: &str, class: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": "16Mi"}},
        },
    })
}

/// A pod with the claim of the same name. It exits on SIGTERM.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "containers": [{
                "name": "main",
                "image": "busybox:1.36",
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    })
}
