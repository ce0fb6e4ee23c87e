//! Facts of upstream's volumebinding and volumerestrictions tests, told anew.

use serde_json::{Value, json};

use super::super::testing::{bound, claim, class, pod, pod_with, view, view_of, volume};
use super::*;

fn refused(view: &View) -> String {
    match sort(view) {
        Err(Stop::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

fn names(claims: &[Arc<PersistentVolumeClaim>]) -> Vec<&str> {
    claims.iter().map(|claim| claim.metadata.name.as_str()).collect()
}

/// kubernetes.md 1.5 "Unbound claims".
#[test]
fn claims_are_sorted() {
    let mut view = view_of(vec![claim("w", json!({})), bound("b", "v")]);
    view.volumes.insert("v".into(), volume("v", json!({})));
    let sorted = sort(&view).unwrap();
    assert_eq!((names(&sorted.bound), names(&sorted.delayed)), (vec!["b"], vec!["w"]));

    assert!(sort(&super::super::testing::view(pod(json!({})))).unwrap().delayed.is_empty());
    let plain = pod(json!({"spec": {"volumes": [{"name": "e", "emptyDir": {}}]}}));
    assert!(sort(&super::super::testing::view(plain)).unwrap().bound.is_empty());

    // Named twice, there once.
    let mut twice = view_of(vec![claim("w", json!({}))]);
    twice.pod = pod_with(&["w", "w"]);
    assert_eq!(names(&sort(&twice).unwrap().delayed), ["w"]);
}

/// kubernetes.md 1.5 "Unbound claims", "Missing claims": what holds a pod off all nodes.
#[test]
fn claims_that_will_not_do() {
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
            "a claim that is going",
            unbound(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            "persistentvolumeclaim \"c\" is being deleted",
        ),
        ("a volume that is gone", view_of(vec![bound("c", "v")]), "persistentvolume \"v\" not found"),
    ] {
        assert_eq!(refused(&view), expected, "{rule}");
    }
    let mut odd = unbound(json!({}));
    odd.classes.insert("wait".into(), class("wait", json!({"volumeBindingMode": null})));
    assert_eq!(
        sort(&odd).unwrap_err(),
        Stop::Failed("VolumeBindingMode not set for StorageClass \"wait\"".into())
    );
}

/// kubernetes.md 1.5 "Missing claims".
#[test]
fn ephemeral_claims() {
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
        refused(&view(ephemeral())),
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-e\""
    );
    assert_eq!(names(&sort(&owned("pod-uid", json!(true))).unwrap().delayed), ["p-e"]);
    for view in [owned("another", json!(true)), owned("pod-uid", json!(false)), owned("pod-uid", json!(null))]
    {
        assert_eq!(refused(&view), "PVC ns/p-e was not created for pod ns/p (pod is not owner)");
    }
    // The volume behind it may be missing: that is said of the node.
    let mut gone = owned("pod-uid", json!(true));
    let claim = Arc::make_mut(gone.claims.get_mut("p-e").unwrap());
    claim.spec.volume_name = "v".into();
    claim.metadata.annotations.insert(annotation::BIND_COMPLETED, "yes");
    assert_eq!(names(&sort(&gone).unwrap().bound), ["p-e"]);
}

/// kubernetes.md 1.5 "ReadWriteOncePod".
#[test]
fn claims_for_one_pod_alone() {
    for (rule, mode, used, expected) in [
        ("another pod has it", "ReadWriteOncePod", true, true),
        ("nobody has it", "ReadWriteOncePod", false, false),
        ("it is for many", "ReadWriteMany", true, false),
    ] {
        let mut view = view_of(vec![claim("c", json!({"spec": {"accessModes": [mode]}}))]);
        if used {
            view.used.insert("c".into());
        }
        assert_eq!(is_taken(&view), expected, "{rule}");
    }
}
