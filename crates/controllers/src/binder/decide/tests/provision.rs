//! Sets 11, 12 and 15: claims for which a volume is to be made, and claims that name no class.

use serde_json::{Value, json};

use super::world::*;

const WAITS: &str = "claim: Normal ExternalProvisioning: Waiting for a volume to be created either by the external \
                     provisioner 'd.test' or manually by the system administrator. If volume creation is delayed, please \
                     verify that the provisioner is running and correctly registered.";

fn gold(changes: Value) -> Value {
    let mut all = json!({"spec.storageClassName": "gold"});
    all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    all
}

/// kubernetes.md 1.1 "Hand over"; upstream's set 11 without what in-tree plugins do.
#[test]
fn set_11() {
    let class = |changes: Value| vec![storage_class("gold", changes)];
    let made = || {
        volume(
            "pvc-uid",
            gold(json!({
                "spec.claimRef": reference("c", "uid"), "status.phase": "Pending", "annotations": ["made"],
                "spec.persistentVolumeReclaimPolicy": "Delete",
            })),
        )
    };
    let no_class = "claim: Warning ProvisioningFailed: storageclass.storage.k8s.io \"gold\" not found";
    let in_tree =
        |name: &str| format!("claim: Warning ProvisioningFailed: no volume plugin matched name: {name}");
    let ebs = WAITS.replace("d.test", "ebs.csi.aws.com");
    for (id, volumes, claim_is, classes, state, told) in [
        (
            "11-17 handed over",
            vec![],
            gold(json!({})),
            class(json!({})),
            &["c Pending - - gold +handed"][..],
            vec![WAITS.to_owned()],
        ),
        (
            "11-7, 12-2 the volume is there",
            vec![made()],
            gold(json!({})),
            class(json!({})),
            &["pvc-uid Bound c:uid", "c Bound pvc-uid 1Gi gold +done +ctl"],
            vec![],
        ),
        (
            "12-4 the volume is there, and the claim was handed over",
            vec![made()],
            gold(json!({"annotations": ["volume.kubernetes.io/storage-provisioner=d.test"]})),
            class(json!({})),
            &["pvc-uid Bound c:uid", "c Bound pvc-uid 1Gi gold +done +ctl +handed"],
            vec![],
        ),
        (
            "11-6, 11-22 a volume is to be had",
            vec![volume("v", gold(json!({})))],
            gold(json!({})),
            class(json!({})),
            &["v Bound c:uid +ctl", "c Bound v 1Gi gold +done +ctl"],
            vec![],
        ),
        (
            "11-14 no such class",
            vec![],
            gold(json!({})),
            vec![],
            &["c Pending - - gold"],
            vec![no_class.to_owned()],
        ),
        (
            "11-14 the phase is not touched",
            vec![],
            gold(json!({"status.phase": "Lost"})),
            vec![],
            &["c Lost - - gold"],
            vec![no_class.to_owned()],
        ),
        (
            "11-18 a plugin that nobody knows",
            vec![],
            gold(json!({})),
            class(json!({"provisioner": "kubernetes.io/no-provisioner"})),
            &["c Pending - - gold"],
            vec![in_tree("kubernetes.io/no-provisioner")],
        ),
        (
            "11-21 a plugin that a driver took over from",
            vec![],
            gold(json!({})),
            class(json!({"provisioner": "kubernetes.io/aws-ebs"})),
            &["c Pending - - gold +handed"],
            vec![ebs],
        ),
        (
            "11-26 with a source",
            vec![],
            gold(
                json!({"spec.dataSource": {"kind": "VolumeSnapshot", "name": "s", "apiGroup": "snapshot.storage.k8s.io"}}),
            ),
            class(json!({})),
            &["c Pending - - gold +handed"],
            vec![WAITS.to_owned()],
        ),
        (
            "of another provisioner before",
            vec![],
            gold(json!({"annotations": ["volume.kubernetes.io/storage-provisioner=other.test"]})),
            class(json!({})),
            &["c Pending - - gold +handed"],
            vec![WAITS.to_owned()],
        ),
    ] {
        let world = World { volumes, claims: vec![claim("c", claim_is)], classes, ..World::default() };
        check(id, &world, state, &told.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// kubernetes.md 1.1 "Hand over", "Migration".
#[test]
fn both_annotations() {
    let mut world = World {
        claims: vec![claim("c", gold(json!({"annotations": ["pv.kubernetes.io/migrated-to=x"]})))],
        classes: vec![storage_class("gold", json!({}))],
        ..World::default()
    };
    world.run(usize::MAX);
    assert_eq!(
        world.claims[0]["metadata"]["annotations"],
        json!({
            "volume.kubernetes.io/storage-provisioner": "d.test",
            "volume.beta.kubernetes.io/storage-provisioner": "d.test",
        }),
        "and nobody took this one over"
    );
}

/// kubernetes.md 1.1 "First consumer" (upstream's 11-23, 11-24), and kubernetes#100485: a node that is gone is not
/// waited for.
#[test]
fn the_node_that_was_chosen() {
    let node = "volume.kubernetes.io/selected-node=n";
    let world = |nodes: &[&str], leave_nodes: bool, changes: Value| World {
        claims: vec![claim("c", gold(changes))],
        classes: vec![storage_class("gold", json!({"volumeBindingMode": "WaitForFirstConsumer"}))],
        nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
        leave_nodes,
        ..World::default()
    };
    let chosen = || json!({"annotations": [node]});
    let first = "claim: Normal WaitForFirstConsumer: waiting for first consumer to be created before binding";
    let handed: &[&str] = &["c Pending - - gold +handed +node"];
    check("11-24 there", &world(&["n"], false, chosen()), handed, &[WAITS]);
    check("gone", &world(&[], false, chosen()), &["c Pending - - gold"], &[first]);
    check("gone, as upstream", &world(&[], true, chosen()), handed, &[WAITS]);
    let going = json!({"annotations": [node], "metadata.deletionTimestamp": "2026-01-01T00:00:00Z"});
    check("gone, and so is the claim", &world(&[], false, going), handed, &[WAITS]);
    let asked = |mut world: World| {
        world.run(usize::MAX);
        world.asked()
    };
    assert_eq!([asked(world(&["n"], false, chosen())), asked(world(&[], false, chosen()))], [0, 1]);
    // One that only our store does not know yet is not gone.
    let mut unseen = world(&["n"], false, chosen());
    unseen.unseen.insert("n".to_owned());
    check("not seen yet", &unseen, handed, &[WAITS]);
    assert_eq!(asked(unseen), 1);
    // A class that does not wait does not ask for the node either.
    let mut immediate = world(&[], false, chosen());
    immediate.classes = vec![storage_class("gold", json!({}))];
    check("immediate", &immediate, handed, &[WAITS]);
}

/// kubernetes.md 1.1 "Default class"; upstream's set 15.
#[test]
fn set_15() {
    let class = |name: &str, day: u8, changes: Value| {
        let mut all = json!({"metadata.creationTimestamp": format!("2026-01-{day:02}T00:00:00Z")});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        storage_class(name, all)
    };
    let default = || json!({"annotations": ["default"]});
    let none = "claim: Normal FailedBinding: no persistent volumes available for this claim and no storage class is set";
    for (id, volumes, claim, classes, state, told) in [
        (
            "15-1 no default",
            vec![],
            claim("c", json!({})),
            vec![class("gold", 1, json!({}))],
            &["c Pending - -"][..],
            &[none][..],
        ),
        (
            "15-2 the newest of several",
            vec![],
            claim("c", json!({})),
            vec![class("a", 1, default()), class("b", 3, default()), class("c", 2, default())],
            &["c Pending - - b +handed"],
            &[WAITS],
        ),
        (
            "15-3 bound before",
            vec![volume("v", json!({"spec.claimRef": reference("c", "uid"), "status.phase": "Bound"}))],
            bound_claim("c", "v", json!({})),
            vec![class("gold", 1, default())],
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "15-4 it names its volume",
            vec![volume("v", json!({}))],
            claim("c", json!({"spec.volumeName": "v"})),
            vec![class("gold", 1, default())],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done"],
            &[],
        ),
        (
            "a volume without class is to be had",
            vec![volume("v", json!({}))],
            claim("c", json!({})),
            vec![class("gold", 1, default())],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "15-5 there is a default",
            vec![],
            claim("c", json!({})),
            vec![class("gold", 1, default())],
            &["c Pending - - gold +handed"],
            &[WAITS],
        ),
        (
            "11-15, 15-6 the empty class is a class",
            vec![],
            claim("c", json!({"spec.storageClassName": ""})),
            vec![class("gold", 1, default())],
            &["c Pending - -"],
            &[none],
        ),
        (
            "15-7 so is the annotation",
            vec![],
            claim("c", json!({"annotations": ["volume.beta.kubernetes.io/storage-class="]})),
            vec![class("gold", 1, default())],
            &["c Pending - -"],
            &[none],
        ),
    ] {
        check(id, &World { volumes, claims: vec![claim], classes, ..World::default() }, state, told);
    }
}
