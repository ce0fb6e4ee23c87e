//! A small cluster for tables: one volume, its claim, nodes, pods and attachments, told in a few words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::whole::Node;
use wharf_model::{Kind, Time, VolumeName};

use super::Settings;
use super::memory::{Memory, note};
use super::view::{Known, View};

pub(super) const DRIVER: &str = "d.test";
pub(super) const HANDLE: &str = "h";
pub(super) const VOLUME: &str = "pv";

pub(super) fn name() -> VolumeName {
    VolumeName { driver: DRIVER.into(), handle: HANDLE.into() }
}

pub(super) fn made<K: Kind>(object: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Puts the fields of one object over those of another; null takes one away.
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
    pub(super) known: Known,
    nodes: BTreeMap<String, Value>,
    memories: BTreeMap<String, Memory>,
    gone: BTreeMap<String, Arc<BTreeSet<String>>>,
}

impl World {
    /// A volume with these access modes, bound to the claim `ns/claim`.
    pub(super) fn new(modes: &[&str]) -> Self {
        let known = Known {
            volumes: vec![made(json!({
                "metadata": {"name": VOLUME, "uid": "pv-uid"},
                "spec": {
                    "accessModes": modes,
                    "csi": {"driver": DRIVER, "volumeHandle": HANDLE},
                    "claimRef": {"namespace": "ns", "name": "claim", "uid": "claim-uid"},
                },
            }))],
            claims: vec![made(json!({
                "metadata": {"namespace": "ns", "name": "claim", "uid": "claim-uid"},
                "spec": {"volumeName": VOLUME},
                "status": {"phase": "Bound"},
            }))],
            ..Known::default()
        };
        let (nodes, memories, gone) = Default::default();
        Self { settings: Settings::default(), known, nodes, memories, gone }
    }

    pub(super) fn exclusive() -> Self {
        Self::new(&["ReadWriteOnce"])
    }

    pub(super) fn shared() -> Self {
        Self::new(&["ReadWriteMany"])
    }

    pub(super) fn upstream(mut self) -> Self {
        self.settings = Settings { pace: self.settings.pace, ..Settings::upstream() };
        self
    }

    pub(super) fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// A node that is well and leaves attaching to us.
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

    /// More about a node.
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

    /// The node was deleted; its last status said that these were in use.
    pub(super) fn gone(mut self, node: &str, in_use: &[String]) -> Self {
        self.nodes.remove(node);
        self.gone.insert(node.to_owned(), Arc::new(in_use.iter().cloned().collect()));
        self
    }

    /// A running pod of namespace `ns` that uses the claim.
    pub(super) fn pod(self, name: &str, node: &str) -> Self {
        self.pod_with(name, node, json!({}))
    }

    pub(super) fn pod_with(mut self, name: &str, node: &str, with: Value) -> Self {
        // Those that come later are younger.
        let created = Time(self.known.pods.len() as i64 * 1000).to_string();
        let pod = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "creationTimestamp": created},
            "spec": {
                "nodeName": node,
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}],
            },
            "status": {"phase": "Running"},
        });
        self.known.pods.push(made(merged(pod, with)));
        self
    }

    /// An attachment with this status, or deletion.
    pub(super) fn attachment(mut self, node: &str, with: Value) -> Self {
        let attachment = json!({
            "metadata": {"name": name().attachment(node), "uid": format!("va-{node}")},
            "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": VOLUME}},
            "status": {"attached": false},
        });
        self.known.attachments.push(made(merged(attachment, with)));
        self
    }

    pub(super) fn attached(self, node: &str) -> Self {
        self.attachment(node, json!({"status": {"attached": true}}))
    }

    pub(super) fn uncertain(self, node: &str) -> Self {
        self.attachment(node, json!({}))
    }

    pub(super) fn going(self, node: &str) -> Self {
        let deleted =
            json!({"deletionTimestamp": Time(0).to_string(), "finalizers": ["external-attacher/d-test"]});
        self.attachment(node, json!({"metadata": deleted, "status": {"attached": true}}))
    }

    pub(super) fn remember(mut self, node: &str, memory: Memory) -> Self {
        self.memories.insert(node.to_owned(), memory);
        self
    }

    pub(super) fn objects(&self) -> Known {
        let nodes = self.nodes.values().map(|node| made::<Node>(node.clone())).collect();
        Known { nodes, ..self.known.clone() }
    }

    /// What is seen at a moment.
    pub(super) fn view(&self, now: Time) -> View<'_> {
        self.view_beside(now, &[])
    }

    /// The same, with nodes on which there may be nothing.
    pub(super) fn view_beside(&self, now: Time, besides: &[&str]) -> View<'_> {
        let unheard = self.memories.iter().filter(|(_, memory)| memory.unheard.is_some());
        let besides: Vec<&str> =
            besides.iter().copied().chain(unheard.map(|(node, _)| node.as_str())).collect();
        let memory = |node: &str| self.memories.get(node).cloned().unwrap_or_default();
        let in_use_last = |node: &str| self.gone.get(node).cloned();
        let mut view = View::of(&self.settings, name(), &self.objects(), &besides, memory, in_use_last);
        note(&mut view, now);
        view
    }
}
