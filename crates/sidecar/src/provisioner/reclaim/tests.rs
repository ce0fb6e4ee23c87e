//! A volume's end as tables: a released volume that is deleted, and what becomes of it when one thing is different.

use serde_json::{Value, json};

use super::*;

const DRIVER: &str = "d.test";
const OURS: &str = finalizer::PROVISIONER;

/// Everything a view borrows, as JSON that a case can change.
#[derive(Clone)]
struct Scene {
    volume: Value,
    class: Value,
    attached: Vec<String>,
    siblings: Vec<Value>,
    own: Option<OwnNode>,
    deleted: Option<&'static str>,
}

fn volume(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("u-{name}"), "finalizers": ["kubernetes.io/pv-protection", OURS],
            "annotations": {
                annotation::PROVISIONED_BY: DRIVER,
                annotation::DELETION_SECRET_NAME: "", annotation::DELETION_SECRET_NAMESPACE: "",
            },
        },
        "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": "v-1"}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "ns", "name": "claim", "uid": "u-claim"}, "storageClassName": "c",
        },
        "status": {"phase": "Released"},
    })
}

fn released() -> Scene {
    Scene {
        volume: volume("m"),
        class: json!({"metadata": {"name": "c"}, "provisioner": DRIVER}),
        attached: Vec::new(),
        siblings: Vec::new(),
        own: None,
        deleted: None,
    }
}

fn set(object: &mut Value, path: &str, value: Value) {
    let (parent, field) = path.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap() {
        Value::Object(map) if value.is_null() => drop(map.remove(field)),
        parent => parent[field] = value,
    }
}

impl Scene {
    /// The scene with one field of the volume different; `null` removes it.
    fn with(&self, path: &str, value: Value) -> Self {
        let mut scene = self.clone();
        set(&mut scene.volume, path, value);
        scene
    }

    fn annotated(&self, key: &str, value: Value) -> Self {
        let mut scene = self.clone();
        match (&mut scene.volume["metadata"]["annotations"], value) {
            (Value::Object(map), Value::Null) => drop(map.remove(key)),
            (annotations, value) => annotations[key] = value,
        }
        scene
    }

    fn deleting(&self) -> Self {
        self.with("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))
    }

    fn phase(&self, phase: &str) -> Self {
        self.with("/status/phase", json!(phase))
    }

    fn policy(&self, policy: &str) -> Self {
        self.with("/spec/persistentVolumeReclaimPolicy", json!(policy))
    }

    fn unguarded(&self) -> Self {
        self.with("/metadata/finalizers", json!(["kubernetes.io/pv-protection"]))
    }

    fn beside(&self, sibling: Value) -> Self {
        let mut scene = self.clone();
        scene.siblings.push(sibling);
        scene
    }

    fn on(&self, node: &str) -> Self {
        let place = [("node".to_owned(), node.to_owned())].into();
        Self { own: Some(OwnNode { name: node.to_owned(), place }), ..self.clone() }
    }

    fn decide(&self) -> ReclaimStep {
        let of = |value: &Value| serde_json::from_value::<PersistentVolume>(value.clone()).unwrap();
        let siblings: Vec<_> = self.siblings.iter().map(|sibling| Arc::new(of(sibling))).collect();
        let class: Option<StorageClass> = serde_json::from_value(self.class.clone()).unwrap();
        decide(&ReclaimView {
            volume: &of(&self.volume),
            class: class.as_ref(),
            driver: DRIVER,
            attached: &self.attached,
            siblings: &siblings,
            own: self.own.as_ref(),
            memory: &ReclaimMemory { deleted: self.deleted.map(str::to_owned) },
        })
    }
}

fn delete_with(secret: Option<(&str, &str)>) -> ReclaimStep {
    let secret =
        secret.map(|(namespace, name)| SecretRef { name: name.to_owned(), namespace: namespace.to_owned() });
    ReclaimStep::DeleteVolume { handle: "v-1".to_owned(), secret }
}

fn delete() -> ReclaimStep {
    delete_with(None)
}

fn nothing(why: Why) -> ReclaimStep {
    ReclaimStep::Nothing(why)
}

/// sidecars.md 1.1 "Delete": Released, policy Delete, and our finalizer or no deletion mark.
#[test]
fn what_is_deleted() {
    let released = released();
    for (scene, expected) in [
        (released.clone(), delete()),
        (released.unguarded(), delete()),
        (released.deleting(), delete()),
        // The finalizer is gone from an object in deletion: somebody has done all of this.
        (released.deleting().unguarded(), nothing(Why::Gone)),
        (released.phase("Pending"), nothing(Why::InUse)),
        (released.phase("Available"), nothing(Why::InUse)),
        (released.phase("Bound"), nothing(Why::InUse)),
        (released.phase("Failed"), nothing(Why::InUse)),
        (released.phase("Melted"), nothing(Why::InUse)),
        (released.phase("Bound").deleting(), nothing(Why::InUse)),
        (released.with("/spec/csi/volumeHandle", json!("")), ReclaimStep::Refuse(Fault::NoHandle)),
    ] {
        assert_eq!(scene.decide(), expected, "{}", scene.volume);
    }
}

/// sidecars.md 1.1 "Delete": whose volumes are ours.
#[test]
fn whose_it_is() {
    let made_by = |maker: Value| released().annotated(annotation::PROVISIONED_BY, maker);
    let migrated = |scene: Scene, to: &str| scene.annotated(annotation::MIGRATED_TO, json!(to));
    for (scene, expected) in [
        (made_by(json!("other")), nothing(Why::NotOurs)),
        (made_by(Value::Null), delete()),
        (migrated(made_by(json!("kubernetes.io/x")), DRIVER), delete()),
        (migrated(made_by(json!("kubernetes.io/x")), "other"), nothing(Why::NotOurs)),
        (released().with("/spec/csi/driver", json!("other")), nothing(Why::NotOurs)),
        (made_by(Value::Null).with("/spec/csi/driver", json!("other")), nothing(Why::NotOurs)),
        (released().with("/spec/csi", Value::Null), nothing(Why::NotOurs)),
        // Nor is it guarded or unguarded.
        (made_by(json!("other")).phase("Bound").unguarded(), nothing(Why::NotOurs)),
        (made_by(json!("other")).policy("Retain"), nothing(Why::NotOurs)),
    ] {
        assert_eq!(scene.decide(), expected, "{}", scene.volume);
    }
}

/// sidecars.md 1.1 "HonorPVReclaimPolicy"
#[test]
fn the_finalizer_follows_the_policy() {
    let bound = released().phase("Bound");
    let static_volume = bound.annotated(annotation::PROVISIONED_BY, Value::Null);
    for (scene, expected) in [
        (bound.clone(), nothing(Why::InUse)),
        (bound.unguarded(), ReclaimStep::Guard),
        (static_volume.unguarded(), ReclaimStep::Guard),
        (bound.unguarded().deleting(), nothing(Why::InUse)),
        (bound.unguarded().phase("Available"), nothing(Why::InUse)),
        (bound.unguarded().phase("Pending"), nothing(Why::InUse)),
        (bound.policy("Retain"), ReclaimStep::Unguard),
        (bound.policy("Recycle"), ReclaimStep::Unguard),
        (bound.policy("Retain").deleting(), ReclaimStep::Unguard),
        (bound.policy("Retain").phase("Released"), ReclaimStep::Unguard),
        (bound.policy("Retain").unguarded(), nothing(Why::Kept)),
        (bound.policy("Retain").unguarded().phase("Released"), nothing(Why::Kept)),
        (bound.policy("Shred"), nothing(Why::Kept)),
        (bound.policy("Shred").phase("Released"), nothing(Why::Kept)),
    ] {
        assert_eq!(scene.decide(), expected, "{}", scene.volume);
    }
}

/// sidecars.md 1.1 "Delete": while an attachment references the volume it is waited for.
#[test]
fn a_volume_that_is_attached() {
    let attached = Scene { attached: vec!["csi-1".to_owned()], ..released() };
    assert_eq!(attached.decide(), ReclaimStep::Wait(Hold::Attached(vec!["csi-1".to_owned()])));
    assert_eq!(attached.deleting().decide(), ReclaimStep::Wait(Hold::Attached(vec!["csi-1".to_owned()])));
    // What follows from a deletion that was done does not wait.
    assert_eq!(Scene { deleted: Some("u-m"), ..attached }.decide(), ReclaimStep::DeleteObject);
}

/// sidecars.md 1.1 "Delete": DeleteVolume, then the object, then the finalizer.
#[test]
fn the_order() {
    let deleted = Scene { deleted: Some("u-m"), ..released() };
    assert_eq!(released().decide(), delete());
    assert_eq!(deleted.decide(), ReclaimStep::DeleteObject);
    assert_eq!(deleted.unguarded().decide(), ReclaimStep::DeleteObject);
    assert_eq!(deleted.deleting().decide(), ReclaimStep::Release);
    assert_eq!(deleted.deleting().unguarded().decide(), nothing(Why::Gone));
    // Another object of the same name is another volume.
    assert_eq!(Scene { deleted: Some("u-former"), ..released() }.decide(), delete());
    // Somebody changed his mind too late for the volume, not for the object.
    assert_eq!(deleted.policy("Retain").decide(), ReclaimStep::Unguard);
}

/// sidecars.md 1.1 "Delete": the secret is the volume's own, else the class's.
#[test]
fn the_secret() {
    let noted = |name: Value, namespace: Value| {
        let scene = released().annotated(annotation::DELETION_SECRET_NAME, name);
        let mut scene = scene.annotated(annotation::DELETION_SECRET_NAMESPACE, namespace);
        scene.class["parameters"] = json!({
            "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}-${pv.name}",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        });
        scene
    };
    let silent = noted(Value::Null, Value::Null);
    let with = |parameters: Value| {
        let mut scene = silent.clone();
        scene.class["parameters"] = parameters;
        scene
    };
    for (scene, expected) in [
        (noted(json!("s"), json!("n")), Some(("n", "s"))),
        (noted(json!(""), json!("")), None),
        (noted(json!("s"), Value::Null), Some(("ns", "claim-m"))),
        (silent.clone(), Some(("ns", "claim-m"))),
        (Scene { class: Value::Null, ..silent.clone() }, None),
        (silent.with("/spec/claimRef", Value::Null), None),
        (with(json!({})), None),
        (
            with(json!({"csi.storage.k8s.io/secret-name": "d", "csi.storage.k8s.io/secret-namespace": "x"})),
            Some(("x", "d")),
        ),
        (
            with(json!({"csiProvisionerSecretName": "old", "csiProvisionerSecretNamespace": "x"})),
            Some(("x", "old")),
        ),
        // What else is wrong with the class does not matter any more.
        (with(json!({"csi.storage.k8s.io/nonsense": "1"})), None),
    ] {
        assert_eq!(scene.decide(), delete_with(expected), "{} {}", scene.volume, scene.class);
    }
    let half = with(json!({"csi.storage.k8s.io/provisioner-secret-name": "s"}));
    assert!(matches!(half.decide(), ReclaimStep::Refuse(Fault::Parameters { .. })));
    let unknown = with(json!({
        "csi.storage.k8s.io/provisioner-secret-name": "${pvc.annotations['gone']}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "x",
    }));
    assert!(matches!(unknown.decide(), ReclaimStep::Refuse(Fault::Secret { .. })));
}

/// sidecars.md 1.1 "Node deployment": a node deletes what it reaches, and leaves the rest alone.
#[test]
fn a_nodes_own() {
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "node", "operator": "In", "values": ["a"]}]},
    ]}});
    let local = released().with("/spec/nodeAffinity", affinity);
    for (scene, expected) in [
        (local.clone(), delete()),
        (local.on("a"), delete()),
        (local.on("b"), nothing(Why::AnotherNode)),
        (local.on("b").phase("Bound").unguarded(), nothing(Why::AnotherNode)),
        (local.on("b").policy("Retain"), nothing(Why::AnotherNode)),
        // Any node's: a wrong one's driver would say that it is deleted, and it would leak.
        (released().on("b"), nothing(Why::AnotherNode)),
    ] {
        assert_eq!(scene.decide(), expected, "{}", scene.volume);
    }
}

/// A volume that another PersistentVolume stands for is not deleted under it.
#[test]
fn two_for_one_handle() {
    let shared =
        |by: &str| ReclaimStep::Refuse(Fault::Shared { handle: "v-1".to_owned(), by: by.to_owned() });
    let other = |name: &str, path: &str, value: Value| {
        let mut other = volume(name);
        set(&mut other, path, value);
        other
    };
    let wait = |name: &str| ReclaimStep::Wait(Hold::Sibling(name.to_owned()));
    let (bound, retained) = ("/status/phase", "/spec/persistentVolumeReclaimPolicy");
    for (scene, expected) in [
        (released().beside(other("z", bound, json!("Bound"))), shared("z")),
        (released().beside(other("a", bound, json!("Available"))), shared("a")),
        (released().beside(other("z", retained, json!("Retain"))), shared("z")),
        (released().beside(volume("a")).beside(other("z", bound, json!("Bound"))), shared("z")),
        // Itself is no other.
        (released().beside(volume("m")), delete()),
        // All are to go: the last by name takes the volume with it.
        (released().beside(volume("a")), wait("a")),
        (released().beside(volume("b")).beside(volume("a")).beside(volume("z")), wait("a")),
        (released().beside(volume("z")), ReclaimStep::DeleteObject),
        (released().beside(volume("z")).deleting(), ReclaimStep::Release),
        // Those too that are on their way out, and those that are not guarded yet.
        (
            released().beside(other("z", "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))),
            ReclaimStep::DeleteObject,
        ),
        (released().beside(other("z", "/metadata/finalizers", json!(["x"]))), ReclaimStep::DeleteObject),
        // One that is on its way out with nothing of ours on it is not ours to count on.
        (
            released().deleting().beside({
                let mut going = other("z", "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
                set(&mut going, "/metadata/finalizers", json!(["x"]));
                going
            }),
            shared("z"),
        ),
        (
            released().beside(other("z", "/metadata/annotations", json!({annotation::PROVISIONED_BY: "x"}))),
            shared("z"),
        ),
    ] {
        assert_eq!(scene.decide(), expected, "{} {:?}", scene.volume, scene.siblings);
    }
    // Each waits for its own attachments first.
    let attached = Scene { attached: vec!["csi-1".to_owned()], ..released().beside(volume("z")) };
    assert!(matches!(attached.decide(), ReclaimStep::Wait(Hold::Attached(_))));
}
