//! Table tests of the group rules.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::group_snapshot::VolumeSnapshotInfo;
use wharf_model::{SecretRef, VolumeGroupSnapshotClass, VolumeSnapshot};

use super::super::view::{GroupNode, Member, SourceClaim, View};
use super::*;

/// One group and its related objects. By default the group can be created.
struct World {
    group: Value,
    content: Option<Value>,
    content_fetched: bool,
    class: Option<Value>,
    defaults: Vec<Value>,
    sources: Option<Vec<(Value, Option<Value>)>>,
    node: GroupNode,
    members: Vec<(Option<Value>, Option<Value>)>,
    member_snapshots: Vec<Value>,
    restoring: bool,
}

fn source(name: &str) -> (Value, Option<Value>) {
    (
        json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name}, "spec": {"volumeName": format!("pv-{name}")},
            "status": {"phase": "Bound"},
        }),
        Some(json!({
            "metadata": {"name": format!("pv-{name}")},
            "spec": {
                "csi": {"driver": "d", "volumeHandle": name},
                "claimRef": {"namespace": "shop", "name": name, "uid": name},
            },
        })),
    )
}

impl Default for World {
    fn default() -> Self {
        Self {
            group: json!({
                "metadata": {"name": "g", "namespace": "shop", "uid": "u", "finalizers": [names::GROUP_PROTECTION]},
                "spec": {
                    "source": {"selector": {"matchLabels": {"app": "db"}}}, "volumeGroupSnapshotClassName": "fast",
                },
            }),
            content: None,
            content_fetched: true,
            class: Some(class("fast", "d")),
            defaults: Vec::new(),
            sources: Some(vec![source("a"), source("b")]),
            node: GroupNode::Any,
            members: Vec::new(),
            member_snapshots: Vec::new(),
            restoring: false,
        }
    }
}

fn class(name: &str, driver: &str) -> Value {
    json!({"metadata": {"name": name}, "driver": driver, "deletionPolicy": "Delete"})
}

fn content() -> Value {
    json!({
        "metadata": {"name": "groupsnapcontent-u", "uid": "ku"},
        "spec": {
            "driver": "d", "deletionPolicy": "Delete", "source": {"volumeHandles": ["a", "b"]},
            "volumeGroupSnapshotRef": {"name": "g", "namespace": "shop", "uid": "u"},
            "volumeGroupSnapshotClassName": "fast",
        },
    })
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn info() -> VolumeSnapshotInfo {
    VolumeSnapshotInfo {
        volume_handle: "a".into(),
        snapshot_handle: "sa".into(),
        ..VolumeSnapshotInfo::default()
    }
}

impl World {
    fn step(&self) -> Step {
        let group: VolumeGroupSnapshot = parse(&self.group);
        let content: Option<VolumeGroupSnapshotContent> = self.content.as_ref().map(parse);
        let class: Option<VolumeGroupSnapshotClass> = self.class.as_ref().map(parse);
        let defaults: Vec<Arc<VolumeGroupSnapshotClass>> =
            self.defaults.iter().map(|class| Arc::new(parse(class))).collect();
        let sources: Option<Vec<SourceClaim>> = self.sources.as_ref().map(|sources| {
            let source = |(claim, volume): &(Value, Option<Value>)| SourceClaim {
                claim: parse(claim),
                volume: volume.as_ref().map(parse),
            };
            sources.iter().map(source).collect()
        });
        let member = |(snapshot, content): &(Option<Value>, Option<Value>)| Member {
            info: info(),
            volume: source("a").1.map(|volume| Arc::new(parse(&volume))),
            snapshot: snapshot.as_ref().map(|snapshot| Arc::new(parse(snapshot))),
            content: content.as_ref().map(|content| Arc::new(parse(content))),
        };
        let members: Vec<Member> = self.members.iter().map(member).collect();
        let member_snapshots: Vec<Arc<VolumeSnapshot>> =
            self.member_snapshots.iter().map(|snapshot| Arc::new(parse(snapshot))).collect();
        let restoring = Key::namespaced("shop", "m");
        decide(&View {
            group: Some(&group),
            content: Lookup::new(content.as_ref(), self.content_fetched),
            content_fetched: self.content_fetched,
            class: class.as_ref(),
            defaults: &defaults,
            sources: sources.as_deref(),
            node: &self.node,
            members: &members,
            member_snapshots: &member_snapshots,
            restoring: self.restoring.then_some(&restoring),
        })
    }
}

fn step(change: impl FnOnce(&mut World)) -> Step {
    let mut world = World::default();
    change(&mut world);
    world.step()
}

fn reason(step: &Step) -> (&'static str, &str) {
    match step {
        Step::Fail(failure) => (failure.reason, &failure.message),
        other => panic!("{other:?}"),
    }
}

/// sidecars.md 1.4 "Group": created from all selected claims.
#[test]
fn group_is_created_from_all_selected_claims() {
    let new_content = NewGroupContent {
        class: "fast".into(),
        driver: "d".into(),
        policy: DeletionPolicy::Delete,
        volume_handles: vec!["a".into(), "b".into()],
        node: None,
        secret: None,
    };
    let unguarded = |world: &mut World| world.group["metadata"]["finalizers"] = json!([]);
    assert_eq!(step(unguarded), Step::AddFinalizer);
    // Nothing is created for it yet, so there is nothing to protect.
    let nothing = step(|world| {
        unguarded(world);
        world.sources = Some(Vec::new());
    });
    assert_eq!(reason(&nothing).0, "GroupSnapshotContentCreationFailed");
    let no_class = step(|world| {
        unguarded(world);
        world.class = None;
    });
    assert_eq!(reason(&no_class).0, "GetGroupSnapshotClassFailed");
    assert_eq!(step(|world| world.content_fetched = false), Step::FetchContent("groupsnapcontent-u".into()));
    assert_eq!(step(|world| world.sources = None), Step::FetchSources);
    assert_eq!(step(|_| {}), Step::CreateContent(new_content.clone()));
    let placed = step(|world| world.node = GroupNode::Node("n".into()));
    assert_eq!(
        placed,
        Step::CreateContent(NewGroupContent { node: Some("n".into()), ..new_content.clone() })
    );
    let secret = step(|world| {
        world.class.as_mut().unwrap()["parameters"] = json!({
            "csi.storage.k8s.io/group-snapshotter-secret-name": "${volumegroupsnapshot.name}",
            "csi.storage.k8s.io/group-snapshotter-secret-namespace": "x",
        });
    });
    let reference = SecretRef { name: "g".into(), namespace: "x".into() };
    assert_eq!(secret, Step::CreateContent(NewGroupContent { secret: Some(reference), ..new_content }));
    let no_class = |world: &mut World| {
        world.group["spec"]["volumeGroupSnapshotClassName"] = Value::Null;
        world.class = None;
    };
    let chosen = step(|world| {
        no_class(world);
        world.defaults = vec![class("other", "e"), class("ours", "d")];
    });
    assert_eq!(chosen, Step::SetDefaultClass("ours".into()));
    assert_eq!(reason(&step(no_class)).0, "SetDefaultGroupSnapshotClassFailed");
}

/// sidecars.md 1.4 "Group", "Events": failures.
#[test]
fn group_that_cannot_be_created_reports_upstreams_reason() {
    let failed = "failed to create group snapshot content with error ";
    let input = format!("{failed}failed to get input parameters to create group snapshot g: ");
    type Case = (fn(&mut World), &'static str, String);
    let cases: Vec<Case> = vec![
        (
            |world| world.group["spec"]["source"] = json!({}),
            "GroupSnapshotValidationError",
            "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified".into(),
        ),
        (
            |world| world.class = None,
            "GetGroupSnapshotClassFailed",
            "failed to get group snapshot class with error volumegroupsnapshotclass.groupsnapshot.storage.k8s.io \"fast\" not found".into(),
        ),
        (
            |world| world.sources = Some(vec![]),
            "GroupSnapshotContentCreationFailed",
            format!("{input}\"label selector app=db for group snapshot not applied to any PVC\""),
        ),
        (
            |world| world.sources.as_mut().unwrap()[1].0["status"]["phase"] = json!("Pending"),
            "GroupSnapshotContentCreationFailed",
            format!("{input}\"the PVC b is not yet bound to a PV, will not attempt to take a group snapshot\""),
        ),
        (
            |world| world.sources.as_mut().unwrap()[0].1.as_mut().unwrap()["spec"]["csi"] = Value::Null,
            "GroupSnapshotContentCreationFailed",
            format!("{failed}cannot snapshot a non-CSI volume for group snapshot shop/g: pv-a"),
        ),
        (
            |world| world.sources.as_mut().unwrap()[0].1.as_mut().unwrap()["spec"]["csi"]["driver"] = json!("e"),
            "GroupSnapshotContentCreationFailed",
            format!(
                "{failed}snapshot controller failed to update shop/g on API server: Volume CSI driver (e) mismatch with VolumeGroupSnapshotClass (d) shop/g: pv-a"
            ),
        ),
        (
            |world| world.node = GroupNode::NoCommonNode,
            "GroupSnapshotContentCreationFailed",
            format!(
                "{failed}its volumes are on different nodes, and each node takes the snapshots of its own volumes: select volumes of one node"
            ),
        ),
    ];
    for (change, expected, message) in cases {
        assert_eq!(reason(&step(change)), (expected, message.as_str()));
    }
}

/// sidecars.md 1.4 "Group": a snapshot and a content for each member, in this order.
#[test]
fn member_gets_snapshot_then_content_then_binding() {
    let member = |snapshot: Option<Value>, content_of_member: Option<Value>| {
        step(|world| {
            world.content = Some(content());
            world.members = vec![(snapshot, content_of_member)];
        })
    };
    let snapshot = json!({"metadata": {"name": "m", "uid": "mu"}});
    let status = json!({"snapshotHandle": "sa", "volumeGroupSnapshotHandle": "gh"});
    let of_member = |uid: &str, status: Value| json!({"metadata": {"name": "mc"}, "spec": {"volumeSnapshotRef": {"uid": uid}}, "status": status});
    assert_eq!(member(None, None), Step::CreateMember { info: info(), claim: "a".into() });
    assert_eq!(
        member(Some(snapshot.clone()), None),
        Step::CreateMemberContent { info: info(), volume_mode: None, snapshot: "mu".into() }
    );
    assert_eq!(
        member(Some(snapshot.clone()), Some(of_member("", Value::Null))),
        Step::BindMemberContent { content: "mc".into(), snapshot: "mu".into() }
    );
    assert_eq!(
        member(Some(snapshot.clone()), Some(of_member("mu", Value::Null))),
        Step::WriteMemberStatus(info())
    );
    assert_eq!(
        member(Some(snapshot.clone()), Some(of_member("mu", status.clone()))),
        Step::BindMember(info())
    );
    let mut bound = snapshot;
    bound["status"] = json!({"boundVolumeSnapshotContentName": "mc"});
    assert!(matches!(member(Some(bound), Some(of_member("mu", status))), Step::WriteStatus(_)));
}

/// sidecars.md 1.4 "Binding", "Group": pre-provisioned contents, and those of other groups.
#[test]
fn pre_provisioned_content_is_bound_and_foreign_one_rejected() {
    let pre = |change: fn(&mut World)| {
        step(|world| {
            world.group["spec"] = json!({"source": {"volumeGroupSnapshotContentName": "pre"}});
            let mut content = content();
            content["spec"]["source"] = json!({"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gh"}});
            content["spec"]["volumeGroupSnapshotRef"]["uid"] = json!("");
            world.content = Some(content);
            world.class = None;
            change(world);
        })
    };
    fn spec(world: &mut World) -> &mut Value {
        &mut world.content.as_mut().unwrap()["spec"]
    }
    assert_eq!(pre(|_| {}), Step::BindContent { class: None });
    fn classed(world: &mut World, driver: &str) {
        world.group["spec"]["volumeGroupSnapshotClassName"] = json!("fast");
        world.class = Some(class("fast", driver));
    }
    assert_eq!(pre(|world| classed(world, "d")), Step::BindContent { class: Some("fast".into()) });
    assert_eq!(reason(&pre(|world| classed(world, "e"))).0, "GroupSnapshotBindFailed");
    assert!(matches!(
        pre(|world| spec(world)["volumeGroupSnapshotRef"]["uid"] = json!("u")),
        Step::WriteStatus(_)
    ));
    let other = pre(|world| spec(world)["volumeGroupSnapshotRef"]["uid"] = json!("x"));
    assert_eq!(reason(&other).0, "GroupSnapshotContentMisbound");
    assert!(matches!(
        other,
        Step::Fail(Failure { extra_event: Some(("GroupSnapshotFinalizerError", _)), .. })
    ));
    assert_eq!(reason(&pre(|world| world.content = None)).0, "GroupSnapshotContentMissing");
    let dynamic = pre(|world| spec(world)["source"] = json!({"volumeHandles": ["a"]}));
    assert_eq!(reason(&dynamic).0, "GroupSnapshotContentMismatch");
    assert!(matches!(
        dynamic,
        Step::Fail(Failure { extra_event: Some(("GroupSnapshotFinalizerError", _)), .. })
    ));
    let taken = step(|world| {
        let mut content = content();
        content["spec"]["volumeGroupSnapshotRef"]["uid"] = json!("x");
        world.content = Some(content);
    });
    assert_eq!(reason(&taken).0, "GroupSnapshotContentMisbound");
    // It was created and its content is gone: it is not created again.
    let lost = step(|world| world.group["status"] = json!({"creationTime": "2026-01-01T00:00:00Z"}));
    assert_eq!(reason(&lost).0, "GroupSnapshotContentMissing");
    let ready = step(|world| {
        world.content = Some(content());
        world.group["status"] =
            json!({"boundVolumeGroupSnapshotContentName": "groupsnapcontent-u", "readyToUse": true});
    });
    assert_eq!(ready, Step::Idle);
}

/// sidecars.md 1.4 "Group", "Delete": with its members.
#[test]
fn deleted_group_is_released_after_members_and_content() {
    let deleting = |change: fn(&mut World)| {
        step(|world| {
            world.group["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            world.content = Some(content());
            world.class = None;
            world.sources = None;
            world.member_snapshots = vec![json!({"metadata": {"name": "m", "namespace": "shop"}})];
            change(world);
        })
    };
    fn metadata(world: &mut World) -> &mut Value {
        &mut world.content.as_mut().unwrap()["metadata"]
    }
    fn marked(world: &mut World) {
        metadata(world)["annotations"] = json!({names::GROUP_BEING_DELETED: "yes"});
    }
    fn content_deleting(world: &mut World) {
        marked(world);
        metadata(world)["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    fn members_deleting(world: &mut World) {
        world.member_snapshots[0]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let member = || Key::namespaced("shop", "m");
    assert_eq!(deleting(|world| world.restoring = true), Step::WaitForRestore(member()));
    assert_eq!(deleting(|_| {}), Step::MarkContentBeingDeleted);
    assert_eq!(deleting(marked), Step::DeleteContent);
    assert_eq!(deleting(content_deleting), Step::DeleteMember(member()));
    assert_eq!(
        deleting(|world| {
            content_deleting(world);
            members_deleting(world);
        }),
        Step::WaitForContent
    );
    assert_eq!(
        deleting(|world| {
            world.content = None;
            members_deleting(world);
        }),
        Step::RemoveFinalizer
    );
    assert_eq!(
        deleting(|world| {
            marked(world);
            world.content.as_mut().unwrap()["spec"]["deletionPolicy"] = json!("Retain");
            members_deleting(world);
        }),
        Step::RemoveFinalizer
    );
    assert_eq!(
        deleting(|world| {
            world.content = None;
            world.content_fetched = false;
        }),
        Step::FetchContent("groupsnapcontent-u".into())
    );
    // The cache may have the version before it was bound.
    fn unbound(world: &mut World) {
        world.content.as_mut().unwrap()["spec"]["volumeGroupSnapshotRef"]["uid"] = json!("");
        members_deleting(world);
    }
    assert_eq!(
        deleting(|world| {
            unbound(world);
            world.content_fetched = false;
        }),
        Step::FetchContent("groupsnapcontent-u".into())
    );
    assert_eq!(deleting(unbound), Step::RemoveFinalizer);
    assert_eq!(deleting(|world| world.group["metadata"]["finalizers"] = json!([])), Step::Idle);
}
