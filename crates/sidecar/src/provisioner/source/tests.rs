//! Tables: a fixture that resolves, and the result when one field differs.

use serde_json::{Value, json};

use super::*;

const DRIVER: &str = "d.test";

/// A driver that can restore and clone.
fn restores() -> Capabilities {
    Capabilities {
        create_delete_snapshot: true,
        clone_volume: true,
        controller_service: true,
        create_delete_volume: true,
        ..Capabilities::default()
    }
}

/// Everything that a view borrows, as JSON that a case can change.
#[derive(Clone)]
struct Fixture {
    claim: Value,
    class: Value,
    snapshot: Value,
    content: Value,
    source_claim: Value,
    source_volume: Value,
    capabilities: Capabilities,
    prevent: bool,
}

fn claim(source: Value) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "new", "uid": "u-new"},
        "spec": {
            "storageClassName": "c", "volumeMode": "Filesystem", "dataSource": source,
            "resources": {"requests": {"storage": "10Gi"}},
        },
    })
}

fn fixture(source: Value) -> Fixture {
    Fixture {
        claim: claim(source),
        class: json!({"metadata": {"name": "c"}, "provisioner": DRIVER}),
        snapshot: json!({
            "metadata": {"namespace": "ns", "name": "snap", "uid": "u-snap"},
            "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": "10Gi"},
        }),
        content: json!({
            "metadata": {"name": "content"},
            "spec": {
                "driver": DRIVER, "sourceVolumeMode": "Filesystem",
                "volumeSnapshotRef": {"namespace": "ns", "name": "snap", "uid": "u-snap"},
            },
            "status": {"snapshotHandle": "s-1", "readyToUse": true},
        }),
        source_claim: json!({
            "metadata": {"namespace": "ns", "name": "old", "uid": "u-old"},
            "spec": {
                "storageClassName": "c", "volumeName": "pv-old",
                "resources": {"requests": {"storage": "10Gi"}},
            },
            "status": {"phase": "Bound"},
        }),
        source_volume: json!({
            "metadata": {"name": "pv-old"},
            "spec": {
                "csi": {"driver": DRIVER, "volumeHandle": "v-1"},
                "claimRef": {"namespace": "ns", "name": "old", "uid": "u-old"},
            },
            "status": {"phase": "Bound"},
        }),
        capabilities: restores(),
        prevent: true,
    }
}

fn snapshot_source() -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"})
}

fn claim_source() -> Value {
    json!({"kind": "PersistentVolumeClaim", "name": "old"})
}

impl Fixture {
    /// The fixture with one field changed. `null` removes it.
    fn with(&self, of: fn(&mut Self) -> &mut Value, path: &str, value: Value) -> Self {
        let mut fixture = self.clone();
        let (parent, field) = path.rsplit_once('/').unwrap();
        let object = of(&mut fixture);
        match object.pointer_mut(parent).unwrap() {
            Value::Object(map) if value.is_null() => drop(map.remove(field)),
            parent => parent[field] = value,
        }
        fixture
    }

    fn resolve(&self) -> Result<Source, SourceError> {
        fn of<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
            serde_json::from_value(value.clone()).unwrap()
        }
        let (claim, class) = (of(&self.claim).unwrap(), of(&self.class).unwrap());
        let (snapshot, content) = (of(&self.snapshot), of(&self.content));
        let (source_claim, source_volume) = (of(&self.source_claim), of(&self.source_volume));
        resolve(&SourceView {
            claim: &claim,
            class: &class,
            snapshot: snapshot.as_ref(),
            content: content.as_ref(),
            source_claim: source_claim.as_ref(),
            source_volume: source_volume.as_ref(),
            driver: DRIVER,
            capabilities: &self.capabilities,
            prevent_mode_conversion: self.prevent,
        })
    }

    fn problem(&self) -> SourceProblem {
        match self.resolve() {
            Err(SourceError::SourceProblem { problem, .. }) => problem,
            other => panic!("{other:?}"),
        }
    }
}

fn of_claim(fixture: &mut Fixture) -> &mut Value {
    &mut fixture.claim
}
fn of_class(fixture: &mut Fixture) -> &mut Value {
    &mut fixture.class
}
fn of_snapshot(fixture: &mut Fixture) -> &mut Value {
    &mut fixture.snapshot
}
fn of_content(fixture: &mut Fixture) -> &mut Value {
    &mut fixture.content
}
fn of_source(fixture: &mut Fixture) -> &mut Value {
    &mut fixture.source_claim
}
fn of_volume(fixture: &mut Fixture) -> &mut Value {
    &mut fixture.source_volume
}

fn snapshot() -> Source {
    Source::Snapshot { handle: "s-1".into(), snapshot: Key::namespaced("ns", "snap"), uid: "u-snap".into() }
}

fn volume() -> Source {
    Source::Volume { handle: "v-1".into(), claim: Key::namespaced("ns", "old"), uid: "u-old".into() }
}

/// sidecars.md 1.1 "Data sources": which field counts, and which kinds are provisioned here.
#[test]
fn data_source_resolves_by_field_and_kind() {
    let only_ref = |source: Value| {
        let fixture = fixture(Value::Null);
        fixture.with(of_claim, "/spec/dataSourceRef", source)
    };
    let both = fixture(snapshot_source()).with(of_claim, "/spec/dataSourceRef", claim_source());
    for (fixture, expected) in [
        (fixture(Value::Null), Source::None),
        (fixture(snapshot_source()), snapshot()),
        (fixture(claim_source()), volume()),
        (fixture(json!({"apiGroup": "", "kind": "PersistentVolumeClaim", "name": "old"})), volume()),
        (only_ref(snapshot_source()), snapshot()),
        (only_ref(claim_source()), volume()),
        (only_ref(json!({"apiGroup": "x.dev", "kind": "Backup", "name": "b"})), Source::Foreign),
        (only_ref(json!({"kind": "Pod", "name": "b"})), Source::Foreign),
        // A kind of the same name in another group.
        (
            only_ref(json!({"apiGroup": "x.dev", "kind": "PersistentVolumeClaim", "name": "old"})),
            Source::Foreign,
        ),
        (both, snapshot()),
    ] {
        assert_eq!(fixture.resolve(), Ok(expected), "{}", fixture.claim);
    }
}

/// sidecars.md 1.1 "Data sources", "Cross-namespace": errors of the claim or the driver.
#[test]
fn invalid_claims_and_incapable_drivers_are_refused() {
    let in_namespace = |namespace: &str| {
        let source = json!({"kind": "PersistentVolumeClaim", "name": "old", "namespace": namespace});
        fixture(Value::Null).with(of_claim, "/spec/dataSourceRef", source)
    };
    let mut without = fixture(snapshot_source());
    without.capabilities.create_delete_snapshot = false;
    let mut without_clone = fixture(claim_source());
    without_clone.capabilities.clone_volume = false;
    for (fixture, expected) in [
        (in_namespace("other"), SourceError::CrossNamespace("other".into())),
        // Upstream does not check whether it is the same namespace.
        (in_namespace("ns"), SourceError::CrossNamespace("ns".into())),
        (fixture(json!({"kind": "PersistentVolumeClaim", "name": ""})), SourceError::Nameless),
        (fixture(json!({"kind": "Backup", "name": ""})), SourceError::Nameless),
        (fixture(json!({"kind": "VolumeSnapshot", "name": "snap"})), SourceError::WrongGroup(String::new())),
        (
            fixture(json!({"apiGroup": "x.dev", "kind": "VolumeSnapshot", "name": "snap"})),
            SourceError::WrongGroup("x.dev".into()),
        ),
        (without, SourceError::CannotRestore),
        (without_clone, SourceError::CannotClone),
    ] {
        assert_eq!(fixture.resolve(), Err(expected));
    }
    assert_eq!(in_namespace("").resolve(), Ok(volume()));
}

/// sidecars.md 1.1 "Data sources": a snapshot must be bound both ways, of this driver, ready, have a handle and fit.
#[test]
fn snapshot_source_is_validated() {
    let good = fixture(snapshot_source());
    let deleting = good.with(of_snapshot, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    let started = json!([finalizer::SNAPSHOT_SOURCE_PROTECTION]);
    assert_eq!(deleting.with(of_snapshot, "/metadata/finalizers", started).resolve(), Ok(snapshot()));
    assert_eq!(good.with(of_snapshot, "/status/restoreSize", Value::Null).resolve(), Ok(snapshot()));
    let larger = json!({"requests": {"storage": "11Gi"}});
    assert_eq!(good.with(of_claim, "/spec/resources", larger).resolve(), Ok(snapshot()));

    let gone = |of: fn(&mut Fixture) -> &mut Value| {
        let mut fixture = good.clone();
        *of(&mut fixture) = Value::Null;
        fixture
    };
    let content = || "content".to_owned();
    let too_big = |requested| SourceProblem::TooBig { source_size: 10 << 30, requested };
    for (fixture, expected) in [
        (gone(of_snapshot), SourceProblem::Missing),
        (good.with(of_snapshot, "/metadata/name", json!("other")), SourceProblem::Missing),
        (good.with(of_snapshot, "/metadata/namespace", json!("other")), SourceProblem::Missing),
        (deleting.clone(), SourceProblem::Deleting),
        (deleting.with(of_snapshot, "/metadata/finalizers", json!(["x"])), SourceProblem::Deleting),
        (good.with(of_snapshot, "/status", Value::Null), SourceProblem::Unbound),
        (
            good.with(of_snapshot, "/status/boundVolumeSnapshotContentName", Value::Null),
            SourceProblem::Unbound,
        ),
        (good.with(of_snapshot, "/status/boundVolumeSnapshotContentName", json!("")), SourceProblem::Unbound),
        (gone(of_content), SourceProblem::NoContent(content())),
        (good.with(of_content, "/metadata/name", json!("other")), SourceProblem::NoContent(content())),
        (
            good.with(of_content, "/spec/volumeSnapshotRef/uid", json!("u-former")),
            SourceProblem::ContentOfOtherSnapshot(content()),
        ),
        (
            good.with(of_content, "/spec/volumeSnapshotRef/name", json!("other")),
            SourceProblem::ContentOfOtherSnapshot(content()),
        ),
        (
            good.with(of_content, "/spec/volumeSnapshotRef/namespace", json!("other")),
            SourceProblem::ContentOfOtherSnapshot(content()),
        ),
        (good.with(of_content, "/spec/driver", json!("x")), SourceProblem::Driver("x".into(), "c".into())),
        (good.with(of_class, "/provisioner", json!("x")), SourceProblem::Driver(DRIVER.into(), "c".into())),
        (good.with(of_snapshot, "/status/readyToUse", json!(false)), SourceProblem::NotReady),
        (good.with(of_snapshot, "/status/readyToUse", Value::Null), SourceProblem::NotReady),
        (good.with(of_content, "/status", Value::Null), SourceProblem::NoHandle),
        (good.with(of_content, "/status/snapshotHandle", Value::Null), SourceProblem::NoHandle),
        (good.with(of_content, "/status/snapshotHandle", json!("")), SourceProblem::NoHandle),
        (
            good.with(of_claim, "/spec/resources", json!({"requests": {"storage": "10737418239"}})),
            too_big((10 << 30) - 1),
        ),
        (good.with(of_claim, "/spec/resources", json!({})), too_big(0)),
    ] {
        assert_eq!(fixture.problem(), expected);
    }
    // A class and a content that agree on another driver are not ours.
    let other = good.with(of_content, "/spec/driver", json!("x")).with(of_class, "/provisioner", json!("x"));
    assert_eq!(other.problem(), SourceProblem::Driver("x".into(), "c".into()));
}

/// sidecars.md 1.1 "Volume-mode change"
#[test]
fn volume_mode_change_needs_annotation() {
    let good = fixture(snapshot_source());
    let block = good.with(of_claim, "/spec/volumeMode", json!("Block"));
    let allowed = |text: &str| block.with(of_content, "/metadata/annotations", json!({ALLOW: text}));
    let refused = SourceProblem::ModeChange {
        source_mode: VolumeMode::Filesystem,
        wanted: VolumeMode::Block,
        content: "content".into(),
    };
    assert_eq!(block.problem(), refused);
    for text in ["true", "True", "TRUE", "t", "T", "1"] {
        assert_eq!(allowed(text).resolve(), Ok(snapshot()), "{text}");
    }
    for text in ["false", "", "yes", "tRUE", "0"] {
        assert_eq!(allowed(text).problem(), refused, "{text}");
    }
    assert_eq!(block.with(of_content, "/spec/sourceVolumeMode", Value::Null).resolve(), Ok(snapshot()));
    assert_eq!(block.with(of_content, "/spec/sourceVolumeMode", json!("Block")).resolve(), Ok(snapshot()));
    assert_eq!(block.with(of_claim, "/spec/volumeMode", Value::Null).resolve(), Ok(snapshot()));
    assert_eq!(Fixture { prevent: false, ..block.clone() }.resolve(), Ok(snapshot()));
    // Two unknown modes may differ.
    let unknown = block.with(of_content, "/spec/sourceVolumeMode", json!("Tape"));
    let unknown = unknown.with(of_claim, "/spec/volumeMode", json!("Drum"));
    assert!(matches!(unknown.problem(), SourceProblem::ModeChange { .. }));
}

/// sidecars.md 1.1 "Data sources": a claim to clone must be bound both ways, of this driver and mode, and fit.
#[test]
fn clone_source_is_validated() {
    let good = fixture(claim_source());
    let other_class = good.with(of_source, "/spec/storageClassName", json!("another"));
    assert_eq!(other_class.resolve(), Ok(volume()));
    let block = good.with(of_claim, "/spec/volumeMode", json!("Block"));
    assert_eq!(block.with(of_volume, "/spec/volumeMode", json!("Block")).resolve(), Ok(volume()));
    assert_eq!(good.with(of_claim, "/spec/volumeMode", Value::Null).resolve(), Ok(volume()));

    let gone = |of: fn(&mut Fixture) -> &mut Value| {
        let mut fixture = good.clone();
        *of(&mut fixture) = Value::Null;
        fixture
    };
    let bad_volume = || SourceProblem::Volume("pv-old".into());
    for (fixture, expected) in [
        (gone(of_source), SourceProblem::Missing),
        (good.with(of_source, "/metadata/namespace", json!("other")), SourceProblem::Missing),
        (good.with(of_source, "/status/phase", json!("Pending")), SourceProblem::Unbound),
        (good.with(of_source, "/status/phase", json!("Lost")), SourceProblem::Unbound),
        (good.with(of_source, "/status", json!({})), SourceProblem::Unbound),
        (
            good.with(of_source, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            SourceProblem::Deleting,
        ),
        (good.with(of_source, "/spec/storageClassName", Value::Null), SourceProblem::NoClass("the source")),
        (good.with(of_claim, "/spec/storageClassName", Value::Null), SourceProblem::NoClass("the claim")),
        (
            good.with(of_source, "/spec/resources", json!({"requests": {"storage": "10737418241"}})),
            SourceProblem::TooBig { source_size: (10 << 30) + 1, requested: 10 << 30 },
        ),
        (good.with(of_source, "/spec/volumeName", json!("")), SourceProblem::Volume(String::new())),
        (gone(of_volume), bad_volume()),
        (good.with(of_volume, "/metadata/name", json!("other")), bad_volume()),
        (good.with(of_volume, "/spec/csi", Value::Null), bad_volume()),
        (good.with(of_volume, "/spec/claimRef", Value::Null), bad_volume()),
        (good.with(of_volume, "/spec/claimRef/uid", json!("u-former")), bad_volume()),
        (good.with(of_volume, "/spec/claimRef/namespace", json!("other")), bad_volume()),
        (good.with(of_volume, "/status/phase", json!("Released")), bad_volume()),
        (good.with(of_volume, "/spec/csi/driver", json!("x")), SourceProblem::Driver("x".into(), "c".into())),
        (good.with(of_class, "/provisioner", json!("x")), SourceProblem::Driver(DRIVER.into(), "c".into())),
        (block, SourceProblem::CloneMode { source_mode: VolumeMode::Filesystem, wanted: VolumeMode::Block }),
        (
            good.with(of_volume, "/spec/volumeMode", json!("Block")),
            SourceProblem::CloneMode { source_mode: VolumeMode::Block, wanted: VolumeMode::Filesystem },
        ),
        (good.with(of_volume, "/spec/csi/volumeHandle", json!("")), SourceProblem::NoHandle),
    ] {
        assert_eq!(fixture.problem(), expected);
    }
}
