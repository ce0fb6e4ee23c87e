//! Tables for the removal of protection finalizers.

use serde_json::{Value, json};

use super::*;
use crate::provisioner::intent::{IntentClaim, Request};

const DRIVER: &str = "d.test";

fn of<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn intent(namespace: &str, source: Option<ContentSource>) -> Arc<Intent> {
    Arc::new(Intent {
        volume: "pvc-1".into(),
        claim: IntentClaim { namespace: namespace.into(), name: "new".into(), uid: "u-new".into() },
        class_uid: "u-c".into(),
        written: 0,
        request: Request { source, ..Request::default() },
        template: Value::Null,
    })
}

fn waiting() -> Vec<Arc<PersistentVolumeClaim>> {
    vec![Arc::new(of(&json!({"metadata": {"namespace": "ns", "name": "new"}})))]
}

fn held_by_claim() -> Step {
    Step::Wait(HeldBy::Claim(Key::namespaced("ns", "new")))
}

fn held_by_intent() -> Step {
    Step::Wait(HeldBy::Intent("pvc-1".into()))
}

fn volume_source(handle: &str) -> Option<ContentSource> {
    Some(ContentSource::Volume(handle.into()))
}

fn snapshot_source(handle: &str) -> Option<ContentSource> {
    Some(ContentSource::Snapshot(handle.into()))
}

/// The inputs of `decide_clone`, as JSON that a case can change.
#[derive(Clone)]
struct CloneFixture {
    claim: Value,
    volume: Value,
    waiting: Vec<Arc<PersistentVolumeClaim>>,
    intents: Vec<Arc<Intent>>,
    node: Option<LocalNode>,
}

impl CloneFixture {
    fn deleted() -> Self {
        Self {
            claim: json!({
                "metadata": {
                    "namespace": "ns", "name": "old", "uid": "u-old", "finalizers": [CLONING_PROTECTION],
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                    "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
                },
                "spec": {"volumeName": "pv-old"},
            }),
            volume: json!({
                "metadata": {"name": "pv-old"},
                "spec": {
                    "csi": {"driver": DRIVER, "volumeHandle": "v-1"},
                    "claimRef": {"namespace": "ns", "name": "old", "uid": "u-old"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "node", "operator": "In", "values": ["a"]}]},
                    ]}},
                },
            }),
            waiting: Vec::new(),
            intents: Vec::new(),
            node: None,
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn on(self, node: &str) -> Self {
        let topology = [("node".to_owned(), node.to_owned())].into();
        Self { node: Some(LocalNode { name: node.into(), topology }), ..self }
    }

    fn decide(&self) -> Step {
        decide_clone(&CloneView {
            claim: &of(&self.claim),
            volume: of::<Option<PersistentVolume>>(&self.volume).as_ref(),
            waiting: &self.waiting,
            intents: &self.intents,
            driver: DRIVER,
            node: self.node.as_ref(),
        })
    }
}

/// sidecars.md 1.1 "Clone finalizer"
#[test]
fn unused_clone_source_in_deletion_is_released() {
    let deleted = CloneFixture::deleted;
    let no_volume = || deleted().with(|fixture| fixture.volume = Value::Null);
    let by = |driver: &str| {
        let annotations = json!({"volume.kubernetes.io/storage-provisioner": driver});
        no_volume().with(|fixture| fixture.claim["metadata"]["annotations"] = annotations)
    };
    for (fixture, expected) in [
        (deleted(), Step::Remove),
        (deleted().with(|fixture| fixture.claim["metadata"]["deletionTimestamp"] = Value::Null), Step::Idle),
        (deleted().with(|fixture| fixture.claim["metadata"]["finalizers"] = json!(["x"])), Step::Idle),
        (deleted().with(|fixture| fixture.waiting = waiting()), held_by_claim()),
        // Intents, by the handle of their source.
        (
            deleted().with(|fixture| fixture.intents = vec![intent("ns", volume_source("v-1"))]),
            held_by_intent(),
        ),
        (
            deleted().with(|fixture| fixture.intents = vec![intent("other", volume_source("v-1"))]),
            held_by_intent(),
        ),
        (deleted().with(|fixture| fixture.intents = vec![intent("ns", volume_source("v-2"))]), Step::Remove),
        (
            deleted().with(|fixture| fixture.intents = vec![intent("ns", snapshot_source("v-1"))]),
            Step::Remove,
        ),
        (deleted().with(|fixture| fixture.intents = vec![intent("ns", None)]), Step::Remove),
        (
            deleted().with(|fixture| {
                fixture.intents =
                    vec![intent("ns", volume_source("v-2")), intent("ns", volume_source("v-1"))];
            }),
            held_by_intent(),
        ),
        // Without the source's volume, by namespace.
        (no_volume(), Step::Remove),
        (
            no_volume().with(|fixture| fixture.intents = vec![intent("ns", volume_source("v-2"))]),
            held_by_intent(),
        ),
        (
            no_volume().with(|fixture| fixture.intents = vec![intent("other", volume_source("v-2"))]),
            Step::Remove,
        ),
        // A volume that is not bound to the claim does not count.
        (
            deleted().with(|fixture| {
                fixture.volume["spec"]["claimRef"]["uid"] = json!("u-another");
                fixture.intents = vec![intent("ns", volume_source("v-2"))];
            }),
            held_by_intent(),
        ),
        // Sources of other drivers and nodes are left to them.
        (deleted().with(|fixture| fixture.volume["spec"]["csi"]["driver"] = json!("x")), Step::Idle),
        (by("x"), Step::Idle),
        (by(DRIVER), Step::Remove),
        (no_volume().with(|fixture| fixture.claim["metadata"]["annotations"] = json!({})), Step::Remove),
        (deleted().on("a"), Step::Remove),
        (deleted().on("b"), Step::Idle),
        (no_volume().on("b"), Step::Remove),
    ] {
        assert_eq!(fixture.decide(), expected, "{} {}", fixture.claim, fixture.volume);
    }
}

/// sidecars.md 1.1 "Snapshot finalizer"
#[test]
fn unused_snapshot_source_is_released() {
    let snapshot =
        json!({"metadata": {"namespace": "ns", "name": "snap", "finalizers": [SNAPSHOT_SOURCE_PROTECTION]}});
    let bare = json!({"metadata": {"namespace": "ns", "name": "snap", "finalizers": ["x"]}});
    let content =
        json!({"metadata": {"name": "c"}, "spec": {"driver": DRIVER}, "status": {"snapshotHandle": "s-1"}});
    let other_driver =
        json!({"metadata": {"name": "c"}, "spec": {"driver": "x"}, "status": {"snapshotHandle": "s-1"}});
    let without_handle = json!({"metadata": {"name": "c"}, "spec": {"driver": DRIVER}});
    let none = Value::Null;
    for (snapshot, content, waiting, intents, expected) in [
        (&snapshot, &content, vec![], vec![], Step::Remove),
        (&bare, &content, vec![], vec![], Step::Idle),
        (&snapshot, &other_driver, vec![], vec![], Step::Idle),
        (&snapshot, &content, waiting(), vec![], held_by_claim()),
        (&snapshot, &content, vec![], vec![intent("ns", snapshot_source("s-1"))], held_by_intent()),
        (&snapshot, &content, vec![], vec![intent("ns", snapshot_source("s-2"))], Step::Remove),
        (&snapshot, &content, vec![], vec![intent("ns", volume_source("s-1"))], Step::Remove),
        (&snapshot, &content, vec![], vec![intent("ns", None)], Step::Remove),
        (&snapshot, &none, vec![], vec![], Step::Remove),
        (&snapshot, &none, vec![], vec![intent("ns", snapshot_source("s-2"))], held_by_intent()),
        (&snapshot, &none, vec![], vec![intent("other", snapshot_source("s-2"))], Step::Remove),
        (&snapshot, &without_handle, vec![], vec![intent("ns", snapshot_source("s-2"))], held_by_intent()),
    ] {
        let step = decide_snapshot(&SnapshotView {
            snapshot: &of(snapshot),
            content: of::<Option<VolumeSnapshotContent>>(content).as_ref(),
            waiting: &waiting,
            intents: &intents,
            driver: DRIVER,
        });
        assert_eq!(step, expected, "{snapshot} {content} {intents:?}");
    }
}
