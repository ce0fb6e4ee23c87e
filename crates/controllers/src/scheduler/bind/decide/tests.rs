//! The cases of upstream's BindAPIUpdate and CheckBindings tests, reimplemented.

use serde_json::{Value, json};

use super::super::super::testing::{bound, claim, on, over, volume};
use super::*;

fn view(bindings: Vec<Binding>, provisions: Vec<Provision>) -> View {
    let labels = [("host".to_owned(), "n1".to_owned())].into();
    View { pod_waiting: true, node: "n1".into(), labels: Some(labels), bindings, provisions }
}

fn binding(
    volume: Option<Arc<PersistentVolume>>,
    claim: Option<Arc<PersistentVolumeClaim>>,
    completed: bool,
) -> Binding {
    Binding { volume_name: "v".into(), claim_key: Key::namespaced("ns", "c"), volume, claim, completed }
}

fn provision(
    claim: Option<Arc<PersistentVolumeClaim>>,
    volume: Option<Arc<PersistentVolume>>,
    completed: bool,
) -> Provision {
    Provision { claim_key: Key::namespaced("ns", "c"), claim, volume, completed }
}

fn given(uid: &str) -> Value {
    json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": uid}}})
}

fn selecting(node: &str) -> Value {
    json!({"metadata": {"annotations": {annotation::SELECTED_NODE: node}}})
}

/// A claim with a volume and a selected node.
fn complete(node: &str) -> Arc<PersistentVolumeClaim> {
    let mut claim = PersistentVolumeClaim::clone(&bound("c", "v"));
    claim.metadata.annotations.insert(annotation::SELECTED_NODE, node);
    Arc::new(claim)
}

fn fail(reason: &str) -> Step {
    Step::Fail(reason.into())
}

/// kubernetes.md 1.5 "PreBind".
#[test]
fn volumes_are_written_before_claims() {
    let fresh = || binding(Some(volume("v", json!({}))), Some(claim("c", json!({}))), false);
    let to_provision = || provision(Some(claim("c", json!({}))), None, false);
    let of_volume = |more: Value| vec![binding(Some(volume("v", more)), Some(claim("c", json!({}))), false)];
    let of_claim = |more: Value| vec![provision(Some(claim("c", more)), None, false)];
    let bound_elsewhere = "pv \"v\" or PVC ns/c was bound by another controller in the meantime";
    for (rule, view, expected) in [
        ("nothing to do", view(vec![], vec![]), Step::Done),
        ("volumes first", view(vec![fresh()], vec![to_provision()]), Step::PreBind(0)),
        (
            "then claims",
            view(
                vec![binding(Some(volume("v", given("c-uid"))), Some(claim("c", json!({}))), true)],
                vec![to_provision()],
            ),
            Step::SelectNode(0),
        ),
        ("reserved by a user", view(of_volume(given("")), vec![]), Step::PreBind(0)),
        ("already written", view(of_volume(given("c-uid")), vec![]), Step::MarkCompleted(Item::Binding(0))),
        ("bound to another claim by now", view(of_volume(given("other")), vec![]), fail(bound_elsewhere)),
        (
            "claim bound by now",
            view(vec![binding(Some(volume("v", json!({}))), Some(bound("c", "w")), false)], vec![]),
            fail(bound_elsewhere),
        ),
        (
            "no such volume",
            view(vec![binding(None, Some(claim("c", json!({}))), false)], vec![]),
            fail("could not find v1.PersistentVolume \"v\""),
        ),
        (
            "already selected",
            view(vec![], of_claim(selecting("n1"))),
            Step::MarkCompleted(Item::Provision(0)),
        ),
        (
            "another node selected by now",
            view(vec![], of_claim(selecting("n2"))),
            fail("PVC ns/c was bound by another controller in the meantime"),
        ),
        (
            "bound by now",
            view(vec![], vec![provision(Some(bound("c", "w")), None, false)]),
            fail("PVC ns/c was bound by another controller in the meantime"),
        ),
        (
            "no such claim",
            view(vec![], vec![provision(None, None, false)]),
            fail("could not find v1.PersistentVolumeClaim \"ns/c\""),
        ),
        (
            "the pod no longer waits",
            View { pod_waiting: false, ..view(vec![fresh()], vec![]) },
            Step::PodGone,
        ),
    ] {
        assert_eq!(decide(&view), expected, "{rule}");
    }
}

/// kubernetes.md 1.5 "Bind wait": what a binding waits for, and what it fails on.
#[test]
fn binding_waits_until_bound_and_fails_when_reset() {
    let one = |volume_says: Value, claim: Arc<_>| {
        view(vec![binding(Some(volume("v", volume_says)), Some(claim), true)], vec![])
    };
    let waiting = || claim("c", json!({}));
    for (rule, view, expected) in [
        ("bound", one(given("c-uid"), bound("c", "v")), Step::Done),
        ("written, and not bound yet", one(given("c-uid"), waiting()), Step::Wait),
        (
            "volumeName set, and not completed",
            one(given("c-uid"), claim("c", json!({"spec": {"volumeName": "v"}}))),
            Step::Wait,
        ),
        (
            "claimRef removed",
            one(json!({}), waiting()),
            fail("binding volumes: ClaimRef got reset for pv \"v\""),
        ),
        (
            "claimRef UID removed",
            one(given(""), waiting()),
            fail("binding volumes: ClaimRef got reset for pv \"v\""),
        ),
        (
            "volume deleted",
            view(vec![binding(None, Some(waiting()), true)], vec![]),
            fail("binding volumes: failed to check binding: could not find v1.PersistentVolume \"v\""),
        ),
        (
            "claim deleted",
            view(vec![binding(Some(volume("v", given("c-uid"))), None, true)], vec![]),
            fail(
                "binding volumes: failed to check binding: could not find v1.PersistentVolumeClaim \"ns/c\"",
            ),
        ),
        (
            "not accessible from the node",
            one(over(given("c-uid"), on("n2")), bound("c", "v")),
            fail(
                "binding volumes: pv \"v\" node affinity doesn't match node \"n1\": no matching NodeSelectorTerms",
            ),
        ),
        (
            "node deleted",
            View { labels: None, ..one(given("c-uid"), bound("c", "v")) },
            fail("binding volumes: failed to get node \"n1\": node \"n1\" not found"),
        ),
        ("pod deleted", View { pod_waiting: false, ..one(given("c-uid"), waiting()) }, Step::PodGone),
    ] {
        assert_eq!(decide(&view), expected, "{rule}");
    }
}

/// kubernetes.md 1.5 "Bind wait": the selected node was cleared or changed; the volume is not accessible from it.
#[test]
fn provision_waits_until_bound_and_fails_when_node_is_reset() {
    let one = |claim: Arc<_>, volume: Option<_>| view(vec![], vec![provision(Some(claim), volume, true)]);
    for (rule, view, expected) in [
        ("bound", one(complete("n1"), Some(volume("v", on("n1")))), Step::Done),
        ("not bound yet", one(claim("c", selecting("n1")), None), Step::Wait),
        ("the watch has not reported its volume", one(complete("n1"), None), Step::Wait),
        (
            "claim deleted",
            view(vec![], vec![provision(None, None, true)]),
            fail(
                "binding volumes: failed to check provisioning pvc: could not find v1.PersistentVolumeClaim \"ns/c\"",
            ),
        ),
        (
            "no annotations at all",
            one(claim("c", json!({})), None),
            fail("binding volumes: selectedNode annotation reset for PVC \"c\""),
        ),
        (
            "selected node cleared",
            one(claim("c", json!({"metadata": {"annotations": {"a": "b"}}})), None),
            fail("binding volumes: provisioning failed for PVC \"c\""),
        ),
        (
            "another node",
            one(claim("c", selecting("n2")), None),
            fail("binding volumes: provisioning failed for PVC \"c\""),
        ),
        (
            "volume not accessible from the node",
            one(complete("n1"), Some(volume("v", on("n2")))),
            fail(
                "binding volumes: pv \"v\" node affinity doesn't match node \"n1\": no matching NodeSelectorTerms",
            ),
        ),
        (
            "a failure ends the wait for others",
            view(
                vec![binding(Some(volume("v", given("c-uid"))), Some(claim("c", json!({}))), true)],
                vec![provision(Some(claim("c", selecting("n2"))), None, true)],
            ),
            fail("binding volumes: provisioning failed for PVC \"c\""),
        ),
    ] {
        assert_eq!(decide(&view), expected, "{rule}");
    }
}
