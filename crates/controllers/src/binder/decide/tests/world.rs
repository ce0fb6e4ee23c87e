//! A server of nothing but objects, and the binder's loop over it, without a runtime.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use wharf_cluster::Patch;
use wharf_model::matching::{Seeker, best, class};
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, StorageClass};

use super::super::super::view::{Found, Live, Rules, Subject, View, default_class, has_ended, is_waiting};
use super::super::super::write::write;
use super::*;

/// A claim of 1Gi as it comes from a user, in namespace `ns` and with the identity `uid`, and these changes.
pub(super) fn claim(name: &str, changes: Value) -> Value {
    let claim = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": "uid", "resourceVersion": "1", "annotations": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    });
    with(claim, changes)
}

/// The same, bound to a volume.
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

/// A CSI volume of 1Gi that is to be had, and these changes.
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

/// For `spec.claimRef` of a volume.
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

/// `a.b` is a path; `annotations` takes short words for the usual ones, or whole ones.
fn with(mut object: Value, changes: Value) -> Value {
    for (path, value) in changes.as_object().unwrap() {
        if path == "annotations" {
            for word in value.as_array().unwrap() {
                let (key, value) = annotation(word.as_str().unwrap());
                object["metadata"]["annotations"][key] = json!(value);
            }
            continue;
        }
        let place = path.split('.').fold(&mut object, |object, part| &mut object[part]);
        *place = value.clone();
    }
    object
}

fn annotation(word: &str) -> (&str, &str) {
    match word {
        "done" => ("pv.kubernetes.io/bind-completed", "yes"),
        "ctl" => ("pv.kubernetes.io/bound-by-controller", "yes"),
        "made" => ("pv.kubernetes.io/provisioned-by", "d.test"),
        "default" => ("storageclass.kubernetes.io/is-default-class", "true"),
        whole => whole.split_once('=').unwrap(),
    }
}

/// Claims and volumes, and all else that the binder looks at.
#[derive(Clone, Default)]
pub(super) struct World {
    pub(super) claims: Vec<Value>,
    pub(super) volumes: Vec<Value>,
    pub(super) classes: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) nodes: Vec<String>,
    /// Objects that the server has and the stores have not yet, by name.
    pub(super) unseen: BTreeSet<String>,
    /// `clear_selected_node`.
    pub(super) leave_nodes: bool,
    /// Told with a write: once.
    pub(super) said: Vec<String>,
    /// Told by the last look at everything.
    pub(super) told: Vec<String>,
    pub(super) asked: usize,
    pub(super) writes: usize,
}

fn typed<K: DeserializeOwned>(values: &[Value]) -> Vec<Arc<K>> {
    values.iter().map(|value| Arc::new(serde_json::from_value(value.clone()).unwrap())).collect()
}

impl World {
    fn seen<K: Kind>(&self, values: &[Value]) -> Vec<Arc<K>> {
        let seen = |object: &Arc<K>| !self.unseen.contains(&object.meta().name);
        typed::<K>(values).into_iter().filter(seen).collect()
    }

    pub(super) fn look(&self, key: &Key, live: &Live) -> View {
        let (claims, all): (Vec<Arc<PersistentVolumeClaim>>, Vec<Arc<PersistentVolume>>) =
            (self.seen(&self.claims), self.seen(&self.volumes));
        let classes: Vec<Arc<StorageClass>> = typed(&self.classes);
        let gone = live.claim == Some(Found::Gone);
        let claim = claims.into_iter().find(|claim| claim.key() == *key && !gone);
        let pods: Vec<Arc<Pod>> = typed(&self.pods);
        let users: Vec<_> = pods
            .iter()
            .filter(|pod| !has_ended(pod) && pod.claims().any(|claim| claim == key.name))
            .collect();
        let of_class = |name: &str| classes.iter().find(|class| class.metadata.name == name).cloned();
        let waiting = claim.clone().filter(|claim| is_waiting(claim));
        let offer = waiting.as_ref().and_then(|claim| {
            best(claim, all.iter().map(|volume| &**volume), Seeker::Binder { delayed: false })
                .filter(|volume| volume.spec.claim_ref.is_none())
                .and_then(|volume| all.iter().find(|seen| seen.metadata.name == volume.metadata.name))
                .cloned()
        });
        View {
            rules: Rules { clear_selected_node: !self.leave_nodes },
            class: waiting.as_ref().and_then(|claim| of_class(class(claim))),
            default_class: waiting.as_ref().and_then(|_| default_class(&classes)),
            named: claim
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
                .filter(|pod| pod.spec.node_name.is_empty())
                .map(|pod| pod.metadata.name.clone())
                .collect(),
            users: users.iter().map(|pod| pod.key().to_string()).collect(),
            node_known: claim
                .as_ref()
                .and_then(|claim| claim.selected_node().map(str::to_owned))
                .is_none_or(|node| self.nodes.contains(&node) && !self.unseen.contains(&node)),
            live: live.clone(),
            claim,
        }
    }

    fn ask(&mut self, values: &[Value], name: &str) -> Found {
        self.asked += 1;
        // What the server says enters the stores.
        self.unseen.remove(name);
        let found = values.iter().find(|value| value["metadata"]["name"] == *name);
        found.map_or(Found::Gone, |value| Found::There(value["metadata"]["uid"].as_str().unwrap().to_owned()))
    }

    /// Works on one claim and its volumes; `false` once the writes are used up.
    fn work_on_claim(&mut self, key: &Key, budget: &mut usize) -> bool {
        let mut live = Live::default();
        for _ in 0..50 {
            let view = self.look(key, &live);
            let step = decide(&view);
            match &step {
                Step::Rest(Rest { told, problem }) => {
                    self.told.extend(told.iter().map(text));
                    self.told.extend(problem.iter().map(|problem| format!("problem: {problem}")));
                    return true;
                }
                Step::AskClaim => {
                    let claims = self.claims.clone();
                    live.claim = Some(self.ask(&claims, &key.name));
                }
                Step::AskVolume { name } => {
                    let volumes = self.volumes.clone();
                    live.volume = Some((name.clone(), self.ask(&volumes, name)));
                }
                Step::AskNode { name } => {
                    let nodes: Vec<Value> = self
                        .nodes
                        .iter()
                        .map(|name| json!({"metadata": {"name": name, "uid": name}}))
                        .collect();
                    live.node = Some((name.clone(), self.ask(&nodes, name)));
                }
                _ => {
                    if *budget == 0 {
                        return false;
                    }
                    *budget -= 1;
                    self.apply(key, write(&step, &view).expect("what is decided can be written"));
                    if let Step::VolumePhase { told: Some(told), .. }
                    | Step::ClaimPhase { told: Some(told), .. } = &step
                    {
                        self.said.push(text(told));
                    }
                }
            }
        }
        panic!("no end: {:?}", decide(&self.look(key, &live)));
    }

    fn work_on_volume(&mut self, name: &str, budget: &mut usize) -> bool {
        loop {
            let volumes: Vec<Arc<PersistentVolume>> = typed(&self.volumes);
            let volume = volumes.into_iter().find(|volume| volume.metadata.name == name);
            let Some(volume) = volume.filter(|volume| volume.spec.claim_ref.is_none()) else { return true };
            let step = free(&volume);
            let mut view = self.look(&Key::namespaced("ns", "nobody"), &Live::default());
            view.volumes = vec![volume];
            match write(&step, &view) {
                None => return true,
                Some(_) if *budget == 0 => return false,
                Some(write) => {
                    *budget -= 1;
                    self.apply(&Key::namespaced("ns", "nobody"), write);
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
                assert_eq!(has_status, part == Part::Status, "only the status goes to the status: {body}");
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

    fn subjects(&self) -> BTreeSet<Subject> {
        let claims = typed::<PersistentVolumeClaim>(&self.claims);
        let volumes = typed::<PersistentVolume>(&self.volumes);
        claims
            .iter()
            .map(|claim| Subject::Claim(claim.key()))
            .chain(volumes.iter().map(|v| Subject::of(v)))
            .collect()
    }

    /// Works until nothing is left to do, or so many writes were done. What is told is told once.
    pub(super) fn run(&mut self, mut budget: usize) {
        loop {
            let before = self.writes;
            self.told.clear();
            for subject in self.subjects() {
                let goes_on = match subject {
                    Subject::Claim(key) => self.work_on_claim(&key, &mut budget),
                    Subject::Volume(name) => self.work_on_volume(&name, &mut budget),
                    Subject::Class(_) => true,
                };
                if !goes_on {
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

    /// What was told with writes, then what is told by a look at the world as it is.
    pub(super) fn told(&self) -> Vec<&str> {
        self.said.iter().chain(&self.told).map(String::as_str).collect()
    }

    /// How often the server was asked.
    pub(super) fn asked(&self) -> usize {
        self.asked
    }
}

fn text(told: &Told) -> String {
    let about = match &told.about {
        About::Claim => "claim",
        About::Volume(name) => name,
    };
    format!("{about}: {:?} {}: {}", told.kind, told.reason, told.note)
}

fn marks(object: &Value, names: &[(&str, &str)]) -> String {
    let annotations = object["metadata"]["annotations"].as_object();
    let has = |key: &str| annotations.is_some_and(|annotations| annotations.contains_key(key));
    names.iter().filter(|(key, _)| has(key)).map(|(_, mark)| format!(" +{mark}")).collect()
}

/// `v1 Bound c:uid +ctl`: name, phase, claim, who bound it.
fn of_volume(volume: &Value) -> String {
    let text = |path: &str| volume.pointer(path).and_then(Value::as_str).unwrap_or("");
    let claim = match volume["spec"]["claimRef"].is_object() {
        true => format!("{}:{}", text("/spec/claimRef/name"), text("/spec/claimRef/uid")),
        false => "-".to_owned(),
    };
    let marks = marks(volume, &[("pv.kubernetes.io/bound-by-controller", "ctl")]);
    format!("{} {} {claim}{marks}", text("/metadata/name"), text("/status/phase"))
}

/// `c Bound v1 1Gi +done +ctl`: name, phase, volume, size, and marks.
fn of_claim(claim: &Value) -> String {
    let text = |path: &str| claim.pointer(path).and_then(Value::as_str).unwrap_or("");
    let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let names = [
        ("pv.kubernetes.io/bind-completed", "done"),
        ("pv.kubernetes.io/bound-by-controller", "ctl"),
        ("volume.kubernetes.io/storage-provisioner", "handed"),
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

/// Runs a world to its end, compares, and does so again with a crash after every write.
pub(super) fn check(id: &str, world: &World, state: &[&str], told: &[&str]) {
    let mut whole = world.clone();
    whole.run(usize::MAX);
    assert_eq!(whole.state(), state, "{id}");
    assert_eq!(whole.told(), told, "{id}");
    for died_after in 0..whole.writes {
        let mut world = world.clone();
        world.run(died_after);
        world.run(usize::MAX);
        assert_eq!(world.state(), state, "{id}, after a crash behind write {died_after}");
        assert_eq!(world.writes, whole.writes, "{id}: nothing is written twice");
    }
}
