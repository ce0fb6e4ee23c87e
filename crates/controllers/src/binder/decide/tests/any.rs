//! Sets 1, 13 and 14: claims that take any volume that matches.

use serde_json::{Value, json};

use super::world::*;

fn world(volumes: Vec<Value>, claims: Vec<Value>) -> World {
    World { volumes, claims, ..World::default() }
}

const NONE: &str =
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
        ("1-2 nothing to bind to", vec![], vec![claim("c", json!({}))], &["c Pending - -"], &[NONE]),
        (
            "1-3 back to Pending",
            vec![],
            vec![claim(
                "c",
                json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}}),
            )],
            &["c Pending - -"],
            &[NONE],
        ),
        (
            "1-4 the smallest",
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
            "1-6 reserved by identity",
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
            &[NONE],
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
            &[NONE],
        ),
        (
            "1-17 not available",
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
            &[NONE],
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

/// kubernetes.md 1.1 "Pending": the status of a claim without a volume reports nothing of one.
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
    let of_class = |changes: Value| {
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
    let (waits, free) = ("c Pending - - wait", || volume("v", of_class(json!({}))));
    for (id, volumes, pods, state, events) in [
        (
            "1-13 waits, though a volume matches",
            vec![free()],
            vec![],
            &["v Available -", waits][..],
            &[first][..],
        ),
        ("for a pod", vec![], vec![pod("p1", "", "Pending")], &[waits], &[one]),
        ("for pods", vec![], vec![pod("p1", "", "Pending"), pod("p2", "", "Pending")], &[waits], &[two]),
        ("for a pod that has a node", vec![], vec![pod("p1", "n", "Pending")], &[waits], &[first]),
        ("for a terminated pod", vec![], vec![pod("p1", "", "Failed")], &[waits], &[first]),
        (
            "1-14 the scheduler chose a volume",
            vec![volume(
                "v",
                of_class(json!({"spec.claimRef": reference("c", "uid"), "annotations": ["ctl"]})),
            )],
            vec![],
            &["v Bound c:uid +ctl", "c Bound v 1Gi wait +done +ctl"],
            &[],
        ),
        (
            "1-16 a user reserved a volume",
            vec![volume("v", of_class(json!({"spec.claimRef": reference("c", "")})))],
            vec![],
            &["v Bound c:uid", "c Bound v 1Gi wait +done +ctl"],
            &[],
        ),
    ] {
        let claims = vec![claim("c", of_class(json!({})))];
        check(id, &World { volumes, claims, pods, classes: class(), ..World::default() }, state, events);
    }
    // 1-15: a claim with a volumeName does not wait.
    let world = World {
        volumes: vec![free()],
        claims: vec![claim("c", of_class(json!({"spec.volumeName": "v"})))],
        classes: class(),
        ..World::default()
    };
    check("1-15", &world, &["v Bound c:uid +ctl", "c Bound v 1Gi wait +done"], &[]);
    // kubernetes.md 1.1 "Delayed binding": a class without volumeBindingMode.
    let world = World {
        claims: vec![claim("c", of_class(json!({})))],
        classes: vec![storage_class("wait", json!({"volumeBindingMode": null}))],
        ..World::default()
    };
    let problem = "problem: VolumeBindingMode not set for StorageClass \"wait\": recreate the class with one";
    check("no mode", &world, &[waits], &[problem]);
}

/// kubernetes.md 1.1 "Best match", "Class lookup"; upstream's set 13.
#[test]
fn set_13_class_must_match() {
    let gold = || json!({"spec.storageClassName": "gold"});
    for (id, volumes, claim_is, state, events) in [
        (
            "13-1 of the class",
            vec![volume("v1", json!({})), volume("v2", gold())],
            gold(),
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 1Gi gold +done +ctl"][..],
            &[][..],
        ),
        (
            "13-2 without a class",
            vec![volume("v1", gold()), volume("v2", json!({}))],
            json!({}),
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 1Gi +done +ctl"],
            &[],
        ),
        (
            "13-3 of the class, though larger",
            vec![
                volume("v1", json!({"spec.storageClassName": "silver"})),
                volume("v2", json!({"spec.storageClassName": "gold", "spec.capacity.storage": "9Gi"})),
            ],
            gold(),
            &["v1 Available -", "v2 Bound c:uid +ctl", "c Bound v2 9Gi gold +done +ctl"],
            &[],
        ),
        (
            "13-4 the empty class",
            vec![volume("v", json!({}))],
            json!({"spec.storageClassName": ""}),
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "13-5 no class, volumes of one",
            vec![volume("v", gold())],
            json!({}),
            &["v Available -", "c Pending - -"],
            &[NONE],
        ),
        (
            "the beta annotation takes precedence",
            vec![volume("v", gold())],
            json!({"spec.storageClassName": "x", "annotations": ["volume.beta.kubernetes.io/storage-class=gold"]}),
            &["v Bound c:uid +ctl", "c Bound v 1Gi x +done +ctl"],
            &[],
        ),
    ] {
        check(id, &world(volumes, vec![claim("c", claim_is)]), state, events);
    }
}

/// kubernetes.md 1.1 "Best match", "Claim unbound"; upstream's set 14, where the claim takes any volume.
#[test]
fn set_14_volume_mode_must_match() {
    let (block, file) = (json!({"spec.volumeMode": "Block"}), json!({"spec.volumeMode": "Filesystem"}));
    let reserved =
        |mode: &str, uid: &str| json!({"spec.volumeMode": mode, "spec.claimRef": reference("c", uid)});
    let bound: &[&str] = &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"];
    let kept: &[&str] = &["v Bound c:uid", "c Bound v 1Gi +done +ctl"];
    let not: &[&str] = &["v Available -", "c Pending - -"];
    let of_volume = "v: Warning VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode.";
    let of_claim = "claim: Warning VolumeMismatch: Cannot bind PersistentVolume \"v\" to requested PersistentVolumeClaim due to incompatible volumeMode.";
    for (id, volume_is, claim_is, state, events) in [
        ("14-1", block.clone(), block.clone(), bound, &[][..]),
        ("14-2", file.clone(), file.clone(), bound, &[]),
        ("14-2, default", json!({}), file.clone(), bound, &[]),
        ("14-3", file.clone(), block.clone(), not, &[NONE]),
        ("14-4", block.clone(), file.clone(), not, &[NONE]),
        ("14-7", reserved("Block", "uid"), block.clone(), kept, &[]),
        ("14-10", reserved("Block", ""), block.clone(), kept, &[]),
        ("14-12", reserved("Filesystem", ""), file.clone(), kept, &[]),
        (
            "14-13",
            reserved("Filesystem", "uid"),
            block.clone(),
            &["v Available c:uid", "c Pending - -"],
            &[NONE, of_volume, of_claim],
        ),
        (
            "14-13-1",
            reserved("Block", "uid"),
            file,
            &["v Available c:uid", "c Pending - -"],
            &[NONE, of_volume, of_claim],
        ),
        ("14-13, by name", reserved("Filesystem", ""), block, &["v Available c:", "c Pending - -"], &[NONE]),
    ] {
        check(id, &world(vec![volume("v", volume_is)], vec![claim("c", claim_is)]), state, events);
    }
}
