//! Table tests of the snapshot rules.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{
    Meta, PersistentVolume, PersistentVolumeClaim, SecretRef, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

use super::super::view::{Lookup, NodeChoice, ParentGroup, View};
use super::*;

/// One snapshot and its related objects. By default the snapshot can be created; `change` sets up the case.
struct World {
    snapshot: Value,
    content: Option<Value>,
    /// Whether the content was read from the API server.
    content_fetched: bool,
    class: Option<Value>,
    defaults: Vec<Value>,
    claim: Option<Value>,
    volume: Option<Value>,
    volume_fetched: bool,
    node: NodeChoice<'static>,
    restoring: bool,
    parent: Option<bool>,
    group_name: Option<&'static str>,
    record_volume_mode: bool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            snapshot: json!({
                "metadata": {
                    "name": "s", "namespace": "shop", "uid": "u", "resourceVersion": "1",
                    "finalizers": [names::AS_SOURCE_PROTECTION],
                },
                "spec": {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "fast"},
            }),
            content: None,
            content_fetched: true,
            class: Some(class("fast", "d")),
            defaults: Vec::new(),
            claim: Some(json!({
                "metadata": {
                    "name": "data", "namespace": "shop", "uid": "cu", "finalizers": [names::CLAIM_PROTECTION],
                },
                "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
            })),
            volume: Some(json!({
                "metadata": {"name": "pv"},
                "spec": {
                    "csi": {"driver": "d", "volumeHandle": "h"}, "volumeMode": "Block",
                    "claimRef": {"namespace": "shop", "name": "data", "uid": "cu"},
                },
            })),
            volume_fetched: true,
            node: NodeChoice::Any,
            restoring: false,
            parent: None,
            group_name: None,
            record_volume_mode: true,
        }
    }
}

fn class(name: &str, driver: &str) -> Value {
    json!({"metadata": {"name": name}, "driver": driver, "deletionPolicy": "Delete"})
}

/// The content that the controller creates.
fn content() -> Value {
    json!({
        "metadata": {"name": "snapcontent-u", "uid": "ku"},
        "spec": {
            "driver": "d", "deletionPolicy": "Delete", "source": {"volumeHandle": "h"},
            "volumeSnapshotRef": {"name": "s", "namespace": "shop", "uid": "u"},
            "volumeSnapshotClassName": "fast",
        },
    })
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl World {
    fn step(&self) -> Step {
        let snapshot: VolumeSnapshot = parse(&self.snapshot);
        let content: Option<VolumeSnapshotContent> = self.content.as_ref().map(parse);
        let class: Option<VolumeSnapshotClass> = self.class.as_ref().map(parse);
        let defaults: Vec<Arc<VolumeSnapshotClass>> =
            self.defaults.iter().map(|class| Arc::new(parse(class))).collect();
        let claim: Option<PersistentVolumeClaim> = self.claim.as_ref().map(parse);
        let volume: Option<PersistentVolume> = self.volume.as_ref().map(parse);
        let group = Meta { name: "g".into(), namespace: Some("shop".into()), ..Meta::default() };
        decide(&View {
            snapshot: Some(&snapshot),
            content: Lookup::new(content.as_ref(), self.content_fetched),
            content_fetched: self.content_fetched,
            class: class.as_ref(),
            defaults: &defaults,
            claim: claim.as_ref(),
            volume: if self.volume_fetched { Lookup::new(volume.as_ref(), true) } else { Lookup::NotCached },
            node: self.node,
            restoring: self.restoring,
            parent: match self.parent {
                None => ParentGroup::None,
                Some(true) => ParentGroup::Found(&group),
                Some(false) => ParentGroup::NotFound,
            },
            group_name: self.group_name,
            record_volume_mode: self.record_volume_mode,
        })
    }
}

fn step(change: impl FnOnce(&mut World)) -> Step {
    let mut world = World::default();
    change(&mut world);
    world.step()
}

fn reason(step: &Step) -> (&'static str, &str, bool) {
    match step {
        Step::Fail(failure) => (failure.reason, &failure.message, failure.unready),
        other => panic!("{other:?}"),
    }
}

fn new_content() -> NewContent {
    NewContent {
        class: "fast".into(),
        driver: "d".into(),
        policy: DeletionPolicy::Delete,
        volume_handle: "h".into(),
        volume_mode: Some("Block"),
        node: None,
        secret: None,
    }
}

/// sidecars.md 1.4 "Create": step by step.
#[test]
fn dynamic_snapshot_is_created_step_by_step() {
    let unguarded = |change: fn(&mut World)| {
        step(|world| {
            world.snapshot["metadata"]["finalizers"] = json!([]);
            change(world);
        })
    };
    let both = vec![names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION];
    assert_eq!(unguarded(|_| {}), Step::AddFinalizers(both.clone()));
    // The claim is protected next. The volume is not read twice.
    let next = unguarded(|world| world.claim.as_mut().unwrap()["metadata"]["finalizers"] = json!([]));
    assert_eq!(next, Step::AddFinalizers(both));
    assert_eq!(unguarded(|world| world.volume_fetched = false), Step::FetchVolume("pv".into()));
    // There is no content to wait for, or there may never be one.
    type Change = fn(&mut World);
    for change in [
        (|world| world.class.as_mut().unwrap()["deletionPolicy"] = json!("Retain")) as Change,
        |world| world.class = Some(class("fast", "e")),
        |world| world.claim.as_mut().unwrap()["status"]["phase"] = json!("Pending"),
        |world| world.volume = None,
        |world| world.content = Some(content()),
    ] {
        assert_eq!(unguarded(change), Step::AddFinalizers(vec![names::AS_SOURCE_PROTECTION]));
    }
    assert_eq!(step(|world| world.content_fetched = false), Step::CreateContent(new_content()));
    let bound = step(|world| {
        world.content_fetched = false;
        world.snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u"});
    });
    assert_eq!(bound, Step::FetchContent("snapcontent-u".into()));
    let unprotected = |world: &mut World| world.claim.as_mut().unwrap()["metadata"]["finalizers"] = json!([]);
    assert_eq!(step(unprotected), Step::ProtectClaim);
    assert_eq!(step(|world| world.volume_fetched = false), Step::FetchVolume("pv".into()));
    assert_eq!(step(|_| {}), Step::CreateContent(new_content()));
    let plain = step(|world| world.record_volume_mode = false);
    assert_eq!(plain, Step::CreateContent(NewContent { volume_mode: None, ..new_content() }));
    let placed = step(|world| world.node = NodeChoice::Node("n"));
    assert_eq!(placed, Step::CreateContent(NewContent { node: Some("n".into()), ..new_content() }));
    let secret = step(|world| {
        world.class.as_mut().unwrap()["parameters"] = json!({
            "csi.storage.k8s.io/snapshotter-secret-name": "${volumesnapshot.name}",
            "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
        });
    });
    let reference = SecretRef { name: "s".into(), namespace: "shop".into() };
    assert_eq!(secret, Step::CreateContent(NewContent { secret: Some(reference), ..new_content() }));
    // A volume that is reserved for the claim by name is accepted.
    let reserved = |world: &mut World| world.volume.as_mut().unwrap()["spec"]["claimRef"]["uid"] = json!("");
    assert_eq!(step(reserved), Step::CreateContent(new_content()));
}

/// sidecars.md 1.4 "Create", "Events": failures.
#[test]
fn snapshot_that_cannot_be_created_reports_upstreams_reason() {
    let created = "Failed to create snapshot content with error ";
    let input = format!("{created}failed to get input parameters to create snapshot s: ");
    type Case = (fn(&mut World), &'static str, String, bool);
    let cases: Vec<Case> = vec![
        (
            |world| world.class = None,
            "GetSnapshotClassFailed",
            "Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io \"fast\" not found"
                .into(),
            false,
        ),
        (
            |world| world.claim = None,
            "SnapshotContentCreationFailed",
            format!(
                "{created}snapshot controller failed to update s on API server: cannot get claim from snapshot"
            ),
            true,
        ),
        (
            |world| {
                world.claim.as_mut().unwrap()["metadata"]["finalizers"] = json!(["x"]);
                world.claim.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            },
            "SnapshotContentCreationFailed",
            format!(
                "{created}snapshot controller failed to update data on API server: cannot add finalizer on claim because it is being deleted"
            ),
            true,
        ),
        (
            |world| world.claim.as_mut().unwrap()["status"]["phase"] = json!("Pending"),
            "SnapshotContentCreationFailed",
            format!(
                "{input}\"the PVC data is not yet bound to a PV, will not attempt to take a snapshot\""
            ),
            true,
        ),
        (
            |world| world.volume = None,
            "SnapshotContentCreationFailed",
            format!(
                "{input}\"failed to retrieve PV pv from the API server: \\\"persistentvolumes \\\\\\\"pv\\\\\\\" not found\\\"\""
            ),
            true,
        ),
        (
            |world| world.volume.as_mut().unwrap()["spec"]["claimRef"]["uid"] = json!("other"),
            "SnapshotContentCreationFailed",
            format!("{input}\"claim in dataSource not bound or invalid\""),
            true,
        ),
        (
            |world| world.volume.as_mut().unwrap()["spec"]["csi"] = Value::Null,
            "SnapshotContentCreationFailed",
            format!("{created}cannot find CSI PersistentVolumeSource for volume pv"),
            true,
        ),
        (
            |world| world.class = Some(class("fast", "e")),
            "SnapshotContentCreationFailed",
            format!(
                "{input}\"volume pv belongs to driver d and class fast to driver e: use a class of the volume's driver\""
            ),
            true,
        ),
        (
            |world| world.node = NodeChoice::Unreachable,
            "SnapshotContentCreationFailed",
            format!(
                "{created}no known node can reach volume pv, and each node takes the snapshots of its own volumes: bring its node back"
            ),
            true,
        ),
        (
            |world| {
                world.class.as_mut().unwrap()["parameters"] =
                    json!({"csi.storage.k8s.io/snapshotter-secret-name": "a"});
            },
            "SnapshotContentCreationFailed",
            format!(
                "{input}\"failed to get name and namespace template from params: either name and namespace for Snapshotter secrets specified, Both must be specified\""
            ),
            true,
        ),
        (
            |world| world.snapshot["spec"]["source"] = json!({}),
            "SnapshotValidationError",
            "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified".into(),
            true,
        ),
    ];
    for (change, expected, message, unready) in cases {
        assert_eq!(reason(&step(change)), (expected, message.as_str(), unready));
    }
}

/// sidecars.md 1.4 "Default class".
#[test]
fn only_default_class_of_volumes_driver_is_chosen() {
    let choose = |defaults: &[Value], change: fn(&mut World)| {
        step(|world| {
            world.snapshot["spec"]["volumeSnapshotClassName"] = Value::Null;
            world.class = None;
            world.defaults = defaults.to_vec();
            change(world);
        })
    };
    let failed = |step: Step| match reason(&step) {
        ("SetDefaultSnapshotClassFailed", message, false) => {
            message.strip_prefix("Failed to set default snapshot class with error ").unwrap().to_owned()
        }
        other => panic!("{other:?}"),
    };
    let (ours, other) = (class("a", "d"), class("b", "e"));
    assert_eq!(choose(&[other.clone(), ours.clone()], |_| {}), Step::SetDefaultClass("a".into()));
    assert_eq!(
        choose(std::slice::from_ref(&ours), |world| world.volume_fetched = false),
        Step::FetchVolume("pv".into())
    );
    assert_eq!(failed(choose(&[other], |_| {})), "cannot find default snapshot class");
    assert_eq!(failed(choose(&[ours, class("c", "d")], |_| {})), "2 default snapshot classes were found");
    assert_eq!(
        failed(choose(&[], |world| world.volume.as_mut().unwrap()["spec"]["csi"] = Value::Null)),
        "snapshotting non-CSI volumes is not supported, snapshot:shop/s"
    );
    assert_eq!(
        failed(choose(&[], |world| world.claim = None)),
        "failed to retrieve PVC data from the lister: \"persistentvolumeclaim \\\"data\\\" not found\""
    );
}

/// sidecars.md 1.4 "Binding", "Finalizers", "Status": a dynamic snapshot once its content exists.
#[test]
fn snapshot_with_content_is_bound_and_verified() {
    let with_content = |change: fn(&mut World)| {
        step(|world| {
            world.content = Some(content());
            change(world);
        })
    };
    let bound = json!({"boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": false});
    match with_content(|_| {}) {
        Step::WriteStatus(update) => assert_eq!(update.status, bound),
        other => panic!("{other:?}"),
    }
    // The class may be deleted by now.
    assert!(matches!(with_content(|world| world.class = None), Step::WriteStatus(_)));
    fn is_bound(world: &mut World) {
        world.snapshot["status"] =
            json!({"boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": false});
    }
    let bound = |change: fn(&mut World)| {
        step(|world| {
            world.content = Some(content());
            is_bound(world);
            change(world);
        })
    };
    assert_eq!(bound(|_| {}), Step::AddFinalizers(vec![names::BOUND_PROTECTION]));
    fn retain(world: &mut World) {
        world.content.as_mut().unwrap()["spec"]["deletionPolicy"] = json!("Retain");
    }
    assert_eq!(bound(retain), Step::Idle);
    fn ready(world: &mut World) {
        world.snapshot["metadata"]["finalizers"] =
            json!([names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION]);
        world.snapshot["status"]["readyToUse"] = json!(true);
        world.snapshot["status"]["creationTime"] = json!("2026-01-01T00:00:00Z");
    }
    assert_eq!(bound(ready), Step::Idle);
    // It was ready and its content is gone: it is not created again.
    let step = step(|world| {
        is_bound(world);
        ready(world);
    });
    assert_eq!(reason(&step), ("SnapshotContentMissing", "VolumeSnapshotContent is missing", true));
    let created = self::step(|world| {
        is_bound(world);
        ready(world);
        world.snapshot["status"]["readyToUse"] = json!(false);
    });
    assert_eq!(reason(&created).0, "SnapshotContentMissing");
}

/// sidecars.md 1.4 "Binding", "Events": contents that belong to another snapshot.
#[test]
fn content_of_another_snapshot_is_rejected() {
    type Change = fn(&mut Value);
    for (change, expected) in [
        (
            (|content| content["spec"]["volumeSnapshotRef"]["uid"] = json!("other")) as Change,
            "SnapshotContentMisbound",
        ),
        (|content| content["spec"]["volumeSnapshotRef"]["uid"] = json!(""), "SnapshotContentMisbound"),
        (|content| content["spec"]["volumeSnapshotRef"]["name"] = json!("other"), "SnapshotContentMisbound"),
        (|content| content["spec"]["source"] = json!({"snapshotHandle": "sh"}), "SnapshotContentMismatch"),
    ] {
        let mut content = content();
        change(&mut content);
        let step = step(|world| world.content = Some(content));
        assert_eq!(reason(&step).0, expected);
        assert!(matches!(step, Step::Fail(Failure { extra_event: Some(("SnapshotFinalizerError", _)), .. })));
    }
}

/// sidecars.md 1.4 "Binding": a pre-provisioned content.
#[test]
fn pre_provisioned_content_is_bound() {
    let pre = |change: fn(&mut World)| {
        step(|world| {
            world.snapshot["spec"] = json!({"source": {"volumeSnapshotContentName": "pre"}});
            let mut content = content();
            content["metadata"]["name"] = json!("pre");
            content["spec"]["source"] = json!({"snapshotHandle": "sh"});
            content["spec"]["volumeSnapshotRef"]["uid"] = json!("");
            content["spec"]["volumeSnapshotClassName"] = Value::Null;
            world.content = Some(content);
            world.class = None;
            world.claim = None;
            change(world);
        })
    };
    assert_eq!(pre(|_| {}), Step::BindContent { class: None });
    let named = |world: &mut World| world.snapshot["spec"]["volumeSnapshotClassName"] = json!("fast");
    assert_eq!(reason(&pre(named)).0, "GetSnapshotClassFailed");
    let with_class = |world: &mut World| {
        world.snapshot["spec"]["volumeSnapshotClassName"] = json!("fast");
        world.class = Some(class("fast", "d"));
    };
    assert_eq!(pre(with_class), Step::BindContent { class: Some("fast".into()) });
    let other_driver = pre(|world| {
        world.snapshot["spec"]["volumeSnapshotClassName"] = json!("fast");
        world.class = Some(class("fast", "e"));
    });
    assert_eq!(reason(&other_driver).0, "SnapshotBindFailed");
    assert!(matches!(
        pre(|world| world.content.as_mut().unwrap()["spec"]["volumeSnapshotRef"]["uid"] = json!("u")),
        Step::WriteStatus(_)
    ));
    assert_eq!(
        reason(&pre(|world| world.content = None)),
        ("SnapshotContentMissing", "VolumeSnapshotContent is missing", true)
    );
    let other = pre(|world| world.content.as_mut().unwrap()["spec"]["volumeSnapshotRef"]["uid"] = json!("x"));
    assert_eq!(reason(&other).0, "SnapshotContentMisbound");
    let elsewhere =
        pre(|world| world.content.as_mut().unwrap()["spec"]["volumeSnapshotRef"]["namespace"] = json!("x"));
    assert_eq!(reason(&elsewhere).0, "SnapshotContentMisbound");
    let dynamic = step(|world| {
        world.snapshot["spec"] = json!({"source": {"volumeSnapshotContentName": "snapcontent-u"}});
        world.content = Some(content());
    });
    assert_eq!(reason(&dynamic).0, "SnapshotContentMismatch");
    let was_ready = pre(|world| {
        world.snapshot["status"] = json!({"boundVolumeSnapshotContentName": "pre", "readyToUse": true});
    });
    assert_eq!(reason(&was_ready).0, "SnapshotMisbound");
}

/// sidecars.md 1.4 "Group", "Status": a member waits to be bound and then names its group.
#[test]
fn group_member_waits_for_binding() {
    let owner = json!([{
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "name": "g", "uid": "gu",
    }]);
    let member = |change: fn(&mut World)| {
        step(|world| {
            world.snapshot["metadata"]["ownerReferences"] = owner.clone();
            world.snapshot["spec"] = json!({"source": {"persistentVolumeClaimName": ""}});
            world.class = None;
            world.parent = Some(true);
            change(world);
        })
    };
    assert_eq!(member(|_| {}), Step::Wait(WaitingFor::Membership));
    fn bind_member(world: &mut World) {
        world.snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u"});
        let mut content = content();
        content["status"] =
            json!({"snapshotHandle": "sh", "volumeGroupSnapshotHandle": "gh", "readyToUse": true});
        world.content = Some(content);
    }
    assert_eq!(reason(&member(bind_member)).0, "SnapshotStatusUpdateFailed");
    match member(|world| {
        bind_member(world);
        world.group_name = Some("g");
    }) {
        // The group waits for its content, so its members need not.
        Step::WriteStatus(update) => assert_eq!(update.status["volumeGroupSnapshotName"], "g"),
        other => panic!("{other:?}"),
    }
    // A pre-provisioned member gets its owner once it is ready.
    let named = step(|world| {
        world.content = Some(content());
        world.snapshot["metadata"]["finalizers"] =
            json!([names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION]);
        world.snapshot["status"] = json!({
            "boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": true, "volumeGroupSnapshotName": "g",
        });
        world.parent = Some(true);
    });
    assert_eq!(named, Step::SetOwnerGroup);
}

/// sidecars.md 1.4 "Delete": in every order.
#[test]
fn deleted_snapshot_is_released_after_its_content() {
    let deleting = |change: fn(&mut World)| {
        step(|world| {
            world.snapshot["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            world.snapshot["metadata"]["finalizers"] =
                json!([names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION, "other"]);
            world.snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u"});
            world.content = Some(content());
            // Class and claim are gone, as in the deletion of a namespace.
            world.class = None;
            world.claim = None;
            change(world);
        })
    };
    let both = || vec![names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION];
    fn annotate(world: &mut World) {
        world.content.as_mut().unwrap()["metadata"]["annotations"] = json!({names::BEING_DELETED: "yes"});
    }
    assert_eq!(deleting(|_| {}), Step::MarkContentBeingDeleted);
    assert_eq!(
        deleting(|world| world.snapshot["spec"]["volumeSnapshotClassName"] = Value::Null),
        Step::MarkContentBeingDeleted
    );
    assert_eq!(deleting(annotate), Step::DeleteContent);
    fn content_deleting(world: &mut World) {
        annotate(world);
        world.content.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    assert_eq!(deleting(content_deleting), Step::RemoveFinalizers(vec![names::AS_SOURCE_PROTECTION]));
    assert_eq!(
        deleting(|world| {
            content_deleting(world);
            world.snapshot["metadata"]["finalizers"] = json!([names::BOUND_PROTECTION]);
        }),
        Step::Wait(WaitingFor::Content)
    );
    // The content was deleted first, without the being-deleted annotation.
    assert_eq!(
        deleting(|world| {
            world.content.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }),
        Step::MarkContentBeingDeleted
    );
    assert_eq!(deleting(|world| world.content = None), Step::RemoveFinalizers(both()));
    // A content missing from the cache proves nothing.
    assert_eq!(
        deleting(|world| {
            world.content = None;
            world.content_fetched = false;
        }),
        Step::FetchContent("snapcontent-u".into())
    );
    fn retained(world: &mut World) {
        annotate(world);
        world.content.as_mut().unwrap()["spec"]["deletionPolicy"] = json!("Retain");
    }
    assert_eq!(deleting(retained), Step::RemoveFinalizers(both()));
    // A content of another snapshot is not touched.
    assert_eq!(
        deleting(|world| world.content.as_mut().unwrap()["spec"]["volumeSnapshotRef"]["uid"] = json!("x")),
        Step::RemoveFinalizers(both())
    );
    // The cache may have the version before it was bound.
    assert_eq!(
        deleting(|world| {
            world.content.as_mut().unwrap()["spec"]["volumeSnapshotRef"]["uid"] = json!("");
            world.content_fetched = false;
        }),
        Step::FetchContent("snapcontent-u".into())
    );
    assert_eq!(deleting(|world| world.restoring = true), Step::Wait(WaitingFor::Restore));
    assert_eq!(
        deleting(|world| {
            world.restoring = true;
            world.content = None;
        }),
        Step::RemoveFinalizers(both())
    );
    assert_eq!(deleting(|world| world.parent = Some(true)), Step::Wait(WaitingFor::Group("shop/g".into())));
    assert_eq!(deleting(|world| world.parent = Some(false)), Step::MarkContentBeingDeleted);
    // A member that never got its other finalizers.
    assert_eq!(
        deleting(|world| {
            world.snapshot["metadata"]["finalizers"] = json!([names::IN_GROUP_PROTECTION]);
            world.parent = Some(false);
            world.content = None;
        }),
        Step::RemoveFinalizers(vec![names::IN_GROUP_PROTECTION])
    );
    assert_eq!(deleting(|world| world.snapshot["metadata"]["finalizers"] = json!(["other"])), Step::Idle);
}
