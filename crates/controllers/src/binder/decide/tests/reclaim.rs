//! Sets 6, 8 and 9: volumes whose claim was deleted.

use serde_json::{Value, json};

use super::world::*;

/// kubernetes.md 1.1 "Reclaim", "Recycle"; upstream's sets 6 and 8, without the in-tree plugins.
#[test]
fn released_volume_follows_reclaim_policy() {
    let orphan = |policy: &str, changes: Value| {
        let mut all = json!({
            "spec.claimRef": reference("c", "uid"), "status.phase": "Bound",
            "spec.persistentVolumeReclaimPolicy": policy,
        });
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        volume("v", all)
    };
    let pod = |phase: &str| {
        json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": phase},
        })
    };
    let (released, failed) = ("v Released c:uid", "v Failed c:uid");
    let not_csi = || json!({"spec.csi": null});
    let no_plugin = "v: Warning VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no volume plugin matched";
    let no_recycler = "v: Warning VolumeFailedRecycle: No recycler plugin found for the volume!";
    let in_use = "v: Normal VolumeFailedRecycle: Volume is used by pods: ns/p";
    for (id, volume, pods, state, events) in [
        ("Retain", orphan("Retain", json!({})), vec![], released, &[][..]),
        (
            "8-10-1 provisioned by a driver",
            orphan("Delete", json!({"annotations": ["provisioned"]})),
            vec![],
            released,
            &[],
        ),
        ("8-10-2 created by a user for a driver", orphan("Delete", json!({})), vec![], released, &[]),
        (
            "8-10-3 migrated to a driver",
            orphan(
                "Delete",
                json!({"annotations": ["pv.kubernetes.io/provisioned-by=kubernetes.io/aws-ebs"], "spec.csi": null}),
            ),
            vec![],
            released,
            &[],
        ),
        ("8-2 reserved by a user", orphan("Delete", json!({"annotations": []})), vec![], released, &[]),
        (
            "8-13 being deleted",
            orphan("Delete", json!({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"})),
            vec![],
            released,
            &[],
        ),
        ("8-3 no deleter", orphan("Delete", not_csi()), vec![], failed, &[no_plugin]),
        (
            "8-3 not migrated",
            orphan("Delete", json!({"annotations": ["pv.kubernetes.io/migrated-to="], "spec.csi": null})),
            vec![],
            failed,
            &[no_plugin],
        ),
        (
            "8-3 provisioned by an in-tree plugin",
            orphan(
                "Delete",
                json!({"annotations": ["pv.kubernetes.io/provisioned-by=kubernetes.io/host-path"], "spec.csi": null}),
            ),
            vec![],
            failed,
            &["v: Warning VolumeFailedDelete: no volume plugin matched name: kubernetes.io/host-path"],
        ),
        (
            "9-1 failed before",
            orphan("Delete", json!({"spec.csi": null, "status.phase": "Failed"})),
            vec![],
            failed,
            &[],
        ),
        ("6-3 no recycler", orphan("Recycle", json!({})), vec![], failed, &[no_recycler]),
        (
            "6-11 used by a running pod",
            orphan("Recycle", json!({})),
            vec![pod("Running")],
            released,
            &[in_use],
        ),
        (
            "6-12 used by a pending pod",
            orphan("Recycle", json!({})),
            vec![pod("Pending")],
            released,
            &[in_use],
        ),
        (
            "6-13 used by a terminated pod",
            orphan("Recycle", json!({})),
            vec![pod("Succeeded")],
            failed,
            &[no_recycler],
        ),
        (
            "6-10 unknown policy",
            orphan("Compost", json!({})),
            vec![],
            failed,
            &["v: Warning VolumeUnknownReclaimPolicy: Volume has unrecognized PersistentVolumeReclaimPolicy"],
        ),
    ] {
        let world = World { volumes: vec![volume], pods, ..World::default() };
        let marks = if world.volumes[0]["metadata"]["annotations"]
            .get("pv.kubernetes.io/bound-by-controller")
            .is_some()
        {
            " +ctl"
        } else {
            ""
        };
        check(id, &world, &[&format!("{state}{marks}")], events);
    }
}

/// Upstream's 6-14: a claim of the same name exists, so the pods use that one.
#[test]
fn pods_use_the_current_claim_of_that_name() {
    let world = World {
        volumes: vec![volume(
            "v",
            json!({
                "spec.claimRef": reference("c", "earlier"), "status.phase": "Released",
                "spec.persistentVolumeReclaimPolicy": "Recycle",
            }),
        )],
        claims: vec![claim("c", json!({"spec.storageClassName": "none"}))],
        pods: vec![json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": "Running"},
        })],
        ..World::default()
    };
    check(
        "6-14",
        &world,
        &["v Failed c:earlier", "c Pending - - none"],
        &[
            "v: Warning VolumeFailedRecycle: No recycler plugin found for the volume!",
            "claim: Warning ProvisioningFailed: storageclass.storage.k8s.io \"none\" not found",
        ],
    );
}

/// kubernetes.md 1.1 "Claim deleted": phase Failed stays after the policy changes to Retain; a volume whose claimRef is
/// removed becomes available.
#[test]
fn failed_volume_is_available_once_unclaimed() {
    let failed = |changes: Value| {
        let mut all = json!({"spec.csi": null, "status.phase": "Failed"});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        World { volumes: vec![volume("v", all)], ..World::default() }
    };
    check("retained", &failed(json!({"spec.claimRef": reference("c", "uid")})), &["v Failed c:uid"], &[]);
    check("reserved again", &failed(json!({"spec.claimRef": reference("c", "")})), &["v Available c:"], &[]);
    check("claimRef removed", &failed(json!({})), &["v Available -"], &[]);
}

/// kubernetes.md 1.1 "In-tree finalizer": removed once a driver replaces the plugin.
#[test]
fn in_tree_finalizer_is_removed_after_migration() {
    let mut world = World {
        volumes: vec![volume(
            "v",
            json!({
                "annotations": ["pv.kubernetes.io/provisioned-by=kubernetes.io/aws-ebs"],
                "metadata.finalizers": ["a", "kubernetes.io/pv-controller", "b"],
            }),
        )],
        ..World::default()
    };
    world.run(usize::MAX);
    assert_eq!(world.volumes[0]["metadata"]["finalizers"], json!(["a", "b"]));
    assert_eq!(
        world.volumes[0]["metadata"]["annotations"]["pv.kubernetes.io/migrated-to"],
        json!("ebs.csi.aws.com")
    );
}
