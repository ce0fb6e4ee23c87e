//! A small cluster for table tests: one volume, its claim, nodes, pods and attachments, built in a few words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{Kind, Monotonic, Node, Time, UniqueVolumeName};

use super::Settings;
use super::state::{AttachState, update_timers};
use super::view::{View, VolumeObjects};

pub(super) const DRIVER: &str = "d.test";
pub(super) const HANDLE: &str = "h";
pub(super) const VOLUME: &str = "pv";

pub(super) fn name() -> UniqueVolumeName {
    UniqueVolumeName { driver: DRIVER.into(), handle: HANDLE.into() }
}

pub(super) fn object<K: Kind>(object: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Merges `over` into `under`; null removes a field.
pub(super) fn merged(mut under: Value, over: Value) -> Value {
    match (&mut under, over) {
        (Value::Object(fields), Value::Object(over)) => {
            for (key, value) in over {
                let field = fields.remove(&key).unwrap_or(Value::Null);
                if !value.is_null() {
                    fields.insert(key, merged(field, value));
                }
            }
            under
        }
        (_, over) => over,
    }
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) objects: VolumeObjects,
    nodes: BTreeMap<String, Value>,
    states: BTreeMap<String, AttachState>,
    deleted: BTreeMap<String, Arc<BTreeSet<String>>>,
}

impl World {
    /// A volume with these access modes, bound to the claim `ns/claim`.
    pub(super) fn new(modes: &[&str]) -> Self {
        let objects = VolumeObjects {
            volumes: vec![object(json!({
                "metadata": {"name": VOLUME, "uid": "pv-uid"},
                "spec": {
                    "accessModes": modes,
                    "csi": {"driver": DRIVER, "volumeHandle": HANDLE},
                    "claimRef": {"namespace": "ns", "name": "claim", "uid": "claim-uid"},
                },
            }))],
            claims: vec![object(json!({
                "metadata": {"namespace": "ns", "name": "claim", "uid": "claim-uid"},
                "spec": {"volumeName": VOLUME},
                "status": {"phase": "Bound"},
            }))],
            ..VolumeObjects::default()
        };
        let (nodes, states, deleted) = Default::default();
        Self { settings: Settings::default(), objects, nodes, states, deleted }
    }

    pub(super) fn exclusive() -> Self {
        Self::new(&["ReadWriteOnce"])
    }

    pub(super) fn shared() -> Self {
        Self::new(&["ReadWriteMany"])
    }

    pub(super) fn upstream(mut self) -> Self {
        self.settings = Settings { worker_options: self.settings.worker_options, ..Settings::upstream() };
        self
    }

    pub(super) fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// A Ready node that leaves attaching to the controller.
    pub(super) fn node(self, name: &str) -> Self {
        self.node_with(
            name,
            json!({
                "metadata": {
                    "name": name,
                    "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
                },
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }),
        )
    }

    /// Merges more fields into a node.
    pub(super) fn node_with(mut self, name: &str, with: Value) -> Self {
        let node = self.nodes.remove(name).unwrap_or_else(|| json!({"metadata": {"name": name}}));
        self.nodes.insert(name.to_owned(), merged(node, with));
        self
    }

    pub(super) fn unready(self, name: &str) -> Self {
        self.node_with(name, json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}))
    }

    pub(super) fn tainted(self, name: &str) -> Self {
        let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
        self.node_with(name, json!({"spec": {"taints": taint}}))
    }

    pub(super) fn unmanaged(self, name: &str) -> Self {
        self.node_with(name, json!({"metadata": {"annotations": null}}))
    }

    pub(super) fn in_use(self, node: &str) -> Self {
        self.node_with(node, json!({"status": {"volumesInUse": [name().to_string()]}}))
    }

    pub(super) fn reported(self, node: &str) -> Self {
        let attached = json!([{"name": name().to_string(), "devicePath": ""}]);
        self.node_with(node, json!({"status": {"volumesAttached": attached}}))
    }

    /// Deletes the node; its last status had these volumes in use.
    pub(super) fn deleted_node(mut self, node: &str, in_use: &[String]) -> Self {
        self.nodes.remove(node);
        self.deleted.insert(node.to_owned(), Arc::new(in_use.iter().cloned().collect()));
        self
    }

    /// A running pod of namespace `ns` that uses the claim.
    pub(super) fn pod(self, name: &str, node: &str) -> Self {
        self.pod_with(name, node, json!({}))
    }

    pub(super) fn pod_with(mut self, name: &str, node: &str, with: Value) -> Self {
        // Pods that are added later are younger.
        let created = Time(self.objects.pods.len() as i64 * 1000).to_string();
        let pod = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "creationTimestamp": created},
            "spec": {
                "nodeName": node,
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}],
            },
            "status": {"phase": "Running"},
        });
        self.objects.pods.push(object(merged(pod, with)));
        self
    }

    /// An attachment with these fields.
    pub(super) fn attachment(mut self, node: &str, with: Value) -> Self {
        let attachment = json!({
            "metadata": {"name": name().attachment_name(node), "uid": format!("va-{node}")},
            "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": VOLUME}},
            "status": {"attached": false},
        });
        self.objects.attachments.push(object(merged(attachment, with)));
        self
    }

    pub(super) fn attached(self, node: &str) -> Self {
        self.attachment(node, json!({"status": {"attached": true}}))
    }

    pub(super) fn uncertain(self, node: &str) -> Self {
        self.attachment(node, json!({}))
    }

    pub(super) fn detaching(self, node: &str) -> Self {
        let deleted =
            json!({"deletionTimestamp": Time(0).to_string(), "finalizers": ["external-attacher/d-test"]});
        self.attachment(node, json!({"metadata": deleted, "status": {"attached": true}}))
    }

    pub(super) fn with_state(mut self, node: &str, state: AttachState) -> Self {
        self.states.insert(node.to_owned(), state);
        self
    }

    pub(super) fn all_objects(&self) -> VolumeObjects {
        let nodes = self.nodes.values().map(|node| object::<Node>(node.clone())).collect();
        VolumeObjects { nodes, ..self.objects.clone() }
    }

    /// The view at a time.
    pub(super) fn view(&self, now: Monotonic) -> View<'_> {
        self.view_with_nodes(now, &[])
    }

    /// The view at a time, including these nodes even if nothing is on them.
    pub(super) fn view_with_nodes(&self, now: Monotonic, extra_nodes: &[&str]) -> View<'_> {
        let unconfirmed = self.states.iter().filter(|(_, state)| state.unconfirmed.is_some());
        let extra_nodes: Vec<&str> =
            extra_nodes.iter().copied().chain(unconfirmed.map(|(node, _)| node.as_str())).collect();
        let state = |node: &str| self.states.get(node).cloned().unwrap_or_default();
        let last_in_use = |node: &str| self.deleted.get(node).cloned();
        let mut view =
            View::of(&self.settings, name(), &self.all_objects(), &extra_nodes, state, last_in_use);
        update_timers(&mut view, now);
        view
    }
}
