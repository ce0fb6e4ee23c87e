//! Upstream's test sets 1, 13 and 14: claims without a `spec.volumeName`, which take any matching volume.

use serde_json::{Value, json};

use super::world::*;

fn world(volumes: Vec<Value>, claims: Vec<Value>) -> World {
    World { volumes, claims, ..World::default() }
}

const NO_VOLUME_AVAILABLE: &str =
    "claim: Normal FailedBinding: no persistent volumes available for this claim and no storage class is set";

/// kubernetes.md 1.1 "Claim names no volume", "Bind", "Best match", "No class"; upstream's set 1.
#[test]
fn set_1_claim_takes_any_matching_volume() {
    let labels = json!({"zone": "a"});
    let selector = |zone: &str| json!({"spec.selector": {"matchLabels": {"zone": zone}}});
    for (id, volumes, claims, state, events) in [
        (
            "1-1 bind",
            vec![volume("v", json!({}))],
            vec![claim("c", json!({}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"][..],
            &[][..],
        ),
        (
            "1-2 nothing to bind to",
            vec![],
            vec![claim("c", json!({}))],
            &["c Pending - -"],
            &[NO_VOLUME_AVAILABLE],
        ),
        (
            "1-3 Bound without a volume becomes Pending",
            vec![],
            vec![claim(
                "c",
                json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}}),
            )],
            &["c Pending - -"],
            &[NO_VOLUME_AVAILABLE],
        ),
        (
            "1-4 the smallest volume is chosen",
            vec![
                volume("v1", json!({"spec.capacity.storage": "10Gi"})),
                volume("v2", json!({"spec.capacity.storage": "1Gi"})),
            ],
            vec![claim("c", json!({}))],
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 1Gi +done +ctl"],
            &[],
        ),
        (
            "1-5 reserved by name",
            vec![
                volume("v1", json!({"spec.claimRef": reference("c", ""), "spec.capacity.storage": "10Gi"})),
                volume("v2", json!({})),
            ],
            vec![claim("c", json!({}))],
            &["v1 Bound c:uid", "v2 Available -", "c Bound v1 10Gi +done +ctl"],
            &[],
        ),
        (
            "1-6 reserved by UID",
            vec![
                volume(
                    "v1",
                    json!({"spec.claimRef": reference("c", "uid"), "spec.capacity.storage": "10Gi"}),
                ),
                volume("v2", json!({})),
            ],
            vec![claim("c", json!({}))],
            &["v1 Bound c:uid", "v2 Available -", "c Bound v1 10Gi +done +ctl"],
            &[],
        ),
        (
            "1-7 reserved for another claim",
            vec![volume("v", json!({"spec.claimRef": reference("other", "")}))],
            vec![claim("c", json!({}))],
            &["v Available other:", "c Pending - -"],
            &[NO_VOLUME_AVAILABLE],
        ),
        (
            "1-8 crash after the volume's claimRef was written",
            vec![volume("v", json!({"spec.claimRef": reference("c", "uid"), "annotations": ["ctl"]}))],
            vec![claim("c", json!({}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "1-9 crash after the volume was bound",
            vec![volume(
                "v",
                json!({"spec.claimRef": reference("c", "uid"), "annotations": ["ctl"], "status.phase": "Bound"}),
            )],
            vec![claim("c", json!({}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "1-10 crash after the claim's volumeName was written",
            vec![volume(
                "v",
                json!({"spec.claimRef": reference("c", "uid"), "annotations": ["ctl"], "status.phase": "Bound"}),
            )],
            vec![claim("c", json!({"spec.volumeName": "v", "annotations": ["done", "ctl"]}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "1-11 selector matches",
            vec![volume("v1", json!({})), volume("v2", json!({"metadata.labels": labels}))],
            vec![claim("c", selector("a"))],
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 1Gi +done +ctl"],
            &[],
        ),
        (
            "1-12 selector does not match",
            vec![volume("v", json!({"metadata.labels": labels}))],
            vec![claim("c", selector("b"))],
            &["v Available -", "c Pending - -"],
            &[NO_VOLUME_AVAILABLE],
        ),
        (
            "1-17 Released volume is not chosen",
            vec![
                volume("v1", json!({"status.phase": "Released", "spec.claimRef": reference("gone", "x")})),
                volume("v2", json!({"spec.capacity.storage": "10Gi"})),
            ],
            vec![claim("c", json!({}))],
            &["v1 Released gone:x", "v2 Bound c:uid +ctl", "c Bound v2 10Gi +done +ctl"],
            &[],
        ),
        (
            "new volume becomes Available, then Bound",
            vec![volume("v", json!({"status.phase": "Pending"}))],
            vec![claim("c", json!({}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "two claims, two volumes",
            vec![volume("v1", json!({})), volume("v2", json!({}))],
            vec![claim("c1", json!({"metadata.uid": "1"})), claim("c2", json!({"metadata.uid": "2"}))],
            &[
                "v1 Bound c1:1 +ctl",
                "v2 Bound c2:2 +ctl",
                "c1 Bound v1 1Gi +done +ctl",
                "c2 Bound v2 1Gi +done +ctl",
            ],
            &[],
        ),
        (
            "two claims, one volume",
            vec![volume("v", json!({}))],
            vec![claim("c1", json!({"metadata.uid": "1"})), claim("c2", json!({"metadata.uid": "2"}))],
            &["v Bound c1:1 +ctl", "c1 Bound v 1Gi +done +ctl", "c2 Pending - -"],
            &[NO_VOLUME_AVAILABLE],
        ),
        (
            "a claim that is being deleted is bound too",
            vec![volume("v", json!({}))],
            vec![claim("c", json!({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
    ] {
        check(id, &world(volumes, claims), state, events);
    }
}

/// kubernetes.md 1.1 "Pending": the status of a pending claim has no fields of a volume.
#[test]
fn pending_claim_status_is_cleared() {
    for status_fields in [
        json!({"accessModes": ["ReadWriteOnce"]}),
        json!({"capacity": {"storage": "1Gi"}}),
        json!({"currentVolumeAttributesClassName": "gold"}),
    ] {
        let mut status = status_fields.clone();
        status["phase"] = json!("Pending");
        let mut world = world(vec![], vec![claim("c", json!({"status": status}))]);
        world.run(usize::MAX);
        assert_eq!(world.claims[0]["status"], json!({"phase": "Pending"}), "{status_fields}");
    }
}

/// kubernetes.md 1.1 "Delayed binding", "First consumer", "Delayed match"; upstream's 1-13 to 1-16.
#[test]
fn set_1_delayed_binding_waits_for_consumer() {
    let class = || vec![storage_class("wait", json!({"volumeBindingMode": "WaitForFirstConsumer"}))];
    let with_class = |changes: Value| {
        let mut all = json!({"spec.storageClassName": "wait"});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    let pod = |name: &str, node: &str, phase: &str| {
        json!({
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": phase},
        })
    };
    let first = "claim: Normal WaitForFirstConsumer: waiting for first consumer to be created before binding";
    let one = "claim: Normal WaitForPodScheduled: waiting for pod p1 to be scheduled";
    let two = "claim: Normal WaitForPodScheduled: waiting for pods p1,p2 to be scheduled";
    let (waits, free) = ("c Pending - - wait", || volume("v", with_class(json!({}))));
    for (id, volumes, pods, state, events) in [
        (
            "1-13 waits although a volume matches",
            vec![free()],
            vec![],
            &["v Available -", waits][..],
            &[first][..],
        ),
        ("waits for a pod", vec![], vec![pod("p1", "", "Pending")], &[waits], &[one]),
        (
            "waits for pods",
            vec![],
            vec![pod("p1", "", "Pending"), pod("p2", "", "Pending")],
            &[waits],
            &[two],
        ),
        (
            "does not wait for a pod that has a node",
            vec![],
            vec![pod("p1", "n", "Pending")],
            &[waits],
            &[first],
        ),
        ("does not wait for a terminated pod", vec![], vec![pod("p1", "", "Failed")], &[waits], &[first]),
        (
            "1-14 the scheduler chose a volume",
            vec![volume(
                "v",
                with_class(json!({"spec.claimRef": reference("c", "uid"), "annotations": ["ctl"]})),
            )],
            vec![],
            &["v Bound c:uid +ctl", "c Bound v 1Gi wait +done +ctl"],
            &[],
        ),
        (
            "1-16 a user reserved a volume",
            vec![volume("v", with_class(json!({"spec.claimRef": reference("c", "")})))],
            vec![],
            &["v Bound c:uid", "c Bound v 1Gi wait +done +ctl"],
            &[],
        ),
    ] {
        let claims = vec![claim("c", with_class(json!({})))];
        check(id, &World { volumes, claims, pods, classes: class(), ..World::default() }, state, events);
    }
    // 1-15: a claim with a volumeName does not wait.
    let world = World {
        volumes: vec![free()],
        claims: vec![claim("c", with_class(json!({"spec.volumeName": "v"})))],
        classes: class(),
        ..World::default()
    };
    check("1-15", &world, &["v Bound c:uid +ctl", "c Bound v 1Gi wait +done"], &[]);
    // kubernetes.md 1.1 "Delayed binding": a class without volumeBindingMode.
    let world = World {
        claims: vec![claim("c", with_class(json!({})))],
        classes: vec![storage_class("wait", json!({"volumeBindingMode": null}))],
        ..World::default()
    };
    let problem = "problem: VolumeBindingMode not set for StorageClass \"wait\": recreate the class with one";
    check("no volumeBindingMode", &world, &[waits], &[problem]);
}

/// kubernetes.md 1.1 "Best match", "Class lookup"; upstream's set 13.
#[test]
fn set_13_class_must_match() {
    let gold = || json!({"spec.storageClassName": "gold"});
    for (id, volumes, claim_fields, state, events) in [
        (
            "13-1 volume of the class",
            vec![volume("v1", json!({})), volume("v2", gold())],
            gold(),
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 1Gi gold +done +ctl"][..],
            &[][..],
        ),
        (
            "13-2 claim and volume without a class",
            vec![volume("v1", gold()), volume("v2", json!({}))],
            json!({}),
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 1Gi +done +ctl"],
            &[],
        ),
        (
            "13-3 volume of the class, although larger",
            vec![
                volume("v1", json!({"spec.storageClassName": "silver"})),
                volume("v2", json!({"spec.storageClassName": "gold", "spec.capacity.storage": "9Gi"})),
            ],
            gold(),
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 9Gi gold +done +ctl"],
            &[],
        ),
        (
            "13-4 empty class name",
            vec![volume("v", json!({}))],
            json!({"spec.storageClassName": ""}),
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "13-5 claim without a class, volume with one",
            vec![volume("v", gold())],
            json!({}),
            &["v Available -", "c Pending - -"],
            &[NO_VOLUME_AVAILABLE],
        ),
        (
            "the beta annotation takes precedence",
            vec![volume("v", gold())],
            json!({"spec.storageClassName": "x", "annotations": ["volume.beta.kubernetes.io/storage-class=gold"]}),
            &["v Bound c:uid +ctl", "c Bound v 1Gi x +done +ctl"],
            &[],
        ),
    ] {
        check(id, &world(volumes, vec![claim("c", claim_fields)]), state, events);
    }
}

/// kubernetes.md 1.1 "Best match", "Claim unbound"; upstream's set 14, where the claim takes any volume.
#[test]
fn set_14_volume_mode_must_match() {
    let (block, file) = (json!({"spec.volumeMode": "Block"}), json!({"spec.volumeMode": "Filesystem"}));
    let reserved =
        |mode: &str, uid: &str| json!({"spec.volumeMode": mode, "spec.claimRef": reference("c", uid)});
    let bound: &[&str] = &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"];
    let bound_as_reserved: &[&str] = &["v Bound c:uid", "c Bound v 1Gi +done +ctl"];
    let unbound: &[&str] = &["v Available -", "c Pending - -"];
    let volume_event = "v: Warning VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode.";
    let claim_event = "claim: Warning VolumeMismatch: Cannot bind PersistentVolume \"v\" to requested PersistentVolumeClaim due to incompatible volumeMode.";
    for (id, volume_fields, claim_fields, state, events) in [
        ("14-1", block.clone(), block.clone(), bound, &[][..]),
        ("14-2", file.clone(), file.clone(), bound, &[]),
        ("14-2, default volumeMode", json!({}), file.clone(), bound, &[]),
        ("14-3", file.clone(), block.clone(), unbound, &[NO_VOLUME_AVAILABLE]),
        ("14-4", block.clone(), file.clone(), unbound, &[NO_VOLUME_AVAILABLE]),
        ("14-7", reserved("Block", "uid"), block.clone(), bound_as_reserved, &[]),
        ("14-10", reserved("Block", ""), block.clone(), bound_as_reserved, &[]),
        ("14-12", reserved("Filesystem", ""), file.clone(), bound_as_reserved, &[]),
        (
            "14-13",
            reserved("Filesystem", "uid"),
            block.clone(),
            &["v Available c:uid", "c Pending - -"],
            &[NO_VOLUME_AVAILABLE, volume_event, claim_event],
        ),
        (
            "14-13-1",
            reserved("Block", "uid"),
            file,
            &["v Available c:uid", "c Pending - -"],
            &[NO_VOLUME_AVAILABLE, volume_event, claim_event],
        ),
        (
            "14-13, by name",
            reserved("Filesystem", ""),
            block,
            &["v Available c:", "c Pending - -"],
            &[NO_VOLUME_AVAILABLE],
        ),
    ] {
        check(id, &world(vec![volume("v", volume_fields)], vec![claim("c", claim_fields)]), state, events);
    }
}
