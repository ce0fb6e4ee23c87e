//! The cases of upstream's volumebinding and volumerestrictions tests, reimplemented.

use serde_json::{Value, json};

use super::super::testing::{bound, claim, class, pod, pod_with, view, view_of, volume};
use super::*;

fn unschedulable(view: &View) -> String {
    match classify(view) {
        Err(PreFilterError::Unschedulable(reason)) => reason,
        other => panic!("not unschedulable: {other:?}"),
    }
}

fn names(claims: &[Arc<PersistentVolumeClaim>]) -> Vec<&str> {
    claims.iter().map(|claim| claim.metadata.name.as_str()).collect()
}

/// kubernetes.md 1.5 "Unbound claims".
#[test]
fn claims_are_classified_as_bound_or_delayed() {
    let mut view = view_of(vec![claim("w", json!({})), bound("b", "v")]);
    view.volumes.insert("v".into(), volume("v", json!({})));
    let pod_claims = classify(&view).unwrap();
    assert_eq!((names(&pod_claims.bound), names(&pod_claims.delayed)), (vec!["b"], vec!["w"]));

    assert!(classify(&super::super::testing::view(pod(json!({})))).unwrap().delayed.is_empty());
    let plain = pod(json!({"spec": {"volumes": [{"name": "e", "emptyDir": {}}]}}));
    assert!(classify(&super::super::testing::view(plain)).unwrap().bound.is_empty());

    // Duplicates are removed.
    let mut twice = view_of(vec![claim("w", json!({}))]);
    twice.pod = pod_with(&["w", "w"]);
    assert_eq!(names(&classify(&twice).unwrap().delayed), ["w"]);
}

/// kubernetes.md 1.5 "Unbound claims", "Missing claims": what makes a pod unschedulable on all nodes.
#[test]
fn invalid_claims_make_the_pod_unschedulable() {
    let unbound = |more: Value| view_of(vec![claim("c", more)]);
    for (rule, view, expected) in [
        ("a missing claim", view(pod_with(&["c"])), "persistentvolumeclaim \"c\" not found"),
        (
            "one of two is missing",
            {
                let mut view = view_of(vec![claim("c", json!({}))]);
                view.pod = pod_with(&["c", "d"]);
                view
            },
            "persistentvolumeclaim \"d\" not found",
        ),
        (
            "an unbound immediate claim",
            {
                let mut view = unbound(json!({"spec": {"storageClassName": "now"}}));
                view.classes.insert("now".into(), class("now", json!({"volumeBindingMode": "Immediate"})));
                view
            },
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "a claim without a class",
            unbound(json!({"spec": {"storageClassName": null}})),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "a class that is missing",
            unbound(json!({"spec": {"storageClassName": "gone"}})),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "a delayed claim that names its volume and is not bound yet",
            unbound(json!({"spec": {"volumeName": "v"}})),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "a lost claim",
            unbound(json!({"spec": {"volumeName": "v"}, "status": {"phase": "Lost"}})),
            "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"",
        ),
        (
            "a claim that is being deleted",
            unbound(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            "persistentvolumeclaim \"c\" is being deleted",
        ),
        ("a deleted volume", view_of(vec![bound("c", "v")]), "persistentvolume \"v\" not found"),
    ] {
        assert_eq!(unschedulable(&view), expected, "{rule}");
    }
    let mut odd = unbound(json!({}));
    odd.classes.insert("wait".into(), class("wait", json!({"volumeBindingMode": null})));
    assert_eq!(
        classify(&odd).unwrap_err(),
        PreFilterError::Error("VolumeBindingMode not set for StorageClass \"wait\"".into())
    );
}

/// kubernetes.md 1.5 "Missing claims".
#[test]
fn ephemeral_claim_must_exist_and_be_owned_by_the_pod() {
    let ephemeral =
        || pod(json!({"spec": {"volumes": [{"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}]}}));
    let owned = |uid: &str, controller: Value| {
        let mut view = view(ephemeral());
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller});
        view.claims.insert("p-e".into(), claim("p-e", json!({"metadata": {"ownerReferences": [owner]}})));
        view
    };
    assert_eq!(
        unschedulable(&view(ephemeral())),
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-e\""
    );
    assert_eq!(names(&classify(&owned("pod-uid", json!(true))).unwrap().delayed), ["p-e"]);
    for view in [owned("another", json!(true)), owned("pod-uid", json!(false)), owned("pod-uid", json!(null))]
    {
        assert_eq!(unschedulable(&view), "PVC ns/p-e was not created for pod ns/p (pod is not owner)");
    }
    // Its volume may be missing: the node filter reports that.
    let mut without_volume = owned("pod-uid", json!(true));
    let claim = Arc::make_mut(without_volume.claims.get_mut("p-e").unwrap());
    claim.spec.volume_name = "v".into();
    claim.metadata.annotations.insert(annotation::BIND_COMPLETED, "yes");
    assert_eq!(names(&classify(&without_volume).unwrap().bound), ["p-e"]);
}

/// kubernetes.md 1.5 "ReadWriteOncePod".
#[test]
fn rwop_claim_in_use_is_a_conflict() {
    for (rule, mode, used, expected) in [
        ("used by another pod", "ReadWriteOncePod", true, true),
        ("unused", "ReadWriteOncePod", false, false),
        ("ReadWriteMany", "ReadWriteMany", true, false),
    ] {
        let mut view = view_of(vec![claim("c", json!({"spec": {"accessModes": [mode]}}))]);
        if used {
            view.claims_in_use.insert("c".into());
        }
        assert_eq!(has_rwop_conflict(&view), expected, "{rule}");
    }
}
