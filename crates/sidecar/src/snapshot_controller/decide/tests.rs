//! The rules, row by row.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{
    Meta, PersistentVolume, PersistentVolumeClaim, SecretRef, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

use super::super::view::{Found, Parent, Taker, View};
use super::*;

/// One snapshot and its world, by default one that can be taken: `change` says what is different.
struct World {
    snapshot: Value,
    content: Option<Value>,
    /// Whether the server was asked for the content.
    asked: bool,
    class: Option<Value>,
    defaults: Vec<Value>,
    claim: Option<Value>,
    volume: Option<Value>,
    asked_volume: bool,
    node: Taker<'static>,
    restoring: bool,
    parent: Option<bool>,
    group_name: Option<&'static str>,
    note_volume_mode: bool,
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
            asked: true,
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
            asked_volume: true,
            node: Taker::Any,
            restoring: false,
            parent: None,
            group_name: None,
            note_volume_mode: true,
        }
    }
}

fn class(name: &str, driver: &str) -> Value {
    json!({"metadata": {"name": name}, "driver": driver, "deletionPolicy": "Delete"})
}

/// The content that the controller makes.
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

fn of<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl World {
    fn step(&self) -> Step {
        let snapshot: VolumeSnapshot = of(&self.snapshot);
        let content: Option<VolumeSnapshotContent> = self.content.as_ref().map(of);
        let class: Option<VolumeSnapshotClass> = self.class.as_ref().map(of);
        let defaults: Vec<Arc<VolumeSnapshotClass>> =
            self.defaults.iter().map(|class| Arc::new(of(class))).collect();
        let claim: Option<PersistentVolumeClaim> = self.claim.as_ref().map(of);
        let volume: Option<PersistentVolume> = self.volume.as_ref().map(of);
        let group = Meta { name: "g".into(), namespace: Some("shop".into()), ..Meta::default() };
        decide(&View {
            snapshot: Some(&snapshot),
            content: Found::of(content.as_ref(), self.asked),
            asked: self.asked,
            class: class.as_ref(),
            defaults: &defaults,
            claim: claim.as_ref(),
            volume: if self.asked_volume { Found::of(volume.as_ref(), true) } else { Found::NotSeen },
            node: self.node,
            restoring: self.restoring,
            parent: match self.parent {
                None => Parent::None,
                Some(true) => Parent::Here(&group),
                Some(false) => Parent::Gone,
            },
            group_name: self.group_name,
            note_volume_mode: self.note_volume_mode,
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
        Step::Fail(fault) => (fault.reason, &fault.message, fault.unready),
        other => panic!("{other:?}"),
    }
}

fn creation() -> Creation {
    Creation {
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
fn a_snapshot_is_taken() {
    let unguarded = |change: fn(&mut World)| {
        step(|world| {
            world.snapshot["metadata"]["finalizers"] = json!([]);
            change(world);
        })
    };
    let both = vec![names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION];
    assert_eq!(unguarded(|_| {}), Step::Guard(both.clone()));
    // The claim is protected next; nobody looks at the volume twice.
    let next = unguarded(|world| world.claim.as_mut().unwrap()["metadata"]["finalizers"] = json!([]));
    assert_eq!(next, Step::Guard(both));
    assert_eq!(unguarded(|world| world.asked_volume = false), Step::AskVolume("pv".into()));
    // There is no content that it will have to wait for, or perhaps there never will be one.
    type Change = fn(&mut World);
    for change in [
        (|world| world.class.as_mut().unwrap()["deletionPolicy"] = json!("Retain")) as Change,
        |world| world.class = Some(class("fast", "e")),
        |world| world.claim.as_mut().unwrap()["status"]["phase"] = json!("Pending"),
        |world| world.volume = None,
        |world| world.content = Some(content()),
    ] {
        assert_eq!(unguarded(change), Step::Guard(vec![names::AS_SOURCE_PROTECTION]));
    }
    assert_eq!(step(|world| world.asked = false), Step::CreateContent(creation()));
    let bound = step(|world| {
        world.asked = false;
        world.snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u"});
    });
    assert_eq!(bound, Step::AskContent("snapcontent-u".into()));
    let unprotected = |world: &mut World| world.claim.as_mut().unwrap()["metadata"]["finalizers"] = json!([]);
    assert_eq!(step(unprotected), Step::ProtectClaim);
    assert_eq!(step(|world| world.asked_volume = false), Step::AskVolume("pv".into()));
    assert_eq!(step(|_| {}), Step::CreateContent(creation()));
    let plain = step(|world| world.note_volume_mode = false);
    assert_eq!(plain, Step::CreateContent(Creation { volume_mode: None, ..creation() }));
    let placed = step(|world| world.node = Taker::One("n"));
    assert_eq!(placed, Step::CreateContent(Creation { node: Some("n".into()), ..creation() }));
    let secret = step(|world| {
        world.class.as_mut().unwrap()["parameters"] = json!({
            "csi.storage.k8s.io/snapshotter-secret-name": "${volumesnapshot.name}",
            "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
        });
    });
    let reference = SecretRef { name: "s".into(), namespace: "shop".into() };
    assert_eq!(secret, Step::CreateContent(Creation { secret: Some(reference), ..creation() }));
    // A volume that is kept for the claim by name alone will do.
    let reserved = |world: &mut World| world.volume.as_mut().unwrap()["spec"]["claimRef"]["uid"] = json!("");
    assert_eq!(step(reserved), Step::CreateContent(creation()));
}

/// sidecars.md 1.4 "Create", "Events": why not.
#[test]
fn a_snapshot_cannot_be_taken() {
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
                "{input}\"volume pv is of driver d and class fast of driver e: name a class of the volume's driver\""
            ),
            true,
        ),
        (
            |world| world.node = Taker::Nobody,
            "SnapshotContentCreationFailed",
            format!(
                "{created}no node is known from which volume pv can be reached, and each node takes snapshots of its own: bring its node back"
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
fn the_default_class() {
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
    assert_eq!(choose(&[other.clone(), ours.clone()], |_| {}), Step::SetClass("a".into()));
    assert_eq!(
        choose(std::slice::from_ref(&ours), |world| world.asked_volume = false),
        Step::AskVolume("pv".into())
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

/// sidecars.md 1.4 "Binding", "Finalizers", "Status": a dynamic snapshot from its content on.
#[test]
fn a_snapshot_is_bound() {
    let made = |change: fn(&mut World)| {
        step(|world| {
            world.content = Some(content());
            change(world);
        })
    };
    let bound = json!({"boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": false});
    match made(|_| {}) {
        Step::Mirror(mirrored) => assert_eq!(mirrored.status, bound),
        other => panic!("{other:?}"),
    }
    // The class may be gone by now.
    assert!(matches!(made(|world| world.class = None), Step::Mirror(_)));
    fn is_bound(world: &mut World) {
        world.snapshot["status"] =
            json!({"boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": false});
    }
    let of_bound = |change: fn(&mut World)| {
        step(|world| {
            world.content = Some(content());
            is_bound(world);
            change(world);
        })
    };
    assert_eq!(of_bound(|_| {}), Step::Guard(vec![names::BOUND_PROTECTION]));
    fn retain(world: &mut World) {
        world.content.as_mut().unwrap()["spec"]["deletionPolicy"] = json!("Retain");
    }
    assert_eq!(of_bound(retain), Step::Done);
    fn ready(world: &mut World) {
        world.snapshot["metadata"]["finalizers"] =
            json!([names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION]);
        world.snapshot["status"]["readyToUse"] = json!(true);
        world.snapshot["status"]["creationTime"] = json!("2026-01-01T00:00:00Z");
    }
    assert_eq!(of_bound(ready), Step::Done);
    // It was ready, and its content is gone: it is not taken anew.
    let step = step(|world| {
        is_bound(world);
        ready(world);
    });
    assert_eq!(reason(&step), ("SnapshotContentMissing", "VolumeSnapshotContent is missing", true));
    let cut = self::step(|world| {
        is_bound(world);
        ready(world);
        world.snapshot["status"]["readyToUse"] = json!(false);
    });
    assert_eq!(reason(&cut).0, "SnapshotContentMissing");
}

/// sidecars.md 1.4 "Binding", "Events": contents that are not this snapshot's.
#[test]
fn contents_of_others() {
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
        assert!(matches!(step, Step::Fail(Fault { beside: Some(("SnapshotFinalizerError", _)), .. })));
    }
}

/// sidecars.md 1.4 "Binding": a content that was there before.
#[test]
fn a_pre_provisioned_snapshot() {
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
        Step::Mirror(_)
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

/// sidecars.md 1.4 "Group", "Status": a member waits to be bound, and is named after its group.
#[test]
fn a_member_of_a_group() {
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
    assert_eq!(member(|_| {}), Step::Wait(Waiting::Membership));
    fn bound(world: &mut World) {
        world.snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u"});
        let mut content = content();
        content["status"] =
            json!({"snapshotHandle": "sh", "volumeGroupSnapshotHandle": "gh", "readyToUse": true});
        world.content = Some(content);
    }
    assert_eq!(reason(&member(bound)).0, "SnapshotStatusUpdateFailed");
    match member(|world| {
        bound(world);
        world.group_name = Some("g");
    }) {
        // The group waits for its content, so its members need not.
        Step::Mirror(mirrored) => assert_eq!(mirrored.status["volumeGroupSnapshotName"], "g"),
        other => panic!("{other:?}"),
    }
    // One that was there before its group gets its owner when it is ready.
    let told = step(|world| {
        world.content = Some(content());
        world.snapshot["metadata"]["finalizers"] =
            json!([names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION]);
        world.snapshot["status"] = json!({
            "boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": true, "volumeGroupSnapshotName": "g",
        });
        world.parent = Some(true);
    });
    assert_eq!(told, Step::Adopt);
}

/// sidecars.md 1.4 "Delete": in every order.
#[test]
fn a_snapshot_goes() {
    let going = |change: fn(&mut World)| {
        step(|world| {
            world.snapshot["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            world.snapshot["metadata"]["finalizers"] =
                json!([names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION, "other"]);
            world.snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u"});
            world.content = Some(content());
            // Class and claim are gone, as when a namespace goes.
            world.class = None;
            world.claim = None;
            change(world);
        })
    };
    let both = || vec![names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION];
    fn annotate(world: &mut World) {
        world.content.as_mut().unwrap()["metadata"]["annotations"] = json!({names::BEING_DELETED: "yes"});
    }
    assert_eq!(going(|_| {}), Step::MarkContent);
    assert_eq!(
        going(|world| world.snapshot["spec"]["volumeSnapshotClassName"] = Value::Null),
        Step::MarkContent
    );
    assert_eq!(going(annotate), Step::DeleteContent);
    fn content_goes(world: &mut World) {
        annotate(world);
        world.content.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    assert_eq!(going(content_goes), Step::Release(vec![names::AS_SOURCE_PROTECTION]));
    assert_eq!(
        going(|world| {
            content_goes(world);
            world.snapshot["metadata"]["finalizers"] = json!([names::BOUND_PROTECTION]);
        }),
        Step::Wait(Waiting::Content)
    );
    // The content went first, and nobody had told the snapshotter.
    assert_eq!(
        going(|world| {
            world.content.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }),
        Step::MarkContent
    );
    assert_eq!(going(|world| world.content = None), Step::Release(both()));
    // It is not in the store: that proves nothing.
    assert_eq!(
        going(|world| {
            world.content = None;
            world.asked = false;
        }),
        Step::AskContent("snapcontent-u".into())
    );
    fn retained(world: &mut World) {
        annotate(world);
        world.content.as_mut().unwrap()["spec"]["deletionPolicy"] = json!("Retain");
    }
    assert_eq!(going(retained), Step::Release(both()));
    // Somebody else's content is not touched.
    assert_eq!(
        going(|world| world.content.as_mut().unwrap()["spec"]["volumeSnapshotRef"]["uid"] = json!("x")),
        Step::Release(both())
    );
    // The store may have it as it was before it was bound.
    assert_eq!(
        going(|world| {
            world.content.as_mut().unwrap()["spec"]["volumeSnapshotRef"]["uid"] = json!("");
            world.asked = false;
        }),
        Step::AskContent("snapcontent-u".into())
    );
    assert_eq!(going(|world| world.restoring = true), Step::Wait(Waiting::Restore));
    assert_eq!(
        going(|world| {
            world.restoring = true;
            world.content = None;
        }),
        Step::Release(both())
    );
    assert_eq!(going(|world| world.parent = Some(true)), Step::Wait(Waiting::Group("shop/g".into())));
    assert_eq!(going(|world| world.parent = Some(false)), Step::MarkContent);
    // A member that never got its other finalizers.
    assert_eq!(
        going(|world| {
            world.snapshot["metadata"]["finalizers"] = json!([names::IN_GROUP_PROTECTION]);
            world.parent = Some(false);
            world.content = None;
        }),
        Step::Release(vec![names::IN_GROUP_PROTECTION])
    );
    assert_eq!(going(|world| world.snapshot["metadata"]["finalizers"] = json!(["other"])), Step::Done);
}
