//! Every rule, satisfied and violated.

use serde_json::json;

use super::*;
use crate::access::testing::FakeObjects;

fn objects_fixture() -> FakeObjects {
    let volumes =
        json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
    FakeObjects::default()
        .with("/nodes//n1", json!({"metadata": {"name": "n1", "uid": "node-1"}}))
        .with(
            "/pods/ns/mine",
            json!({"metadata": {"uid": "p1"}, "spec": {"nodeName": "n1", "volumes": volumes}}),
        )
        .with("/pods/ns/theirs", json!({"metadata": {"uid": "p2"}, "spec": {"nodeName": "n2"}}))
}

fn mirror() -> Value {
    json!({
        "metadata": {
            "name": "etcd-n1", "annotations": {MIRROR: "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1"}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
    })
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

fn labelled(label: &str) -> Value {
    json!({"metadata": {"name": "n1", "labels": {label: "x"}}})
}

/// Verb, group/resource/subresource, namespace, name, new and old object, and the expected error.
type Case = (&'static str, &'static str, &'static str, &'static str, Value, Value, Option<&'static str>);

#[test]
fn node_may_only_write_about_itself() {
    let node = json!({"metadata": {"name": "n1"}, "spec": {}});
    let claim = json!({"metadata": {"resourceVersion": "1"}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
    let grown = with(
        with(claim.clone(), "/status/capacity", json!({"storage": "2Gi"})),
        "/metadata/resourceVersion",
        json!("2"),
    );
    let on = |node: &str| json!({"metadata": {}, "spec": {"nodeName": node}});
    let request = |kind: &str, name: &str, uid: &str| json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}}});
    let null = Value::Null;
    let cases: Vec<Case> = vec![
        ("create", "/pods/", "ns", "", mirror(), null.clone(), None),
        (
            "create",
            "/pods/",
            "ns",
            "",
            with(mirror(), "/metadata/annotations", json!({})),
            null.clone(),
            Some(
                r#"pods "etcd-n1" is forbidden: pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods"#,
            ),
        ),
        (
            "create",
            "/pods/",
            "ns",
            "",
            with(mirror(), "/spec/nodeName", json!("n2")),
            null.clone(),
            Some(
                r#"pods "etcd-n1" is forbidden: node "n1" can only create pods with spec.nodeName set to itself"#,
            ),
        ),
        (
            "create",
            "/pods/",
            "ns",
            "",
            with(mirror(), "/metadata/ownerReferences/0/uid", json!("old")),
            null.clone(),
            Some(
                r#"pods "etcd-n1" is forbidden: node "n1" can only create pods with a single owner reference set to itself"#,
            ),
        ),
        (
            "create",
            "/pods/",
            "ns",
            "",
            with(mirror(), "/spec/serviceAccountName", json!("app")),
            null.clone(),
            Some(
                r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference a service account"#,
            ),
        ),
        (
            "create",
            "/pods/",
            "ns",
            "",
            with(mirror(), "/spec/volumes", json!([{"secret": {"secretName": "s"}}])),
            null.clone(),
            Some(r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference secrets"#),
        ),
        (
            "create",
            "/pods/",
            "ns",
            "",
            with(mirror(), "/spec/volumes", json!([{"csi": {"nodePublishSecretRef": {"name": "s"}}}])),
            null.clone(),
            Some(r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference secrets"#),
        ),
        (
            "create",
            "/pods/",
            "ns",
            "",
            with(mirror(), "/spec/volumes", json!([{"persistentVolumeClaim": {"claimName": "s"}}])),
            null.clone(),
            Some(
                r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference persistentvolumeclaims"#,
            ),
        ),
        ("delete", "/pods/", "ns", "mine", null.clone(), on("n1"), None),
        (
            "delete",
            "/pods/",
            "ns",
            "theirs",
            null.clone(),
            on("n2"),
            Some(
                r#"pods "theirs" is forbidden: node "n1" can only delete pods with spec.nodeName set to itself"#,
            ),
        ),
        ("update", "/pods/status", "ns", "mine", on("n1"), on("n1"), None),
        (
            "update",
            "/pods/status",
            "ns",
            "theirs",
            on("n1"),
            on("n2"),
            Some(
                r#"pods "theirs" is forbidden: node "n1" can only update pod status for pods with spec.nodeName set to itself"#,
            ),
        ),
        (
            "update",
            "/pods/status",
            "ns",
            "mine",
            with(on("n1"), "/metadata/labels", json!({"a": "b"})),
            on("n1"),
            Some(r#"pods "mine" is forbidden: node "n1" cannot update labels through pod status"#),
        ),
        ("create", "/pods/eviction", "ns", "mine", null.clone(), null.clone(), None),
        (
            "create",
            "/pods/eviction",
            "ns",
            "theirs",
            null.clone(),
            null.clone(),
            Some(
                r#"pods "theirs" is forbidden: node n1 can only evict pods with spec.nodeName set to itself"#,
            ),
        ),
        ("create", "/nodes/", "", "", labelled("kubernetes.io/hostname"), null.clone(), None),
        ("create", "/nodes/", "", "", labelled("example.com/rack"), null.clone(), None),
        (
            "create",
            "/nodes/",
            "",
            "",
            labelled("kubernetes.io/secret-keeper"),
            null.clone(),
            Some(
                r#"nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: kubernetes.io/secret-keeper"#,
            ),
        ),
        (
            "create",
            "/nodes/",
            "",
            "",
            json!({"metadata": {"name": "n2"}}),
            null.clone(),
            Some(r#"nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2""#),
        ),
        (
            "patch",
            "/nodes/status",
            "",
            "n1",
            labelled("topology.x.k8s.io/zone"),
            node.clone(),
            Some(
                r#"nodes "n1" is forbidden: node "n1" is not allowed to modify labels: topology.x.k8s.io/zone"#,
            ),
        ),
        (
            "patch",
            "/nodes/status",
            "",
            "n1",
            node.clone(),
            labelled("a.node-restriction.kubernetes.io/b"),
            Some(
                r#"nodes "n1" is forbidden: node "n1" is not allowed to modify labels: a.node-restriction.kubernetes.io/b"#,
            ),
        ),
        ("patch", "/nodes/", "", "n1", labelled("node.kubernetes.io/x"), node.clone(), None),
        (
            "patch",
            "/nodes/",
            "",
            "n1",
            with(node.clone(), "/spec/taints", json!([])),
            node.clone(),
            Some(r#"nodes "n1" is forbidden: node "n1" is not allowed to modify taints"#),
        ),
        (
            "patch",
            "/nodes/",
            "",
            "n1",
            with(node.clone(), "/metadata/ownerReferences", json!([{"uid": "x"}])),
            node.clone(),
            Some(r#"nodes "n1" is forbidden: node "n1" is not allowed to modify ownerReferences"#),
        ),
        ("patch", "/persistentvolumeclaims/status", "ns", "c", grown, claim.clone(), None),
        (
            "patch",
            "/persistentvolumeclaims/status",
            "ns",
            "c",
            with(claim.clone(), "/status/phase", json!("Lost")),
            claim.clone(),
            Some(
                r#"persistentvolumeclaims "c" is forbidden: node "n1" is not allowed to update fields other than status.quantity and status.conditions"#,
            ),
        ),
        (
            "patch",
            "/persistentvolumeclaims/status",
            "ns",
            "c",
            with(claim.clone(), "/metadata/annotations", json!({"a": "b"})),
            claim,
            Some(
                r#"persistentvolumeclaims "c" is forbidden: node "n1" is not allowed to update fields other than status.quantity and status.conditions"#,
            ),
        ),
        ("create", "/serviceaccounts/token", "ns", "app", request("Pod", "mine", "p1"), null.clone(), None),
        (
            "create",
            "/serviceaccounts/token",
            "ns",
            "app",
            with(request("Pod", "mine", "p1"), "/spec/audiences", json!(["vault"])),
            null.clone(),
            Some(
                r#"serviceaccounts "app" is forbidden: audience "vault" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience"#,
            ),
        ),
        (
            "create",
            "/serviceaccounts/token",
            "ns",
            "app",
            json!({"spec": {}}),
            null.clone(),
            Some(r#"serviceaccounts "app" is forbidden: node requested token not bound to a pod"#),
        ),
        (
            "create",
            "/serviceaccounts/token",
            "ns",
            "app",
            request("Secret", "mine", "p1"),
            null.clone(),
            Some(r#"serviceaccounts "app" is forbidden: node requested token not bound to a pod"#),
        ),
        (
            "create",
            "/serviceaccounts/token",
            "ns",
            "app",
            request("Pod", "mine", ""),
            null.clone(),
            Some(
                r#"serviceaccounts "app" is forbidden: node requested token with a pod binding without a uid"#,
            ),
        ),
        (
            "create",
            "/serviceaccounts/token",
            "ns",
            "app",
            request("Pod", "mine", "p0"),
            null.clone(),
            Some(
                r#"serviceaccounts "app" is forbidden: the UID in the bound object reference (p0) does not match the UID in record. The object might have been deleted and then recreated"#,
            ),
        ),
        (
            "create",
            "/serviceaccounts/token",
            "ns",
            "app",
            request("Pod", "theirs", "p2"),
            null.clone(),
            Some(
                r#"serviceaccounts "app" is forbidden: node requested token bound to a pod scheduled on a different node"#,
            ),
        ),
        (
            "create",
            "coordination.k8s.io/leases/",
            LEASE_NAMESPACE,
            "",
            json!({"metadata": {"name": "n1"}}),
            null.clone(),
            None,
        ),
        (
            "create",
            "coordination.k8s.io/leases/",
            LEASE_NAMESPACE,
            "",
            json!({"metadata": {"name": "n2"}}),
            null.clone(),
            Some(
                r#"leases.coordination.k8s.io "n2" is forbidden: can only access node lease with the same name as the requesting node"#,
            ),
        ),
        (
            "create",
            "storage.k8s.io/csinodes/",
            "",
            "",
            json!({"metadata": {"name": "n2"}}),
            null.clone(),
            Some(
                r#"csinodes.storage.k8s.io "n2" is forbidden: can only access CSINode with the same name as the requesting node"#,
            ),
        ),
        ("create", "/events/", "ns", "", null.clone(), null, None),
    ];
    let objects = objects_fixture();
    for (verb, kind, namespace, name, new, old, expected) in cases {
        let mut parts = kind.split('/');
        let mut part = || parts.next().unwrap();
        let (group, resource, subresource) = (part(), part(), part());
        let attrs =
            Attributes { verb, group, resource, subresource, namespace, name, ..Attributes::default() };
        let some = |value: &Value| if value.is_null() { None } else { Some(value.clone()) };
        let (new, old) = (some(&new), some(&old));
        let result = restrict_node(&User::node("n1"), &attrs, new.as_ref(), old.as_ref(), &objects);
        assert_eq!(result.err().map(|status_error| status_error.message).as_deref(), expected, "{attrs:?}");
        let admin = restrict_node(&User::admin(), &attrs, new.as_ref(), old.as_ref(), &objects);
        assert_eq!(admin, Ok(()), "{attrs:?}");
    }
}
