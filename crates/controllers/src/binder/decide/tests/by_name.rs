//! Upstream's test set 2, and the cases of set 14 in which the claim has a `spec.volumeName`.

use serde_json::{Value, json};

use super::world::*;

/// kubernetes.md 1.1 "Claim names a volume", "Volume of another claim"; upstream's set 2 and 14-5-2 to 14-11.
#[test]
fn set_2_claim_with_volume_name_binds_only_to_that_volume() {
    let named_claim = |changes: Value| {
        let mut all = json!({"spec.volumeName": "v"});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        claim("c", all)
    };
    let with_status =
        json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
    let mismatch = |reason: &str| {
        format!("claim: Warning VolumeMismatch: Cannot bind to requested volume \"v\": {reason}")
    };
    let already_bound =
        || "claim: Warning FailedBinding: volume \"v\" already bound to a different claim.".to_owned();
    let (free, pending): (&[&str], &str) = (&["v Available -", "c Pending v -"], "c Pending v -");
    let bound: &[&str] = &["v Bound c:uid +ctl", "c Bound v 1Gi +done"];
    for (id, volumes, claim, state, events) in [
        ("2-1 no such volume", vec![], named_claim(json!({})), &[pending][..], vec![]),
        (
            "2-2 no such volume, status set",
            vec![],
            named_claim(json!({"status": with_status})),
            &[pending],
            vec![],
        ),
        ("2-3 free", vec![volume("v", json!({}))], named_claim(json!({})), bound, vec![]),
        (
            "2-3 free, but not available yet",
            vec![volume("v", json!({"status.phase": "Pending"}))],
            named_claim(json!({})),
            bound,
            vec![],
        ),
        (
            "2-4 reserved by name",
            vec![volume("v", json!({"spec.claimRef": reference("c", "")}))],
            named_claim(json!({})),
            &["v Bound c:uid", "c Bound v 1Gi +done"],
            vec![],
        ),
        (
            "2-5 reserved by UID",
            vec![volume("v", json!({"spec.claimRef": reference("c", "uid")}))],
            named_claim(json!({})),
            &["v Bound c:uid", "c Bound v 1Gi +done"],
            vec![],
        ),
        (
            "2-6 reserved for another claim",
            vec![volume("v", json!({"spec.claimRef": reference("other", "")}))],
            named_claim(json!({})),
            &["v Available other:", pending],
            vec![already_bound()],
        ),
        (
            "2-7 reserved for another claim, claim bound by a controller: the phase is unchanged",
            vec![volume("v", json!({"spec.claimRef": reference("other", "")}))],
            named_claim(json!({"annotations": ["ctl"], "status": with_status})),
            &["v Available other:", "c Bound v 1Gi +ctl"],
            vec![already_bound()],
        ),
        (
            "bound to an earlier claim of the same name",
            vec![volume(
                "v",
                json!({"spec.claimRef": reference("c", "earlier"), "status.phase": "Released"}),
            )],
            named_claim(json!({})),
            &["v Released c:earlier", pending],
            vec![already_bound()],
        ),
        (
            "2-8 the selector is ignored",
            vec![volume("v", json!({}))],
            named_claim(json!({"spec.selector": {"matchLabels": {"zone": "a"}}})),
            bound,
            vec![],
        ),
        (
            "2-9 too small",
            vec![volume("v", json!({"spec.capacity.storage": "1Mi"}))],
            named_claim(json!({})),
            free,
            vec![mismatch("requested PV is too small")],
        ),
        (
            "2-10 another class",
            vec![volume("v", json!({"spec.storageClassName": "gold"}))],
            named_claim(json!({})),
            free,
            vec![mismatch("storageClassName does not match")],
        ),
        (
            "2-11 another VolumeAttributesClass",
            vec![volume("v", json!({"spec.volumeAttributesClassName": "gold"}))],
            named_claim(json!({})),
            free,
            vec![mismatch("volumeAttributesClassName does not match")],
        ),
        (
            "2-12 the same VolumeAttributesClass",
            vec![volume("v", json!({"spec.volumeAttributesClassName": "gold"}))],
            named_claim(json!({"spec.volumeAttributesClassName": "gold"})),
            bound,
            vec![],
        ),
        (
            "14-8 another volumeMode",
            vec![volume("v", json!({"spec.volumeMode": "Block"}))],
            named_claim(json!({})),
            free,
            vec![mismatch("incompatible volumeMode")],
        ),
        (
            "14-9 the same volumeMode",
            vec![volume("v", json!({"spec.volumeMode": "Block"}))],
            named_claim(json!({"spec.volumeMode": "Block"})),
            bound,
            vec![],
        ),
        (
            "unsupported access mode",
            vec![volume("v", json!({}))],
            named_claim(json!({"spec.accessModes": ["ReadWriteMany"]})),
            free,
            vec![mismatch("incompatible accessMode")],
        ),
        (
            "volume is being deleted",
            vec![volume("v", json!({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}))],
            named_claim(json!({})),
            free,
            vec![mismatch("the volume is marked for deletion \"v\"")],
        ),
    ] {
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        check(id, &World { volumes, claims: vec![claim], ..World::default() }, state, &events);
    }
}

/// kubernetes.md 1.1 "Bound claim": the fields of the claim's status that the binder copies from the volume.
#[test]
fn bound_claim_status_reports_its_volume() {
    let world = World {
        volumes: vec![volume(
            "v",
            json!({
                "spec.accessModes": ["ReadWriteOnce", "ReadWriteMany"], "spec.capacity.storage": "5Gi",
                "spec.volumeAttributesClassName": "gold",
            }),
        )],
        claims: vec![claim("c", json!({"spec.volumeName": "v", "spec.volumeAttributesClassName": "gold"}))],
        ..World::default()
    };
    let mut bound = world.clone();
    bound.run(usize::MAX);
    assert_eq!(
        bound.claims[0]["status"],
        json!({
            "phase": "Bound", "accessModes": ["ReadWriteOnce", "ReadWriteMany"], "capacity": {"storage": "5Gi"},
            "currentVolumeAttributesClassName": "gold",
        })
    );
    assert_eq!(
        bound.volumes[0]["spec"]["claimRef"],
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "c", "uid": "uid",
            "resourceVersion": "1",
        })
    );
    // While the node has not finished an expansion, the size before it is reported (upstream's 5-2-3). An invalid size
    // is ignored.
    for (annotation, size) in [("1Gi", "1Gi"), ("much", "5Gi")] {
        let mut world = world.clone();
        world.volumes[0]["metadata"]["annotations"]["volume.alpha.kubernetes.io/pre-resize-capacity"] =
            json!(annotation);
        world.run(usize::MAX);
        assert_eq!(world.claims[0]["status"]["capacity"]["storage"], json!(size));
    }
    // Once the claim is bound, capacity and current class belong to the resizer; access modes follow the volume.
    bound.volumes[0]["spec"]["capacity"]["storage"] = json!("9Gi");
    bound.volumes[0]["spec"]["volumeAttributesClassName"] = json!("silver");
    bound.volumes[0]["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
    bound.run(usize::MAX);
    assert_eq!(
        bound.claims[0]["status"],
        json!({
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"},
            "currentVolumeAttributesClassName": "gold",
        })
    );
    // The binder does not set the current class of a claim that was Lost: the resizer may have written it.
    let mut lost = world.clone();
    lost.claims[0]["status"] = json!({"phase": "Lost"});
    lost.run(usize::MAX);
    let status = &lost.claims[0]["status"];
    assert_eq!((&status["phase"], status.get("currentVolumeAttributesClassName")), (&json!("Bound"), None));
    // If an access mode is unknown, no access modes are reported.
    let mut unknown_mode = world.clone();
    unknown_mode.volumes[0]["spec"]["accessModes"] = json!(["ReadWriteOnce", "New"]);
    unknown_mode.run(usize::MAX);
    assert_eq!(
        (&unknown_mode.claims[0]["status"]["phase"], unknown_mode.claims[0]["status"].get("accessModes")),
        (&json!("Bound"), None)
    );
    // For a volume without a capacity, the claim's status is not updated.
    let mut world = world;
    world.volumes[0]["spec"]["capacity"] = json!({});
    world.claims[0]["spec"]["resources"] = json!({});
    world.run(usize::MAX);
    assert_eq!(
        world.events(),
        ["problem: PersistentVolume \"v\" has no storage capacity: set spec.capacity.storage"]
    );
    assert_ne!(world.claims[0]["status"]["phase"], json!("Bound"), "status unchanged");
}
