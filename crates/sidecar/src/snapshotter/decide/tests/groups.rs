//! Groups, and contents of a node.

use super::*;

/// The same rules for groups, with their own words.
#[test]
fn groups() {
    let nothing = Memory::default();
    let step = next(&group(json!({})), &nothing);
    let Step::Mark { ask: Ask { call: Call::CreateGroup(request), .. }, .. } = step else {
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
    let answer = Answer {
        handle: "hg".into(),
        ready: true,
        created: 1_500_000_000,
        members: members.into(),
        ..Answer::default()
    };
    let marked = group(annotated(names::GROUP_BEING_CREATED));
    let Step::Tell { patch: Patch::Merge(body) } = next(&marked, &answered(answer, NOW)) else {
        panic!("silent")
    };
    let status = json!({
        "volumeGroupSnapshotHandle": "hg", "readyToUse": true, "creationTime": "1970-01-01T00:00:01Z",
        "volumeSnapshotInfoList": [
            {"volumeHandle": "v", "snapshotHandle": "h-v", "creationTime": 5, "readyToUse": true, "restoreSize": 9},
            {"volumeHandle": "w", "snapshotHandle": "h-w", "creationTime": 5, "readyToUse": true, "restoreSize": 9},
        ],
    });
    assert_eq!(body["status"], status);
    let going =
        both(annotated(names::GROUP_BEING_DELETED), json!({"metadata": {"deletionTimestamp": GOING}}));
    let going = group(both(going, json!({"status": status})));
    let Step::Delete { ask: Ask { call: Deletion::Group(request), .. } } = next(&going, &nothing) else {
        panic!("kept")
    };
    assert_eq!(
        (request.group_snapshot_id.as_str(), request.snapshot_ids),
        ("hg", vec!["h-v".into(), "h-w".into()])
    );
    let there = group(json!({"spec": {"volumeGroupSnapshotClassName": null, "source": {
        "volumeHandles": null,
        "groupSnapshotHandles": {"volumeGroupSnapshotHandle": "hg", "volumeSnapshotHandles": ["h-v"]},
    }}}));
    assert_eq!(word(&next(&there, &nothing)), "GetVolumeGroupSnapshot");
    let memory = failed(Doing::Create, Code::Unavailable, NOW);
    assert_eq!(status::reason(&marked, memory.failure.as_ref().unwrap()), "GroupSnapshotCreationFailed");
    let without = Rules { can: Capabilities::default(), ..rules() };
    let Step::Refuse { why, .. } = next_with(&marked, &nothing, &without, &[]) else { panic!("asked") };
    assert!(why.to_string().contains("has no group snapshots"), "{why}");
}

/// sidecars.md 1.5 "Node mode": a snapshot's label says whose it is; a group is its first volume's node's, which says
/// so before it does anything, and refuses what is not all there.
#[test]
fn on_nodes() {
    use crate::snapshotter::groups::place;

    let labelled = |node: &str| json!({"metadata": {"labels": {names::MANAGED_BY: node}}});
    let here = |handle: &str| match handle {
        "v" | "w" => Some(true),
        "far" => Some(false),
        _ => None,
    };
    let of = |volumes: &[&str]| json!({"spec": {"source": {"volumeHandles": volumes}}});
    let made = json!({"status": {"volumeGroupSnapshotHandle": "hg"}});
    for (object, expected) in [
        (content(json!({})), Place::Elsewhere),
        (content(labelled("n")), Place::Ours),
        (content(labelled("m")), Place::Elsewhere),
        (group(json!({})), Place::Unclaimed),
        (group(labelled("m")), Place::Elsewhere),
        (group(labelled("n")), Place::Ours),
        (group(of(&["v", "far"])), Place::Unclaimed),
        (group(of(&["far", "v"])), Place::Elsewhere),
        (group(of(&["strange", "v"])), Place::Unknown),
        (group(both(labelled("n"), of(&["v", "far"]))), Place::Across("far".into())),
        (group(both(labelled("n"), of(&["v", "strange"]))), Place::Across("strange".into())),
        (group(both(both(labelled("n"), of(&["strange"])), made)), Place::Ours),
    ] {
        assert_eq!(place(&object, Some("n"), true, here), expected, "{object:?}");
        assert_eq!(place(&object, None, true, here), Place::Ours, "no node of its own");
    }
    // After a start volumes are not known before they are listed.
    for (volumes, expected) in [
        (["v", "strange"], Place::Unknown),
        (["v", "far"], Place::Across("far".into())),
        (["v", "w"], Place::Ours),
    ] {
        let object = group(both(labelled("n"), of(&volumes)));
        assert_eq!(place(&object, Some("n"), false, here), expected, "{object:?}");
    }
    let node = Rules { node: Some("n".into()), ..rules() };
    let parameters = BTreeMap::new();
    let next = |object: &Object, place: Place| {
        let class = Class::Found { driver: "d.test", parameters: &parameters };
        decide(&View { rules: &node, object, class, place, memory: &Memory::default(), confirmed: true }, NOW)
    };
    let Step::Claim { patch: Patch::Merge(body) } = next(&group(json!({})), Place::Unclaimed) else {
        panic!("not claimed")
    };
    assert_eq!(body["metadata"]["labels"], json!({names::MANAGED_BY: "n"}));
    let across = group(labelled("n"));
    let Step::Refuse { why, .. } = next(&across, Place::Across("far".into())) else { panic!("taken") };
    assert!(why.to_string().contains("have to be on one node"), "{why}");
    assert_eq!(next(&group(json!({})), Place::Elsewhere), Step::Done);
    assert_eq!(word(&next(&group(json!({})), Place::Unknown)), "wait");
    // A group that goes before anybody has claimed it hangs on nobody.
    let going =
        both(annotated(names::GROUP_BEING_DELETED), json!({"metadata": {"deletionTimestamp": GOING}}));
    assert_eq!(word(&next(&group(going.clone()), Place::Unknown)), "release");
    assert_eq!(word(&next(&group(both(going, labelled("m"))), Place::Elsewhere)), "done");
}
