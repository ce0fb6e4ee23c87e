//! Group contents, and contents with one sidecar per node.

use super::*;

/// The same rules apply to groups, with their own annotations and reasons.
#[test]
fn group_content_is_created_and_deleted() {
    let nothing = ContentState::default();
    let step = next(&group(json!({})), &nothing);
    let Step::MarkBeingCreated { request: CallRequest { call: Call::CreateGroup(request), .. }, .. } = step
    else {
        panic!("{step:?}")
    };
    assert_eq!(
        (request.name.as_str(), request.source_volume_ids),
        ("groupsnapshot-vgs", vec!["v".into(), "w".into()])
    );
    let members = ["v", "w"].map(|volume| Member {
        volume: volume.into(),
        handle: format!("h-{volume}"),
        created: Some(5),
        ready: true,
        size: 9,
    });
    let info = SnapshotInfo {
        handle: "hg".into(),
        ready: true,
        created: 1_500_000_000,
        members: members.into(),
        ..SnapshotInfo::default()
    };
    let marked = group(annotated(names::GROUP_BEING_CREATED));
    let Step::WriteStatus { patch: Patch::Merge(body) } = next(&marked, &state_with_info(info, NOW)) else {
        panic!("expected WriteStatus")
    };
    let status = json!({
        "volumeGroupSnapshotHandle": "hg", "readyToUse": true, "creationTime": "1970-01-01T00:00:01Z",
        "volumeSnapshotInfoList": [
            {"volumeHandle": "v", "snapshotHandle": "h-v", "creationTime": 5, "readyToUse": true, "restoreSize": 9},
            {"volumeHandle": "w", "snapshotHandle": "h-w", "creationTime": 5, "readyToUse": true, "restoreSize": 9},
        ],
    });
    assert_eq!(body["status"], status);
    let being_deleted =
        both(annotated(names::GROUP_BEING_DELETED), json!({"metadata": {"deletionTimestamp": GOING}}));
    let being_deleted = group(both(being_deleted, json!({"status": status})));
    let Step::DeleteSnapshot { request: CallRequest { call: DeleteCall::Group(request), .. } } =
        next(&being_deleted, &nothing)
    else {
        panic!("expected DeleteSnapshot")
    };
    assert_eq!(
        (request.group_snapshot_id.as_str(), request.snapshot_ids),
        ("hg", vec!["h-v".into(), "h-w".into()])
    );
    let there = group(json!({"spec": {"volumeGroupSnapshotClassName": null, "source": {
        "volumeHandles": null,
        "groupSnapshotHandles": {"volumeGroupSnapshotHandle": "hg", "volumeSnapshotHandles": ["h-v"]},
    }}}));
    assert_eq!(step_name(&next(&there, &nothing)), "GetVolumeGroupSnapshot");
    let state = failed(Action::Create, Code::Unavailable, NOW);
    assert_eq!(
        patches::event_reason(&marked, state.failure.as_ref().unwrap()),
        "GroupSnapshotCreationFailed"
    );
    let without = Rules { capabilities: Capabilities::default(), ..rules() };
    let Step::Refuse { refusal, .. } = next_with(&marked, &nothing, &without, &[]) else {
        panic!("expected Refuse")
    };
    assert!(refusal.to_string().contains("does not support group snapshots"), "{refusal}");
}

/// sidecars.md 1.5 "Node mode": the label names the owning node of a content. Without a label, the node of the first
/// volume owns it, labels it before anything else, and refuses a group whose volumes are not all on that node.
#[test]
fn node_of_first_volume_owns_content() {
    use crate::snapshotter::ownership::ownership;

    let labelled = |node: &str| json!({"metadata": {"labels": {names::MANAGED_BY: node}}});
    let here = |handle: &str| match handle {
        "v" | "w" => Some(true),
        "far" => Some(false),
        _ => None,
    };
    let of = |volumes: &[&str]| json!({"spec": {"source": {"volumeHandles": volumes}}});
    let created = json!({"status": {"volumeGroupSnapshotHandle": "hg"}});
    for (object, expected) in [
        (content(json!({})), Ownership::Unclaimed),
        (content(json!({"spec": {"source": {"volumeHandle": "far"}}})), Ownership::OtherNode),
        (content(json!({"spec": {"source": {"volumeHandle": "strange"}}})), Ownership::Undetermined),
        (content(labelled("n")), Ownership::Ours),
        (content(labelled("m")), Ownership::OtherNode),
        (group(json!({})), Ownership::Unclaimed),
        (group(labelled("m")), Ownership::OtherNode),
        (group(labelled("n")), Ownership::Ours),
        (group(of(&["v", "far"])), Ownership::Unclaimed),
        (group(of(&["far", "v"])), Ownership::OtherNode),
        (group(of(&["strange", "v"])), Ownership::Undetermined),
        (group(both(labelled("n"), of(&["v", "far"]))), Ownership::SpansNodes("far".into())),
        (group(both(labelled("n"), of(&["v", "strange"]))), Ownership::SpansNodes("strange".into())),
        (group(both(both(labelled("n"), of(&["strange"])), created)), Ownership::Ours),
    ] {
        assert_eq!(ownership(&object, Some("n"), true, here, false), expected, "{object:?}");
        assert_eq!(ownership(&object, None, true, here, false), Ownership::Ours, "not one sidecar per node");
    }
    // After a start, volumes are unknown until they are listed.
    for (volumes, expected) in [
        (["v", "strange"], Ownership::Undetermined),
        (["v", "far"], Ownership::SpansNodes("far".into())),
        (["v", "w"], Ownership::Ours),
    ] {
        let object = group(both(labelled("n"), of(&volumes)));
        assert_eq!(ownership(&object, Some("n"), false, here, false), expected, "{object:?}");
    }
    let node = Rules { node: Some("n".into()), ..rules() };
    let parameters = BTreeMap::new();
    let next = |object: &Object, ownership: Ownership| {
        let class = Class::Found { driver: "d.test", parameters: &parameters };
        decide(
            &View {
                rules: &node,
                object,
                class,
                ownership,
                state: &ContentState::default(),
                confirmed: true,
            },
            NOW,
        )
    };
    let Step::ClaimForNode { patch: Patch::Merge(body) } = next(&group(json!({})), Ownership::Unclaimed)
    else {
        panic!("expected ClaimForNode")
    };
    assert_eq!(body["metadata"]["labels"], json!({names::MANAGED_BY: "n"}));
    let across = group(labelled("n"));
    let Step::Refuse { refusal, .. } = next(&across, Ownership::SpansNodes("far".into())) else {
        panic!("expected Refuse")
    };
    assert!(refusal.to_string().contains("must be on one node"), "{refusal}");
    assert_eq!(next(&group(json!({})), Ownership::OtherNode), Step::Idle);
    assert_eq!(step_name(&next(&group(json!({})), Ownership::Undetermined)), "wait");
    // Any node may release a group that is deleted before a node claimed it.
    let being_deleted =
        both(annotated(names::GROUP_BEING_DELETED), json!({"metadata": {"deletionTimestamp": GOING}}));
    assert_eq!(step_name(&next(&group(being_deleted.clone()), Ownership::Undetermined)), "release");
    assert_eq!(step_name(&next(&group(both(being_deleted, labelled("m"))), Ownership::OtherNode)), "idle");
}

/// U-12: a content that no snapshot controller has labelled and whose volume is unknown belongs to the node whose driver
/// knows the snapshot.
#[test]
fn node_whose_driver_knows_the_snapshot_owns_unlabelled_content() {
    use crate::snapshotter::ownership::ownership;

    let node = Rules { node: Some("n".into()), ..rules() };
    let next = |object: &Object, rules: &Rules, state: &ContentState| {
        let ownership = ownership(object, Some("n"), true, |_| None, state.found);
        decide(&View { rules, object, class: Class::None, ownership, state, confirmed: false }, NOW)
    };
    let (unasked, found) = (ContentState::default(), ContentState { found: true, ..ContentState::default() });
    let orphan =
        content(json!({"status": {"snapshotHandle": "h"}, "spec": {"volumeSnapshotClassName": null}}));
    for object in [there(), orphan] {
        let Step::LocateSnapshot { request } = next(&object, &node, &unasked) else { panic!("{object:?}") };
        let Call::List(list) = request.call else { panic!("{:?}", request.call) };
        assert_eq!(list.snapshot_id, "h");
        assert_eq!(step_name(&next(&object, &node, &found)), "claim");
        let asked_at =
            |ago: i64| ContentState { not_found: Some(Monotonic(NOW.0 - ago)), ..ContentState::default() };
        assert_eq!(next(&object, &node, &asked_at(10_000)), Step::Wait(Duration::from_secs(50)));
        assert_eq!(step_name(&next(&object, &node, &asked_at(60_000))), "locate");
        let silent = Rules { capabilities: Capabilities::default(), ..node.clone() };
        assert_eq!(next(&object, &silent, &unasked), Step::Idle, "a driver that cannot list says nothing");
    }
    // In deletion: what was never created, and what is kept, needs no driver.
    let deleted = both(annotated(names::BEING_DELETED), json!({"metadata": {"deletionTimestamp": GOING}}));
    let retained = json!({"spec": {"deletionPolicy": "Retain"}, "status": {"snapshotHandle": "h"}});
    for (with, expected) in [
        (deleted.clone(), "release"),
        (both(deleted.clone(), retained), "release"),
        (both(deleted.clone(), json!({"status": {"snapshotHandle": "h"}})), "locate"),
        (
            both(
                deleted.clone(),
                json!({"status": {"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"}}),
            ),
            "release",
        ),
        (both(deleted, annotated(names::BEING_CREATED)), "wait"),
    ] {
        let without_class = json!({"spec": {"volumeSnapshotClassName": null}});
        let object = content(both(with, without_class));
        assert_eq!(step_name(&next(&object, &node, &unasked)), expected, "{object:?}");
    }
}
