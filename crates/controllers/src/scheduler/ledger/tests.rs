//! Promises: made, shown, kept and forgotten.

use serde_json::json;

use super::super::testing::{claim, pod_with, volume};
use super::super::volumes::Binding;
use super::*;

fn named(name: &str, uid: &str, node: &str) -> Arc<Pod> {
    let mut pod = Pod::clone(&pod_with(&["c", "d"]));
    pod.metadata.name = name.into();
    pod.metadata.uid = uid.into();
    pod.spec.node_name = node.into();
    Arc::new(pod)
}

fn plan() -> Plan {
    let binding = Binding { volume: volume("v", json!({})), claim: claim("c", json!({})) };
    Plan { bindings: vec![binding], provisions: vec![claim("d", json!({}))] }
}

fn pods_on(ledger: &Ledger, node: &str) -> usize {
    ledger.on(node).count()
}

/// kubernetes.md 1.5 "Reserve": what is promised, and what is given back.
#[test]
fn what_is_promised_is_seen() {
    let (mut ledger, pod) = (Ledger::default(), named("p", "u", ""));
    ledger.promise(&pod, "n1", &plan());
    assert_eq!((pods_on(&ledger, "n1"), pods_on(&ledger, "n2")), (1, 0));
    assert_eq!(ledger.volumes()["v"].metadata.name, "c");
    assert_eq!(ledger.claims()[&Key::namespaced("ns", "d")].1, "n1");
    let other = Key::namespaced("ns", "q");
    assert!(ledger.uses(Some("ns"), "c", &other));
    assert!(!ledger.uses(Some("ns"), "e", &other) && !ledger.uses(Some("other"), "c", &other));
    assert!(!ledger.uses(Some("ns"), "c", &pod.metadata.key()), "its own use is none");

    // Another pod of that name has no say in it.
    ledger.release(&named("p", "another", ""));
    assert_eq!(pods_on(&ledger, "n1"), 1);
    ledger.release(&pod);
    assert_eq!(pods_on(&ledger, "n1"), 0);
    assert!(ledger.volumes().is_empty() && ledger.claims().is_empty());
}

/// A place is kept until the pod is seen there; volumes are written by then.
#[test]
fn a_place_is_kept_until_it_is_seen() {
    for kept in [Kept::Bound, Kept::Perhaps] {
        let (mut ledger, pod) = (Ledger::default(), named("p", "u", ""));
        ledger.promise(&pod, "n1", &plan());
        ledger.settle(|_| None);
        assert_eq!(pods_on(&ledger, "n1"), 1, "while it is being bound, it ends by itself");
        assert!(!ledger.is_bound(&pod));
        ledger.keep(&pod, kept);
        assert_eq!(ledger.is_bound(&pod), kept == Kept::Bound);
        assert!(ledger.volumes().is_empty() && ledger.claims().is_empty());
        ledger.settle(|_| Some(named("p", "u", "")));
        assert_eq!(pods_on(&ledger, "n1"), 1, "not seen yet");
        let mut gone = Ledger::default();
        gone.promise(&pod, "n1", &Plan::default());
        gone.keep(&pod, kept);
        gone.settle(|_| Some(named("p", "another", "")));
        assert_eq!(pods_on(&gone, "n1"), 0, "another of its name");
        ledger.settle(|_| Some(named("p", "u", "n1")));
        assert_eq!(pods_on(&ledger, "n1"), 0, "seen");
    }
}

/// kubernetes.md 1.5 "Reserve": volumes and claims as they will be.
#[test]
fn objects_as_they_will_be() {
    let (volume, claim) = (volume("v", json!({})), claim("c", json!({})));
    assert!(taken(&volume, &claim).is_bound_to(&claim.metadata));
    assert!(volume.spec.claim_ref.is_none());
    assert_eq!(selected(&claim, "n1").selected_node(), Some("n1"));
}
