//! The cases of upstream's FindPodVolumes tests, reimplemented.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::claims;
use super::super::testing::{bound as bound_claim, claim, class, node_info, on, over, view_of, volume};
use super::*;

fn found(view: &View) -> FindResult {
    find_pod_volumes(view, &claims::classify(view).unwrap(), &node_info(json!({})))
}

/// The plan: pairs of volume and claim, and claims to provision.
fn plan(view: &View) -> (Vec<(String, String)>, Vec<String>) {
    let FindResult::Plan(plan) = found(view) else { panic!("no plan: {:?}", found(view)) };
    let name = |meta: &wharf_model::Meta| meta.name.clone();
    let bindings = plan.bindings.iter();
    (
        bindings.map(|binding| (name(&binding.volume.metadata), name(&binding.claim.metadata))).collect(),
        plan.provisions.iter().map(|claim| name(&claim.metadata)).collect(),
    )
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(volume, claim)| (volume.into(), claim.into())).collect()
}

/// A view whose class has no provisioner, with these volumes available.
fn fixed(claims: Vec<Arc<PersistentVolumeClaim>>, volumes: &[Arc<PersistentVolume>]) -> View {
    let mut view = dynamic(claims, volumes);
    view.classes.insert("wait".into(), class("wait", json!({"provisioner": NO_PROVISIONER})));
    view
}

/// A view whose class has a provisioner, with these volumes available.
fn dynamic(claims: Vec<Arc<PersistentVolumeClaim>>, volumes: &[Arc<PersistentVolume>]) -> View {
    let mut view = view_of(claims);
    for name in view.claims.keys() {
        view.candidates.insert(name.clone(), volumes.to_vec());
    }
    for volume in volumes {
        view.volumes.insert(volume.metadata.name.clone(), Arc::clone(volume));
    }
    view
}

/// A volume that is bound to claim `b`.
fn owned(node: &str) -> Arc<PersistentVolume> {
    let claim = json!({"namespace": "ns", "name": "b", "uid": "b-uid"});
    volume("own", over(json!({"spec": {"claimRef": claim}, "status": {"phase": "Bound"}}), on(node)))
}

fn sized(size: &str, on: Value) -> Value {
    over(json!({"spec": {"capacity": {"storage": size}}}), on)
}

fn asking(name: &str, size: &str) -> Arc<PersistentVolumeClaim> {
    claim(name, json!({"spec": {"resources": {"requests": {"storage": size}}}}))
}

/// kubernetes.md 1.5 "Bound volumes".
#[test]
fn bound_volume_must_be_accessible_from_the_node() {
    let here = dynamic(vec![bound_claim("c", "v")], &[volume("v", on("n1"))]);
    assert_eq!(plan(&here), (vec![], vec![]));
    let anywhere = dynamic(vec![bound_claim("c", "v")], &[volume("v", json!({}))]);
    assert_eq!(plan(&anywhere), (vec![], vec![]));
    let elsewhere = dynamic(vec![bound_claim("c", "v")], &[volume("v", on("n2"))]);
    assert_eq!(found(&elsewhere), FindResult::Conflicts(vec![NODE_AFFINITY_CONFLICT]));

    let mut without_volume = dynamic(vec![bound_claim("c", "v")], &[volume("v", json!({}))]);
    let pod_claims = claims::classify(&without_volume).unwrap();
    without_volume.volumes.clear();
    assert_eq!(
        find_pod_volumes(&without_volume, &pod_claims, &node_info(json!({}))),
        FindResult::Conflicts(vec![PV_NOT_EXIST])
    );
}

/// kubernetes.md 1.5 "Static volumes", "Selected node": smallest claims first, chosen volumes excluded.
#[test]
fn unbound_claims_take_existing_volumes() {
    let (small, large) = (volume("small", on("n1")), volume("large", sized("5Gi", on("n1"))));
    let far = volume("far", on("n2"));
    let one = |volumes: &[_]| fixed(vec![asking("a", "1Gi")], volumes);
    let two = |volumes: &[_]| fixed(vec![asking("a", "5Gi"), asking("b", "1Gi")], volumes);

    assert_eq!(plan(&one(&[far.clone(), large.clone(), small.clone()])).0, pairs(&[("small", "a")]));
    assert_eq!(found(&one(std::slice::from_ref(&far))), FindResult::Conflicts(vec![BIND_CONFLICT]));
    assert_eq!(
        plan(&two(&[large.clone(), small.clone()])).0,
        pairs(&[("small", "b"), ("large", "a")]),
        "the smaller claim first, so that it leaves the larger volume"
    );
    assert_eq!(found(&two(std::slice::from_ref(&small))), FindResult::Conflicts(vec![BIND_CONFLICT]));
    assert_eq!(
        found(&fixed(vec![asking("a", "1Gi"), asking("b", "1Gi")], std::slice::from_ref(&small))),
        FindResult::Conflicts(vec![BIND_CONFLICT]),
        "one volume does not serve two claims"
    );

    let mixed = fixed(vec![asking("a", "1Gi"), bound_claim("b", "own")], &[small.clone(), owned("n1")]);
    assert_eq!(plan(&mixed).0, pairs(&[("small", "a")]));
    let no_match = fixed(vec![asking("a", "1Gi"), bound_claim("b", "own")], &[far, owned("n2")]);
    assert_eq!(found(&no_match), FindResult::Conflicts(vec![NODE_AFFINITY_CONFLICT, BIND_CONFLICT]));

    // A volume that is reserved for the claim is used, even if a smaller one is available. A volume that is reserved
    // for another claim is not.
    let reserved = |uid: &str, on: Value| {
        over(json!({"spec": {"claimRef": {"namespace": "ns", "name": "a", "uid": uid}}}), sized("5Gi", on))
    };
    let own = volume("own", reserved("", on("n1")));
    assert_eq!(plan(&one(&[small.clone(), own])).0, pairs(&[("own", "a")]));
    let own_elsewhere = volume("own", reserved("a-uid", on("n2")));
    assert_eq!(found(&one(&[small.clone(), own_elsewhere])), FindResult::Conflicts(vec![BIND_CONFLICT]));
    let foreign = volume("other", reserved("old-uid", on("n1")));
    assert_eq!(plan(&one(&[small, foreign])).0, pairs(&[("small", "a")]));
}

/// kubernetes.md 1.5 "Dynamic provisioning".
#[test]
fn unmatched_claims_are_provisioned() {
    let one = |more: Value| dynamic(vec![claim("a", more)], &[]);
    assert_eq!(plan(&one(json!({}))), (vec![], vec!["a".into()]));

    let (small, claims_to_match) = (volume("small", on("n1")), vec![asking("a", "5Gi"), asking("b", "1Gi")]);
    assert_eq!(plan(&dynamic(claims_to_match, &[small])), (pairs(&[("small", "b")]), vec!["a".into()]));

    let own = owned("n1");
    let mixed = dynamic(vec![bound_claim("b", "own"), claim("a", json!({}))], &[own]);
    assert_eq!(plan(&mixed), (vec![], vec!["a".into()]));

    let selected = |node: &str| json!({"metadata": {"annotations": {annotation::SELECTED_NODE: node}}});
    assert_eq!(plan(&one(selected("n1"))).1, ["a"]);
    assert_eq!(found(&one(selected("n2"))), FindResult::Conflicts(vec![BIND_CONFLICT]));
    // With a selected node, the volume is already being provisioned: an existing one is not used.
    let chosen = dynamic(vec![claim("a", selected("n1"))], &[volume("v", on("n1"))]);
    assert_eq!(plan(&chosen), (vec![], vec!["a".into()]));

    for (rule, class_says, expected) in [
        ("no provisioner", json!({"provisioner": ""}), false),
        ("no-provisioner", json!({"provisioner": NO_PROVISIONER}), false),
        (
            "topology not allowed",
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "host", "values": ["n2"]}]}]}),
            false,
        ),
        (
            "topology allowed",
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "host", "values": ["n1", "n2"]}]}]}),
            true,
        ),
    ] {
        let mut view = one(json!({}));
        view.classes.insert("wait".into(), class("wait", class_says));
        let plans = matches!(found(&view), FindResult::Plan(_));
        assert_eq!(plans, expected, "{rule}");
        if !plans {
            assert_eq!(found(&view), FindResult::Conflicts(vec![BIND_CONFLICT]), "{rule}");
        }
    }
    let mut classless = one(json!({}));
    let pod_claims = claims::classify(&classless).unwrap();
    classless.classes.clear();
    assert_eq!(
        find_pod_volumes(&classless, &pod_claims, &node_info(json!({}))),
        FindResult::Error("failed to find storage class \"wait\"".into())
    );
}

proptest! {
    /// Each claim gets one volume, existing or provisioned; no volume is used twice, and none is too small.
    #[test]
    fn plan_gives_each_claim_one_sufficient_volume(
        sizes in prop::collection::vec(1..5i64, 1..5),
        volumes in prop::collection::vec((1..5i64, any::<bool>()), 0..6),
    ) {
        let claims = sizes.iter().enumerate().map(|(i, size)| asking(&format!("c{i}"), &format!("{size}Gi")));
        let volumes: Vec<_> = volumes
            .iter()
            .enumerate()
            .map(|(i, (size, here))| {
                volume(&format!("v{i}"), sized(&format!("{size}Gi"), on(if *here { "n1" } else { "n2" })))
            })
            .collect();
        let FindResult::Plan(plan) = found(&dynamic(claims.collect(), &volumes)) else { panic!("no plan") };
        prop_assert_eq!(plan.bindings.len() + plan.provisions.len(), sizes.len());
        let given: BTreeSet<&str> =
            plan.bindings.iter().map(|binding| binding.volume.metadata.name.as_str()).collect();
        prop_assert_eq!(given.len(), plan.bindings.len());
        for Binding { volume, claim } in &plan.bindings {
            prop_assert!(volume.spec.capacity.storage >= claim.requested_storage());
            let labels = node_info(json!({})).labels;
            prop_assert!(is_accessible_from(volume.spec.node_affinity.as_ref(), "n1", &labels));
        }
    }
}

/// Only an empty plan needs no writes.
#[test]
fn plan_is_empty_without_bindings_and_provisions() {
    let binding = || Binding { volume: Arc::default(), claim: Arc::default() };
    for (bindings, provisions, empty) in [
        (vec![], vec![], true),
        (vec![binding()], vec![], false),
        (vec![], vec![Arc::default()], false),
        (vec![binding()], vec![Arc::default()], false),
    ] {
        assert_eq!(Plan { bindings, provisions }.is_empty(), empty);
    }
}
