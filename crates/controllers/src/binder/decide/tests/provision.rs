//! Sets 11, 12 and 15: claims that need a provisioned volume, and claims that name no class.

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

/// kubernetes.md 1.1 "External provisioner"; upstream's set 11 without the in-tree plugins.
#[test]
fn set_11_claim_is_assigned_to_provisioner() {
    let class = |changes: Value| vec![storage_class("gold", changes)];
    let provisioned = || {
        volume(
            "pvc-uid",
            gold(json!({
                "spec.claimRef": reference("c", "uid"), "status.phase": "Pending", "annotations": ["provisioned"],
                "spec.persistentVolumeReclaimPolicy": "Delete",
            })),
        )
    };
    let no_class = "claim: Warning ProvisioningFailed: storageclass.storage.k8s.io \"gold\" not found";
    let in_tree =
        |name: &str| format!("claim: Warning ProvisioningFailed: no volume plugin matched name: {name}");
    let ebs = WAITS.replace("d.test", "ebs.csi.aws.com");
    for (id, volumes, claim_is, classes, state, events) in [
        (
            "11-17 assigned",
            vec![],
            gold(json!({})),
            class(json!({})),
            &["c Pending - - gold +provisioner"][..],
            vec![WAITS.to_owned()],
        ),
        (
            "11-7, 12-2 the volume exists",
            vec![provisioned()],
            gold(json!({})),
            class(json!({})),
            &["pvc-uid Bound c:uid", "c Bound pvc-uid 1Gi gold +done +ctl"],
            vec![],
        ),
        (
            "12-4 the volume exists, and the claim is assigned",
            vec![provisioned()],
            gold(json!({"annotations": ["volume.kubernetes.io/storage-provisioner=d.test"]})),
            class(json!({})),
            &["pvc-uid Bound c:uid", "c Bound pvc-uid 1Gi gold +done +ctl +provisioner"],
            vec![],
        ),
        (
            "11-6, 11-22 a volume is available",
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
            "11-18 unknown in-tree plugin",
            vec![],
            gold(json!({})),
            class(json!({"provisioner": "kubernetes.io/no-provisioner"})),
            &["c Pending - - gold"],
            vec![in_tree("kubernetes.io/no-provisioner")],
        ),
        (
            "11-21 migrated in-tree plugin",
            vec![],
            gold(json!({})),
            class(json!({"provisioner": "kubernetes.io/aws-ebs"})),
            &["c Pending - - gold +provisioner"],
            vec![ebs],
        ),
        (
            "11-26 with a data source",
            vec![],
            gold(
                json!({"spec.dataSource": {"kind": "VolumeSnapshot", "name": "s", "apiGroup": "snapshot.storage.k8s.io"}}),
            ),
            class(json!({})),
            &["c Pending - - gold +provisioner"],
            vec![WAITS.to_owned()],
        ),
        (
            "assigned to another provisioner before",
            vec![],
            gold(json!({"annotations": ["volume.kubernetes.io/storage-provisioner=other.test"]})),
            class(json!({})),
            &["c Pending - - gold +provisioner"],
            vec![WAITS.to_owned()],
        ),
    ] {
        let world = World { volumes, claims: vec![claim("c", claim_is)], classes, ..World::default() };
        check(id, &world, state, &events.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// kubernetes.md 1.1 "External provisioner", "Migration".
#[test]
fn provisioner_is_written_to_both_annotations() {
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
        "migrated-to is removed: no driver replaces this provisioner"
    );
}

/// kubernetes.md 1.1 "First consumer" (upstream's 11-23, 11-24), and kubernetes#100485: the claim does not wait for a
/// deleted node.
#[test]
fn deleted_selected_node_is_cleared() {
    let node = "volume.kubernetes.io/selected-node=n";
    let world = |nodes: &[&str], keep_selected_node: bool, changes: Value| World {
        claims: vec![claim("c", gold(changes))],
        classes: vec![storage_class("gold", json!({"volumeBindingMode": "WaitForFirstConsumer"}))],
        nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
        keep_selected_node,
        ..World::default()
    };
    let chosen = || json!({"annotations": [node]});
    let first = "claim: Normal WaitForFirstConsumer: waiting for first consumer to be created before binding";
    let assigned: &[&str] = &["c Pending - - gold +provisioner +node"];
    check("11-24 exists", &world(&["n"], false, chosen()), assigned, &[WAITS]);
    check("deleted", &world(&[], false, chosen()), &["c Pending - - gold"], &[first]);
    check("deleted, upstream's setting", &world(&[], true, chosen()), assigned, &[WAITS]);
    let deleting = json!({"annotations": [node], "metadata.deletionTimestamp": "2026-01-01T00:00:00Z"});
    check("deleted, and the claim is being deleted", &world(&[], false, deleting), assigned, &[WAITS]);
    let fetched = |mut world: World| {
        world.run(usize::MAX);
        world.live_reads()
    };
    assert_eq!([fetched(world(&["n"], false, chosen())), fetched(world(&[], false, chosen()))], [0, 1]);
    // A node that only the store lacks is not deleted.
    let mut uncached = world(&["n"], false, chosen());
    uncached.uncached.insert("n".to_owned());
    check("not in the store yet", &uncached, assigned, &[WAITS]);
    assert_eq!(fetched(uncached), 1);
    // A class with immediate binding does not read the node.
    let mut immediate = world(&[], false, chosen());
    immediate.classes = vec![storage_class("gold", json!({}))];
    check("immediate", &immediate, assigned, &[WAITS]);
}

/// kubernetes.md 1.1 "Default class"; upstream's set 15.
#[test]
fn set_15_default_class_is_assigned() {
    let class = |name: &str, day: u8, changes: Value| {
        let mut all = json!({"metadata.creationTimestamp": format!("2026-01-{day:02}T00:00:00Z")});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        storage_class(name, all)
    };
    let default = || json!({"annotations": ["default"]});
    let none = "claim: Normal FailedBinding: no persistent volumes available for this claim and no storage class is set";
    for (id, volumes, claim, classes, state, events) in [
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
            &["c Pending - - b +provisioner"],
            &[WAITS],
        ),
        (
            "15-3 already bound",
            vec![volume("v", json!({"spec.claimRef": reference("c", "uid"), "status.phase": "Bound"}))],
            bound_claim("c", "v", json!({})),
            vec![class("gold", 1, default())],
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "15-4 names its volume",
            vec![volume("v", json!({}))],
            claim("c", json!({"spec.volumeName": "v"})),
            vec![class("gold", 1, default())],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done"],
            &[],
        ),
        (
            "a volume without class is available",
            vec![volume("v", json!({}))],
            claim("c", json!({})),
            vec![class("gold", 1, default())],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "15-5 a default exists",
            vec![],
            claim("c", json!({})),
            vec![class("gold", 1, default())],
            &["c Pending - - gold +provisioner"],
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
            "15-7 so is the empty annotation",
            vec![],
            claim("c", json!({"annotations": ["volume.beta.kubernetes.io/storage-class="]})),
            vec![class("gold", 1, default())],
            &["c Pending - -"],
            &[none],
        ),
    ] {
        check(id, &World { volumes, claims: vec![claim], classes, ..World::default() }, state, events);
    }
}
