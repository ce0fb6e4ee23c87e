use super::*;

fn db() -> Value {
    serde_json::json!({
        "metadata": {
            "name": "db-0", "namespace": "shop", "uid": "u", "labels": {"a": "b"}, "annotations": {"c": "d"},
            "ownerReferences": [{"kind": "StatefulSet", "name": "db"}],
        },
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
                {"name": "token", "projected": {"sources": []}},
            ],
        },
        "status": {"phase": "Running", "startTime": "2026-11-15T10:00:00Z"},
    })
}

#[test]
fn both_views_have_node_claims_and_phase() {
    for view in [View::Slim, View::Full] {
        let pod = Pod::decode(db(), view).unwrap();
        assert_eq!(*pod.claims, ["data-db-0", "db-0-scratch"], "{view:?}");
        assert_eq!((pod.node_name.as_str(), pod.phase), ("node-a", PodPhase::Running), "{view:?}");
        assert_eq!(pod.key(), Key::namespaced("shop", "db-0"), "{view:?}");
        let keys: Vec<Key> = pod.claim_keys().collect();
        assert_eq!(
            keys,
            ["data-db-0", "db-0-scratch"].map(|claim| Key::namespaced("shop", claim)),
            "{view:?}"
        );
    }
}

#[test]
fn only_the_full_view_has_the_rest() {
    let full: Pod = serde_json::from_value(db()).unwrap();
    assert_eq!((full.spec.containers.len(), full.spec.volumes.len()), (1, 3));
    assert!(full.status.start_time.is_some() && full.metadata.owner_references.len() == 1);
    let slim = Pod::decode(db(), View::Slim).unwrap();
    assert_eq!((&slim.spec, &slim.status), (&Detail::default(), &Detail::default()));
    assert!(slim.metadata.labels.is_empty() && slim.metadata.annotations.is_empty());
    assert!(slim.metadata.owner_references.is_empty());
}

/// Pods without claims cost nothing.
#[test]
fn slim_view_of_a_pod_without_claims_is_not_cached() {
    let idle = || serde_json::json!({"metadata": {"name": "idle"}});
    for (pod, view, cached) in [
        (db(), View::Slim, true),
        (db(), View::Full, true),
        (idle(), View::Slim, false),
        (idle(), View::Full, true),
    ] {
        assert_eq!(Pod::decode(pod, view).unwrap().is_cached(view), cached, "{view:?}");
    }
}

#[test]
fn only_finished_phases_have_ended() {
    for (phase, ended) in
        [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true), ("Odd", false)]
    {
        let pod: Pod = serde_json::from_value(serde_json::json!({"status": {"phase": phase}})).unwrap();
        assert_eq!(pod.has_ended(), ended, "{phase}");
    }
}

#[test]
fn selectable_fields_are_those_of_the_object() {
    let pod = Pod::decode(db(), View::Slim).unwrap();
    for (path, expected) in [
        ("metadata.name", Some("db-0")),
        ("spec.nodeName", Some("node-a")),
        ("status.phase", Some("Running")),
        ("spec.schedulerName", None),
    ] {
        assert_eq!(Pod::field(path).map(|field| field(&pod)), expected, "{path}");
    }
}
