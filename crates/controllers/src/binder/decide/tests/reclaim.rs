//! Sets 6, 8 and 9: volumes whose claim is gone.

use serde_json::{Value, json};

use super::world::*;

/// kubernetes.md 1.1 "Reclaim", "Recycle"; upstream's sets 6 and 8, without what in-tree plugins do.
#[test]
fn by_policy() {
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
    for (id, volume, pods, state, told) in [
        ("Retain", orphan("Retain", json!({})), vec![], released, &[][..]),
        (
            "8-10-1 a driver made it",
            orphan("Delete", json!({"annotations": ["made"]})),
            vec![],
            released,
            &[],
        ),
        ("8-10-2 a person made it for a driver", orphan("Delete", json!({})), vec![], released, &[]),
        (
            "8-10-3 a driver took over",
            orphan(
                "Delete",
                json!({"annotations": ["pv.kubernetes.io/provisioned-by=kubernetes.io/aws-ebs"], "spec.csi": null}),
            ),
            vec![],
            released,
            &[],
        ),
        ("8-2 a person reserved it", orphan("Delete", json!({"annotations": []})), vec![], released, &[]),
        (
            "8-13 going",
            orphan("Delete", json!({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"})),
            vec![],
            released,
            &[],
        ),
        ("8-3 nobody deletes it", orphan("Delete", not_csi()), vec![], failed, &[no_plugin]),
        (
            "8-3 nobody took over",
            orphan("Delete", json!({"annotations": ["pv.kubernetes.io/migrated-to="], "spec.csi": null})),
            vec![],
            failed,
            &[no_plugin],
        ),
        (
            "8-3 a plugin made it",
            orphan(
                "Delete",
                json!({"annotations": ["pv.kubernetes.io/provisioned-by=kubernetes.io/host-path"], "spec.csi": null}),
            ),
            vec![],
            failed,
            &["v: Warning VolumeFailedDelete: no volume plugin matched name: kubernetes.io/host-path"],
        ),
        (
            "9-1 it failed before",
            orphan("Delete", json!({"spec.csi": null, "status.phase": "Failed"})),
            vec![],
            failed,
            &[],
        ),
        ("6-3 nobody recycles it", orphan("Recycle", json!({})), vec![], failed, &[no_recycler]),
        ("6-11 a pod runs", orphan("Recycle", json!({})), vec![pod("Running")], released, &[in_use]),
        ("6-12 a pod waits", orphan("Recycle", json!({})), vec![pod("Pending")], released, &[in_use]),
        (
            "6-13 a pod has ended",
            orphan("Recycle", json!({})),
            vec![pod("Succeeded")],
            failed,
            &[no_recycler],
        ),
        (
            "6-10 a policy that nobody knows",
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
        check(id, &world, &[&format!("{state}{marks}")], told);
    }
}

/// Upstream's 6-14: a claim of the same name is there, so the pods are its users.
#[test]
fn a_namesake_has_the_users() {
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

/// kubernetes.md 1.1 "Claim gone": to be retained by now, it is still seen to have failed; with its claim out, it is
/// to be had.
#[test]
fn after_a_failure() {
    let failed = |changes: Value| {
        let mut all = json!({"spec.csi": null, "status.phase": "Failed"});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        World { volumes: vec![volume("v", all)], ..World::default() }
    };
    check("retained", &failed(json!({"spec.claimRef": reference("c", "uid")})), &["v Failed c:uid"], &[]);
    check("reserved again", &failed(json!({"spec.claimRef": reference("c", "")})), &["v Available c:"], &[]);
    check("to be had", &failed(json!({})), &["v Available -"], &[]);
}

/// kubernetes.md 1.1 "In-tree finalizer": what stands for an in-tree plugin's deletion goes with the plugin.
#[test]
fn in_tree_finalizers() {
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
