//! Assumptions: added, read, retained and dropped.

use serde_json::json;

use super::super::testing::{claim, pod_with, volume};
use super::super::volumes::Binding;
use super::*;

fn named(name: &str, uid: &str, node: &str) -> Arc<Pod> {
    let mut pod = Pod::clone(&pod_with(&["c", "d"]));
    pod.metadata.name = name.into();
    pod.metadata.uid = uid.into();
    pod.node_name = node.into();
    Arc::new(pod)
}

fn plan() -> Plan {
    let binding = Binding { volume: volume("v", json!({})), claim: claim("c", json!({})) };
    Plan { bindings: vec![binding], provisions: vec![claim("d", json!({}))] }
}

fn pods_on(assumed: &AssumeCache, node: &str) -> usize {
    assumed.pods_on(node).count()
}

/// kubernetes.md 1.5 "Reserve": what is assumed, and what is released.
#[test]
fn assumed_pod_occupies_node_and_volumes_until_forgotten() {
    let (mut assumed, pod) = (AssumeCache::default(), named("p", "u", ""));
    assumed.assume(&pod, "n1", &plan());
    assert_eq!((pods_on(&assumed, "n1"), pods_on(&assumed, "n2")), (1, 0));
    assert_eq!(assumed.volumes()["v"].metadata.name, "c");
    assert_eq!(assumed.claims()[&Key::namespaced("ns", "d")].1, "n1");
    let other = Key::namespaced("ns", "q");
    assert!(assumed.claim_in_use(Some("ns"), "c", &other));
    assert!(
        !assumed.claim_in_use(Some("ns"), "e", &other) && !assumed.claim_in_use(Some("other"), "c", &other)
    );
    assert!(!assumed.claim_in_use(Some("ns"), "c", &pod.metadata.key()), "its own use does not count");

    // Another pod of that name does not affect it.
    assumed.forget(&named("p", "another", ""));
    assert_eq!(pods_on(&assumed, "n1"), 1);
    assumed.forget(&pod);
    assert_eq!(pods_on(&assumed, "n1"), 0);
    assert!(assumed.volumes().is_empty() && assumed.claims().is_empty());
}

/// A place is retained until the store shows the pod there; its volumes are written by then.
#[test]
fn place_is_retained_until_the_store_shows_the_pod() {
    for retained in [Retained::Bound, Retained::MaybeBound] {
        let (mut assumed, pod) = (AssumeCache::default(), named("p", "u", ""));
        assumed.assume(&pod, "n1", &plan());
        assumed.prune(|_| None);
        assert_eq!(pods_on(&assumed, "n1"), 1, "not dropped while it is being bound");
        assert!(!assumed.is_bound(&pod));
        assumed.retain_place(&pod, retained);
        assert_eq!(assumed.is_bound(&pod), retained == Retained::Bound);
        assert!(assumed.volumes().is_empty() && assumed.claims().is_empty());
        assumed.prune(|_| Some(named("p", "u", "")));
        assert_eq!(pods_on(&assumed, "n1"), 1, "not in the store yet");
        let mut replaced = AssumeCache::default();
        replaced.assume(&pod, "n1", &Plan::default());
        replaced.retain_place(&pod, retained);
        replaced.prune(|_| Some(named("p", "another", "")));
        assert_eq!(pods_on(&replaced, "n1"), 0, "another pod of that name");
        assumed.prune(|_| Some(named("p", "u", "n1")));
        assert_eq!(pods_on(&assumed, "n1"), 0, "in the store");
    }
}

/// kubernetes.md 1.5 "Reserve": volumes and claims as they will be once written.
#[test]
fn assumed_objects_show_pending_writes() {
    let (volume, claim) = (volume("v", json!({})), claim("c", json!({})));
    assert!(assume_volume(&volume, &claim).is_bound_to(&claim.metadata));
    assert!(volume.spec.claim_ref.is_none());
    assert_eq!(assume_claim(&claim, "n1").selected_node(), Some("n1"));
}
