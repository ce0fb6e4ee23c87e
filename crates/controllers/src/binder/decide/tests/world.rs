//! A fake API server that only holds objects, and the binder's loop over it, without a runtime.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use wharf_cluster::Patch;
use wharf_model::matching::{MatchFor, class_or_empty, find_matching_volume};
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass};

use super::super::super::view::{
    LiveObject, LiveReads, Rules, View, WorkItem, default_class, is_terminated, is_waiting,
};
use super::super::super::write::write;
use super::*;

/// A new claim of 1Gi in namespace `ns` with the UID `uid`, plus these changes.
pub(super) fn claim(name: &str, changes: Value) -> Value {
    let claim = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": "uid", "resourceVersion": "1", "annotations": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    });
    with(claim, changes)
}

/// A claim that is bound to a volume, plus these changes.
pub(super) fn bound_claim(name: &str, volume: &str, changes: Value) -> Value {
    let bound = claim(
        name,
        json!({
            "annotations": ["done", "ctl"],
            "spec.volumeName": volume,
            "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}},
        }),
    );
    with(bound, changes)
}

/// An available CSI volume of 1Gi, plus these changes.
pub(super) fn volume(name: &str, changes: Value) -> Value {
    let volume = json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": {}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "d.test", "volumeHandle": name},
        },
        "status": {"phase": "Available"},
    });
    with(volume, changes)
}

/// A value for `spec.claimRef` of a volume.
pub(super) fn reference(name: &str, uid: &str) -> Value {
    json!({"namespace": "ns", "name": name, "uid": uid})
}

/// A class of `d.test`.
pub(super) fn storage_class(name: &str, changes: Value) -> Value {
    with(
        json!({"metadata": {"name": name, "annotations": {}}, "provisioner": "d.test", "volumeBindingMode": "Immediate"}),
        changes,
    )
}

/// `a.b` is a path; `annotations` takes short names for the usual ones, or `key=value`.
fn with(mut object: Value, changes: Value) -> Value {
    for (path, value) in changes.as_object().unwrap() {
        if path == "annotations" {
            for word in value.as_array().unwrap() {
                let (key, value) = annotation(word.as_str().unwrap());
                object["metadata"]["annotations"][key] = json!(value);
            }
            continue;
        }
        let field = path.split('.').fold(&mut object, |object, part| &mut object[part]);
        *field = value.clone();
    }
    object
}

fn annotation(word: &str) -> (&str, &str) {
    match word {
        "done" => ("pv.kubernetes.io/bind-completed", "yes"),
        "ctl" => ("pv.kubernetes.io/bound-by-controller", "yes"),
        "provisioned" => ("pv.kubernetes.io/provisioned-by", "d.test"),
        "default" => ("storageclass.kubernetes.io/is-default-class", "true"),
        full => full.split_once('=').unwrap(),
    }
}

/// All objects that the binder reads.
#[derive(Clone, Default)]
pub(super) struct World {
    pub(super) claims: Vec<Value>,
    pub(super) volumes: Vec<Value>,
    pub(super) classes: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) nodes: Vec<String>,
    /// Objects that the API server has and the stores lack, by name.
    pub(super) uncached: BTreeSet<String>,
    /// The inverse of `clear_selected_node`.
    pub(super) keep_selected_node: bool,
    /// Events recorded with a write, each once.
    pub(super) write_events: Vec<String>,
    /// Events recorded by the last idle steps.
    pub(super) events: Vec<String>,
    pub(super) live_reads: usize,
    pub(super) writes: usize,
}

fn typed<K: DeserializeOwned>(values: &[Value]) -> Vec<Arc<K>> {
    values.iter().map(|value| Arc::new(serde_json::from_value(value.clone()).unwrap())).collect()
}

impl World {
    fn cached<K: Kind>(&self, values: &[Value]) -> Vec<Arc<K>> {
        let is_cached = |object: &Arc<K>| !self.uncached.contains(&object.meta().name);
        typed::<K>(values).into_iter().filter(is_cached).collect()
    }

    pub(super) fn view(&self, key: &Key, live: &LiveReads) -> View {
        let (claims, all): (Vec<Arc<PersistentVolumeClaim>>, Vec<Arc<PersistentVolume>>) =
            (self.cached(&self.claims), self.cached(&self.volumes));
        let classes: Vec<Arc<StorageClass>> = typed(&self.classes);
        let deleted = live.claim == Some(LiveObject::Absent);
        let claim = claims.into_iter().find(|claim| claim.key() == *key && !deleted);
        let pods: Vec<Arc<Pod>> = typed(&self.pods);
        let users: Vec<_> =
            pods.iter().filter(|pod| !is_terminated(pod) && pod.claims.contains(&key.name)).collect();
        let of_class = |name: &str| classes.iter().find(|class| class.metadata.name == name).cloned();
        let waiting = claim.clone().filter(|claim| is_waiting(claim));
        let offer = waiting.as_ref().and_then(|claim| {
            find_matching_volume(
                claim,
                all.iter().map(|volume| &**volume),
                MatchFor::Binder { delayed: false },
            )
            .filter(|volume| volume.spec.claim_ref.is_none())
            .and_then(|volume| all.iter().find(|cached| cached.metadata.name == volume.metadata.name))
            .cloned()
        });
        View {
            rules: Rules { clear_selected_node: !self.keep_selected_node },
            class: waiting.as_ref().and_then(|claim| of_class(class_or_empty(claim))),
            default_class: waiting.as_ref().and_then(|_| default_class(&classes)),
            named_volume: claim
                .as_ref()
                .and_then(|claim| all.iter().find(|volume| volume.metadata.name == claim.spec.volume_name))
                .cloned(),
            volumes: all
                .iter()
                .filter(|volume| {
                    volume.spec.claim_ref.as_ref().is_some_and(|reference| reference.key() == *key)
                })
                .cloned()
                .collect(),
            offer,
            unscheduled: users
                .iter()
                .filter(|pod| pod.node_name.is_empty())
                .map(|pod| pod.metadata.name.clone())
                .collect(),
            users: users.iter().map(|pod| pod.key().to_string()).collect(),
            selected_node_known: claim
                .as_ref()
                .and_then(|claim| claim.selected_node().map(str::to_owned))
                .is_none_or(|node| self.nodes.contains(&node) && !self.uncached.contains(&node)),
            live: live.clone(),
            claim,
        }
    }

    fn get_live(&mut self, values: &[Value], name: &str) -> LiveObject {
        self.live_reads += 1;
        // A live read updates the stores.
        self.uncached.remove(name);
        let found = values.iter().find(|value| value["metadata"]["name"] == *name);
        found.map_or(LiveObject::Absent, |value| {
            LiveObject::Present(value["metadata"]["uid"].as_str().unwrap().to_owned())
        })
    }

    /// Reconciles one claim and its volumes; `false` once the budget of writes is used up.
    fn work_on_claim(&mut self, key: &Key, budget: &mut usize) -> bool {
        let mut live = LiveReads::default();
        for _ in 0..50 {
            let view = self.view(key, &live);
            let step = decide(&view);
            match &step {
                Step::Idle(Idle { events, problem }) => {
                    self.events.extend(events.iter().map(text));
                    self.events.extend(problem.iter().map(|problem| format!("problem: {problem}")));
                    return true;
                }
                Step::FetchClaim => {
                    let claims = self.claims.clone();
                    live.claim = Some(self.get_live(&claims, &key.name));
                }
                Step::FetchVolume { name } => {
                    let volumes = self.volumes.clone();
                    live.volume = Some((name.clone(), self.get_live(&volumes, name)));
                }
                Step::FetchNode { name } => {
                    let nodes: Vec<Value> = self
                        .nodes
                        .iter()
                        .map(|name| json!({"metadata": {"name": name, "uid": name}}))
                        .collect();
                    live.node = Some((name.clone(), self.get_live(&nodes, name)));
                }
                _ => {
                    if *budget == 0 {
                        return false;
                    }
                    *budget -= 1;
                    self.apply(key, write(&step, &view).expect("every writing step has a patch"));
                    if let Step::SetVolumePhase { event: Some(event), .. }
                    | Step::SetClaimPhase { event: Some(event), .. } = &step
                    {
                        self.write_events.push(text(event));
                    }
                }
            }
        }
        panic!("the steps do not converge: {:?}", decide(&self.view(key, &live)));
    }

    fn work_on_volume(&mut self, name: &str, budget: &mut usize) -> bool {
        loop {
            let volumes: Vec<Arc<PersistentVolume>> = typed(&self.volumes);
            let volume = volumes.into_iter().find(|volume| volume.metadata.name == name);
            let Some(volume) = volume.filter(|volume| volume.spec.claim_ref.is_none()) else { return true };
            let step = decide_unclaimed(&volume);
            let mut view = self.view(&Key::namespaced("ns", "unused"), &LiveReads::default());
            view.volumes = vec![volume];
            match write(&step, &view) {
                None => return true,
                Some(_) if *budget == 0 => return false,
                Some(write) => {
                    *budget -= 1;
                    self.apply(&Key::namespaced("ns", "unused"), write);
                }
            }
        }
    }

    fn apply(&mut self, claim: &Key, write: Write) {
        self.writes += 1;
        let (objects, name, part, patch) = match write {
            Write::Claim(part, patch) => (&mut self.claims, claim.name.clone(), part, patch),
            Write::Volume(name, part, patch) => (&mut self.volumes, name, part, patch),
        };
        let object = objects.iter_mut().find(|object| object["metadata"]["name"] == *name).unwrap();
        match patch {
            Patch::Merge(mut body) => {
                let metadata = &mut body["metadata"];
                assert_eq!(metadata["uid"], object["metadata"]["uid"]);
                assert_eq!(metadata["resourceVersion"], object["metadata"]["resourceVersion"]);
                let has_status = body.get("status").is_some();
                assert_eq!(has_status, part == Part::Status, "a status patch holds only the status: {body}");
                assert!(!(has_status && body.get("spec").is_some()), "{body}");
                merge(object, &body);
            }
            Patch::Json(operations) => {
                for operation in operations.as_array().unwrap() {
                    if operation["op"] == "remove" {
                        let (list, index) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
                        let list = object.pointer_mut(list).unwrap().as_array_mut().unwrap();
                        list.remove(index.parse().unwrap());
                    }
                }
            }
            Patch::Strategic(body) => panic!("{body}"),
        }
        let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }

    fn items(&self) -> BTreeSet<WorkItem> {
        let claims = typed::<PersistentVolumeClaim>(&self.claims);
        let volumes = typed::<PersistentVolume>(&self.volumes);
        claims
            .iter()
            .map(|claim| WorkItem::Claim(claim.key()))
            .chain(volumes.iter().map(|v| WorkItem::of(v)))
            .collect()
    }

    /// Reconciles until nothing is left to do or the budget of writes is used up.
    pub(super) fn run(&mut self, mut budget: usize) {
        loop {
            let before = self.writes;
            self.events.clear();
            for item in self.items() {
                let finished = match item {
                    WorkItem::Claim(key) => self.work_on_claim(&key, &mut budget),
                    WorkItem::Volume(name) => self.work_on_volume(&name, &mut budget),
                    WorkItem::Class(_) => true,
                };
                if !finished {
                    return;
                }
            }
            if self.writes == before {
                return;
            }
        }
    }

    /// Volumes, then claims: see [`of_volume`] and [`of_claim`].
    pub(super) fn state(&self) -> Vec<String> {
        self.volumes.iter().map(of_volume).chain(self.claims.iter().map(of_claim)).collect()
    }

    /// Events recorded with writes, then those of the last idle steps.
    pub(super) fn events(&self) -> Vec<&str> {
        self.write_events.iter().chain(&self.events).map(String::as_str).collect()
    }

    /// Number of live reads.
    pub(super) fn live_reads(&self) -> usize {
        self.live_reads
    }
}

fn text(event: &EventRecord) -> String {
    let target = match &event.target {
        EventTarget::Claim => "claim",
        EventTarget::Volume(name) => name,
    };
    format!("{target}: {:?} {}: {}", event.kind, event.reason, event.note)
}

fn marks(object: &Value, names: &[(&str, &str)]) -> String {
    let annotations = object["metadata"]["annotations"].as_object();
    let has = |key: &str| annotations.is_some_and(|annotations| annotations.contains_key(key));
    names.iter().filter(|(key, _)| has(key)).map(|(_, mark)| format!(" +{mark}")).collect()
}

/// `v1 Bound c:uid +ctl`: name, phase, claim, and `+ctl` if a controller bound it.
fn of_volume(volume: &Value) -> String {
    let text = |path: &str| volume.pointer(path).and_then(Value::as_str).unwrap_or("");
    let claim = match volume["spec"]["claimRef"].is_object() {
        true => format!("{}:{}", text("/spec/claimRef/name"), text("/spec/claimRef/uid")),
        false => "-".to_owned(),
    };
    let marks = marks(volume, &[("pv.kubernetes.io/bound-by-controller", "ctl")]);
    format!("{} {} {claim}{marks}", text("/metadata/name"), text("/status/phase"))
}

/// `c Bound v1 1Gi +done +ctl`: name, phase, volume, size, and marks for annotations.
fn of_claim(claim: &Value) -> String {
    let text = |path: &str| claim.pointer(path).and_then(Value::as_str).unwrap_or("");
    let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let names = [
        ("pv.kubernetes.io/bind-completed", "done"),
        ("pv.kubernetes.io/bound-by-controller", "ctl"),
        ("volume.kubernetes.io/storage-provisioner", "provisioner"),
        ("volume.kubernetes.io/selected-node", "node"),
    ];
    let class = claim.pointer("/spec/storageClassName").and_then(Value::as_str);
    let class = class.filter(|class| !class.is_empty()).map(|class| format!(" {class}")).unwrap_or_default();
    let (volume, size) = (or_none(text("/spec/volumeName")), or_none(text("/status/capacity/storage")));
    let (name, phase) = (text("/metadata/name"), text("/status/phase"));
    format!("{name} {phase} {volume} {size}{class}{}", marks(claim, &names))
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        match change.is_null() {
            true => drop(target.as_object_mut().unwrap().remove(key)),
            false => merge(&mut target[key], change),
        }
    }
}

/// Runs a world to completion and compares; then does the same with a crash after every write.
pub(super) fn check(id: &str, world: &World, state: &[&str], events: &[&str]) {
    let mut uninterrupted = world.clone();
    uninterrupted.run(usize::MAX);
    assert_eq!(uninterrupted.state(), state, "{id}");
    assert_eq!(uninterrupted.events(), events, "{id}");
    for crash_after in 0..uninterrupted.writes {
        let mut world = world.clone();
        world.run(crash_after);
        world.run(usize::MAX);
        assert_eq!(world.state(), state, "{id}, after a crash behind write {crash_after}");
        assert_eq!(world.writes, uninterrupted.writes, "{id}: nothing is written twice");
    }
}
