//! Facts of upstream's BindAPIUpdate and CheckBindings tests, told anew.

use serde_json::{Value, json};

use super::super::super::testing::{bound, claim, on, over, volume};
use super::*;

fn view(bindings: Vec<Binding>, provisions: Vec<Provision>) -> View {
    let labels = [("host".to_owned(), "n1".to_owned())].into();
    View { waits: true, node: "n1".into(), labels: Some(labels), bindings, provisions }
}

fn binding(
    volume: Option<Arc<PersistentVolume>>,
    claim: Option<Arc<PersistentVolumeClaim>>,
    written: bool,
) -> Binding {
    Binding { volume_name: "v".into(), claim_key: Key::namespaced("ns", "c"), volume, claim, written }
}

fn provision(
    claim: Option<Arc<PersistentVolumeClaim>>,
    volume: Option<Arc<PersistentVolume>>,
    written: bool,
) -> Provision {
    Provision { claim_key: Key::namespaced("ns", "c"), claim, volume, written }
}

fn given(uid: &str) -> Value {
    json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": uid}}})
}

fn selecting(node: &str) -> Value {
    json!({"metadata": {"annotations": {annotation::SELECTED_NODE: node}}})
}

/// A claim that has its volume and its node.
fn complete(node: &str) -> Arc<PersistentVolumeClaim> {
    let mut claim = PersistentVolumeClaim::clone(&bound("c", "v"));
    claim.metadata.annotations.insert(annotation::SELECTED_NODE, node);
    Arc::new(claim)
}

fn fail(why: &str) -> Step {
    Step::Fail(why.into())
}

/// kubernetes.md 1.5 "PreBind".
#[test]
fn what_is_written_and_in_which_order() {
    let fresh = || binding(Some(volume("v", json!({}))), Some(claim("c", json!({}))), false);
    let to_provision = || provision(Some(claim("c", json!({}))), None, false);
    let of_volume = |more: Value| vec![binding(Some(volume("v", more)), Some(claim("c", json!({}))), false)];
    let of_claim = |more: Value| vec![provision(Some(claim("c", more)), None, false)];
    let meanwhile = "pv \"v\" or PVC ns/c was bound by somebody else meanwhile";
    for (rule, view, expected) in [
        ("nothing to do", view(vec![], vec![]), Step::Done),
        ("volumes first", view(vec![fresh()], vec![to_provision()]), Step::PreBind(0)),
        (
            "then claims",
            view(
                vec![binding(Some(volume("v", given("c-uid"))), Some(claim("c", json!({}))), true)],
                vec![to_provision()],
            ),
            Step::Select(0),
        ),
        ("reserved by hand", view(of_volume(given("")), vec![]), Step::PreBind(0)),
        ("given already", view(of_volume(given("c-uid")), vec![]), Step::Adopt(Item::Binding(0))),
        ("another's by now", view(of_volume(given("other")), vec![]), fail(meanwhile)),
        (
            "the claim is bound by now",
            view(vec![binding(Some(volume("v", json!({}))), Some(bound("c", "w")), false)], vec![]),
            fail(meanwhile),
        ),
        (
            "no such volume",
            view(vec![binding(None, Some(claim("c", json!({}))), false)], vec![]),
            fail("could not find v1.PersistentVolume \"v\""),
        ),
        ("selected already", view(vec![], of_claim(selecting("n1"))), Step::Adopt(Item::Provision(0))),
        (
            "selected for another node by now",
            view(vec![], of_claim(selecting("n2"))),
            fail("PVC ns/c was bound by somebody else meanwhile"),
        ),
        (
            "bound by now",
            view(vec![], vec![provision(Some(bound("c", "w")), None, false)]),
            fail("PVC ns/c was bound by somebody else meanwhile"),
        ),
        (
            "no such claim",
            view(vec![], vec![provision(None, None, false)]),
            fail("could not find v1.PersistentVolumeClaim \"ns/c\""),
        ),
        ("nobody waits", View { waits: false, ..view(vec![fresh()], vec![]) }, Step::Gone),
    ] {
        assert_eq!(decide(&view), expected, "{rule}");
    }
}

/// kubernetes.md 1.5 "Bind wait": what it waits for, and what it fails on.
#[test]
fn bindings_are_checked() {
    let one = |volume_says: Value, claim: Arc<_>| {
        view(vec![binding(Some(volume("v", volume_says)), Some(claim), true)], vec![])
    };
    let waiting = || claim("c", json!({}));
    for (rule, view, expected) in [
        ("bound", one(given("c-uid"), bound("c", "v")), Step::Done),
        ("given, and not bound yet", one(given("c-uid"), waiting()), Step::Wait),
        (
            "named, and not completed",
            one(given("c-uid"), claim("c", json!({"spec": {"volumeName": "v"}}))),
            Step::Wait,
        ),
        ("taken back", one(json!({}), waiting()), fail("binding volumes: ClaimRef got reset for pv \"v\"")),
        (
            "taken back half",
            one(given(""), waiting()),
            fail("binding volumes: ClaimRef got reset for pv \"v\""),
        ),
        (
            "the volume is gone",
            view(vec![binding(None, Some(waiting()), true)], vec![]),
            fail("binding volumes: failed to check binding: could not find v1.PersistentVolume \"v\""),
        ),
        (
            "the claim is gone",
            view(vec![binding(Some(volume("v", given("c-uid"))), None, true)], vec![]),
            fail(
                "binding volumes: failed to check binding: could not find v1.PersistentVolumeClaim \"ns/c\"",
            ),
        ),
        (
            "out of reach",
            one(over(given("c-uid"), on("n2")), bound("c", "v")),
            fail(
                "binding volumes: pv \"v\" node affinity doesn't match node \"n1\": no matching NodeSelectorTerms",
            ),
        ),
        (
            "the node is gone",
            View { labels: None, ..one(given("c-uid"), bound("c", "v")) },
            fail("binding volumes: failed to get node \"n1\": node \"n1\" not found"),
        ),
        ("the pod is gone", View { waits: false, ..one(given("c-uid"), waiting()) }, Step::Gone),
    ] {
        assert_eq!(decide(&view), expected, "{rule}");
    }
}

/// kubernetes.md 1.5 "Bind wait": the chosen node was taken off or changed; the volume does not reach it.
#[test]
fn provisions_are_checked() {
    let one = |claim: Arc<_>, volume: Option<_>| view(vec![], vec![provision(Some(claim), volume, true)]);
    for (rule, view, expected) in [
        ("bound", one(complete("n1"), Some(volume("v", on("n1")))), Step::Done),
        ("not bound yet", one(claim("c", selecting("n1")), None), Step::Wait),
        ("the watch has not told of its volume", one(complete("n1"), None), Step::Wait),
        (
            "the claim is gone",
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
            "the node was taken back",
            one(claim("c", json!({"metadata": {"annotations": {"a": "b"}}})), None),
            fail("binding volumes: provisioning failed for PVC \"c\""),
        ),
        (
            "another node",
            one(claim("c", selecting("n2")), None),
            fail("binding volumes: provisioning failed for PVC \"c\""),
        ),
        (
            "a volume out of reach",
            one(complete("n1"), Some(volume("v", on("n2")))),
            fail(
                "binding volumes: pv \"v\" node affinity doesn't match node \"n1\": no matching NodeSelectorTerms",
            ),
        ),
        (
            "what fails is not waited for",
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
