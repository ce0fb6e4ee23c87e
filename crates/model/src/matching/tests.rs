use serde_json::{Value, json};

use super::*;

/// Replaces values at JSON pointers; `null` removes.
fn with(mut value: Value, changes: &Value) -> Value {
    for (path, change) in changes.as_object().unwrap() {
        let (parent, field) = path.rsplit_once('/').unwrap();
        let parent = parent.split('/').skip(1).fold(&mut value, |value, part| &mut value[part]);
        parent[field] = change.clone();
    }
    value
}

/// A claim for 1Gi of class `c`, with these changes.
fn claim(changes: Value) -> PersistentVolumeClaim {
    let claim = json!({
        "metadata": {"name": "claim", "namespace": "ns", "uid": "uid"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "c", "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    serde_json::from_value(with(claim, &changes)).unwrap()
}

/// An available volume that matches the claim, with these changes.
fn volume(name: &str, changes: Value) -> PersistentVolume {
    let volume = json!({
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "c", "capacity": {"storage": "1Gi"}},
        "status": {"phase": "Available"},
    });
    serde_json::from_value(with(volume, &changes)).unwrap()
}

fn reference(name: &str, uid: &str) -> Value {
    json!({"namespace": "ns", "name": name, "uid": uid})
}

fn chosen(
    claim: &PersistentVolumeClaim,
    volumes: &[PersistentVolume],
    match_for: MatchFor<'_>,
) -> Option<String> {
    let found = find_matching_volume(claim, volumes, match_for).map(|volume| volume.metadata.name.clone());
    // The order of the volumes does not matter.
    let turned = find_matching_volume(claim, volumes.iter().rev(), match_for)
        .map(|volume| volume.metadata.name.clone());
    assert_eq!(found, turned);
    found
}

const BINDER: MatchFor<'_> = MatchFor::Binder { delayed: false };
const DELAYED: MatchFor<'_> = MatchFor::Binder { delayed: true };

/// kubernetes.md 1.1 "Best match": each requirement by itself, for binder and scheduler.
#[test]
fn volume_must_meet_every_requirement() {
    let fits = json!({});
    let selector = json!({"/spec/selector": {"matchLabels": {"zone": "a"}}});
    for (rule, claim_is, volume_is, expected) in [
        ("as requested", json!({}), fits.clone(), true),
        ("larger", json!({}), json!({"/spec/capacity/storage": "2Gi"}), true),
        ("smaller", json!({}), json!({"/spec/capacity/storage": "1023Mi"}), false),
        ("no size", json!({}), json!({"/spec/capacity": {}}), false),
        ("no size requested", json!({"/spec/resources": {}}), json!({"/spec/capacity": {}}), true),
        ("more modes", json!({}), json!({"/spec/accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}), true),
        ("another mode", json!({}), json!({"/spec/accessModes": ["ReadWriteMany"]}), false),
        (
            "a mode is missing",
            json!({"/spec/accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}),
            fits.clone(),
            false,
        ),
        (
            "unknown modes do not match",
            json!({"/spec/accessModes": ["New"]}),
            json!({"/spec/accessModes": ["Other"]}),
            false,
        ),
        ("Filesystem is the default", json!({"/spec/volumeMode": "Filesystem"}), fits.clone(), true),
        ("Block for none", json!({"/spec/volumeMode": "Block"}), fits.clone(), false),
        ("none for Block", json!({}), json!({"/spec/volumeMode": "Block"}), false),
        ("both Block", json!({"/spec/volumeMode": "Block"}), json!({"/spec/volumeMode": "Block"}), true),
        ("unknown volume modes", json!({"/spec/volumeMode": "A"}), json!({"/spec/volumeMode": "B"}), false),
        ("another class", json!({}), json!({"/spec/storageClassName": "d"}), false),
        ("no class", json!({}), json!({"/spec/storageClassName": null}), false),
        (
            "claim and volume without a class",
            json!({"/spec/storageClassName": null}),
            json!({"/spec/storageClassName": ""}),
            true,
        ),
        (
            "the annotation of a claim wins",
            json!({"/spec/storageClassName": "d", "/metadata/annotations": {"volume.beta.kubernetes.io/storage-class": "c"}}),
            fits.clone(),
            true,
        ),
        (
            "the annotation of a volume wins",
            json!({}),
            json!({"/metadata/annotations": {"volume.beta.kubernetes.io/storage-class": "d"}}),
            false,
        ),
        ("mutable class", json!({"/spec/volumeAttributesClassName": "gold"}), fits.clone(), false),
        (
            "the same VolumeAttributesClass",
            json!({"/spec/volumeAttributesClassName": "gold"}),
            json!({"/spec/volumeAttributesClassName": "gold"}),
            true,
        ),
        ("empty VolumeAttributesClass", json!({"/spec/volumeAttributesClassName": ""}), fits.clone(), true),
        ("selected", selector.clone(), fits.clone(), true),
        ("not selected", selector.clone(), json!({"/metadata/labels": {"zone": "b"}}), false),
        ("being deleted", json!({}), json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"}), false),
        ("not available yet", json!({}), json!({"/status/phase": "Pending"}), false),
        ("released", json!({}), json!({"/status/phase": "Released"}), false),
        ("bound to another claim", json!({}), json!({"/spec/claimRef": reference("other", "")}), false),
        (
            "bound to an earlier claim of that name",
            json!({}),
            json!({"/spec/claimRef": reference("claim", "earlier")}),
            false,
        ),
        (
            "bound to a claim of another namespace",
            json!({}),
            json!({"/spec/claimRef": {"namespace": "other", "name": "claim"}}),
            false,
        ),
        ("reserved by name", json!({}), json!({"/spec/claimRef": reference("claim", "")}), true),
        (
            "bound to it",
            json!({}),
            json!({"/spec/claimRef": reference("claim", "uid"), "/status/phase": "Bound"}),
            true,
        ),
        (
            "reserved: the selector is ignored",
            selector,
            json!({"/spec/claimRef": reference("claim", ""), "/metadata/labels": {}}),
            true,
        ),
        (
            "reserved, but too small",
            json!({}),
            json!({"/spec/claimRef": reference("claim", ""), "/spec/capacity/storage": "1Mi"}),
            false,
        ),
        (
            "reserved, but of another mode",
            json!({}),
            json!({"/spec/claimRef": reference("claim", ""), "/spec/volumeMode": "Block"}),
            false,
        ),
        (
            "reserved, but being deleted",
            json!({}),
            json!({"/spec/claimRef": reference("claim", ""), "/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"}),
            false,
        ),
    ] {
        let (claim, volumes) = (claim(claim_is), [volume("v", volume_is)]);
        assert_eq!(chosen(&claim, &volumes, BINDER).is_some(), expected, "{rule}");
        let (labels, taken) = (BTreeMap::new(), BTreeSet::new());
        let scheduler = MatchFor::Scheduler { node: "n", labels: &labels, taken: &taken };
        assert_eq!(chosen(&claim, &volumes, scheduler).is_some(), expected, "{rule}, for the scheduler");
        // A candidate is found by one of the two indexes.
        if expected {
            let by_claim =
                claim_index_key(&volumes[0]).is_some_and(|key| key == claim.metadata.key().to_string());
            assert!(
                by_claim || available_class(&volumes[0]) == Some(class_or_empty(&claim)),
                "{rule}: not indexed"
            );
        }
        // kubernetes.md 1.1 "Delayed match".
        let reserved = is_reserved_for(&volumes[0], &claim);
        assert_eq!(chosen(&claim, &volumes, DELAYED).is_some(), expected && reserved, "{rule}, delayed");
    }
}

/// kubernetes.md 1.1 "Best match": reserved volumes of another class or with other modes, where binder and scheduler
/// differ.
#[test]
fn reserved_volume_of_another_class() {
    let (labels, taken) = (BTreeMap::new(), BTreeSet::new());
    let scheduler = MatchFor::Scheduler { node: "n", labels: &labels, taken: &taken };
    for (change, binder, by_scheduler) in [
        (json!({"/spec/storageClassName": "d"}), true, false),
        (json!({"/spec/accessModes": ["ReadOnlyMany"]}), false, true),
    ] {
        let volumes = [volume("v", with(json!({"/spec/claimRef": reference("claim", "")}), &json!({})))].map(
            |mut volume| {
                let changed = self::volume("v", change.clone());
                volume.spec.storage_class_name = changed.spec.storage_class_name;
                volume.spec.access_modes = changed.spec.access_modes;
                volume
            },
        );
        assert_eq!(chosen(&claim(json!({})), &volumes, BINDER).is_some(), binder, "{change}");
        assert_eq!(chosen(&claim(json!({})), &volumes, scheduler).is_some(), by_scheduler, "{change}");
    }
}

/// kubernetes.md 1.1 "Best match": fewest modes first, the claim's own first among them, then the smallest; ties by
/// name.
#[test]
fn best_match_is_chosen() {
    let sized = |name: &str, size: &str| volume(name, json!({"/spec/capacity/storage": size}));
    let two = |name: &str, size: &str| {
        volume(
            name,
            json!({"/spec/capacity/storage": size, "/spec/accessModes": ["ReadWriteOnce", "ReadWriteMany"]}),
        )
    };
    let own = |name: &str, size: &str| {
        volume(name, json!({"/spec/capacity/storage": size, "/spec/claimRef": reference("claim", "")}))
    };
    for (rule, volumes, expected) in [
        ("smallest", vec![sized("a", "5Gi"), sized("b", "2Gi"), sized("c", "3Gi")], Some("b")),
        ("smallest that matches", vec![sized("a", "5Gi"), sized("b", "512Mi")], Some("a")),
        ("tie", vec![sized("b", "2Gi"), sized("a", "2Gi")], Some("a")),
        ("fewest modes, though larger", vec![two("a", "1Gi"), sized("b", "9Gi")], Some("b")),
        ("more modes if no other matches", vec![two("a", "3Gi"), two("b", "2Gi")], Some("b")),
        ("its own, though larger", vec![sized("a", "1Gi"), own("b", "9Gi")], Some("b")),
        ("its own, but too small", vec![sized("a", "1Gi"), own("b", "1Mi")], Some("a")),
        ("none", vec![sized("a", "1Mi")], None),
    ] {
        assert_eq!(chosen(&claim(json!({})), &volumes, BINDER).as_deref(), expected, "{rule}");
    }
}

/// kubernetes.md 1.1 "Match for a node", 1.5 "Static volumes": node affinity, and volumes chosen for the pod's other
/// claims.
#[test]
fn scheduler_matches_accessible_volumes_only() {
    let on = |name: &str, zone: &str, size: &str, changes: Value| {
        let mut base = json!({
            "/spec/capacity/storage": size,
            "/spec/nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
            ]}},
        });
        base.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        volume(name, base)
    };
    let own = || json!({"/spec/claimRef": reference("claim", "")});
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    for (rule, volumes, taken, expected) in [
        (
            "the smallest accessible one",
            vec![on("v1", "b", "1Gi", json!({})), on("v2", "a", "2Gi", json!({}))],
            "",
            Some("v2"),
        ),
        (
            "not one chosen for another claim",
            vec![on("v1", "a", "1Gi", json!({})), on("v2", "a", "2Gi", json!({}))],
            "v1",
            Some("v2"),
        ),
        ("not accessible", vec![on("v1", "b", "1Gi", json!({}))], "", None),
        (
            "its own is not accessible: no other matches",
            vec![on("v1", "b", "1Gi", own()), on("v2", "a", "1Gi", json!({}))],
            "",
            None,
        ),
        ("its own", vec![on("v1", "a", "9Gi", own()), on("v2", "a", "1Gi", json!({}))], "", Some("v1")),
        (
            "modes do not matter for the order",
            vec![
                on("v1", "a", "2Gi", json!({})),
                on("v2", "a", "1Gi", json!({"/spec/accessModes": ["ReadWriteOnce", "ReadOnlyMany"]})),
            ],
            "",
            Some("v2"),
        ),
    ] {
        let taken = BTreeSet::from([taken.to_owned()]);
        let match_for = MatchFor::Scheduler { node: "n", labels: &labels, taken: &taken };
        assert_eq!(chosen(&claim(json!({})), &volumes, match_for).as_deref(), expected, "{rule}");
    }
}

/// kubernetes.md 1.1 "Claim names a volume": checks of a volume that a claim names, in this order, and upstream's wording.
#[test]
fn volume_requested_by_name_is_checked() {
    let deleting =
        json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z", "/spec/capacity/storage": "1Mi"});
    for (claim_is, volume_is, expected) in [
        (json!({}), json!({}), ""),
        (json!({"/spec/selector": {"matchLabels": {"zone": "b"}}}), json!({}), ""),
        (json!({}), json!({"/status/phase": "Pending"}), ""),
        (json!({}), deleting, "the volume is marked for deletion \"v\""),
        (
            json!({}),
            json!({"/spec/capacity/storage": "1Mi", "/spec/storageClassName": "d"}),
            "requested PV is too small",
        ),
        (
            json!({"/spec/volumeAttributesClassName": "gold"}),
            json!({"/spec/storageClassName": "d"}),
            "storageClassName does not match",
        ),
        (
            json!({"/spec/volumeAttributesClassName": "gold"}),
            json!({"/spec/volumeMode": "Block"}),
            "volumeAttributesClassName does not match",
        ),
        (
            json!({"/spec/accessModes": ["ReadWriteMany"]}),
            json!({"/spec/volumeMode": "Block"}),
            "incompatible volumeMode",
        ),
        (json!({"/spec/accessModes": ["ReadWriteMany"]}), json!({}), "incompatible accessMode"),
    ] {
        let row = format!("{claim_is} {volume_is}");
        let mismatch = check_requested_volume(&volume("v", volume_is), &claim(claim_is))
            .err()
            .map(|mismatch| mismatch.to_string());
        assert_eq!(mismatch.unwrap_or_default(), expected, "{row}");
    }
}

/// kubernetes.md 1.5 "Static volumes": small claims first.
#[test]
fn claims_are_ordered_by_size() {
    let sized = |name: &str, size: &str| {
        claim(json!({"/metadata/name": name, "/spec/resources/requests/storage": size}))
    };
    let mut claims = [sized("c", "2Gi"), sized("b", "10Gi"), sized("a", "2Gi")];
    claims.sort_by(compare_by_size);
    assert_eq!(claims.map(|claim| claim.metadata.name), ["a", "c", "b"]);
}
