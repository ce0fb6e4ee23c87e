//! Facts of upstream's FindPodVolumes tests, told anew.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::claims;
use super::super::testing::{bound as bound_claim, claim, class, on, over, place, view_of, volume};
use super::*;

fn found(view: &View) -> Found {
    find(view, &claims::sort(view).unwrap(), &place(json!({})))
}

/// What is planned: volume for claim, and claims that get new ones.
fn plan(view: &View) -> (Vec<(String, String)>, Vec<String>) {
    let Found::Plan(plan) = found(view) else { panic!("no plan: {:?}", found(view)) };
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

/// A view whose classes have no provisioner, with these volumes to be had.
fn fixed(claims: Vec<Arc<PersistentVolumeClaim>>, volumes: &[Arc<PersistentVolume>]) -> View {
    let mut view = dynamic(claims, volumes);
    view.classes.insert("wait".into(), class("wait", json!({"provisioner": NO_PROVISIONER})));
    view
}

/// The same, and what is not there is made.
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

/// The volume of the claim `b`.
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
fn volumes_that_are_bound() {
    let here = dynamic(vec![bound_claim("c", "v")], &[volume("v", on("n1"))]);
    assert_eq!(plan(&here), (vec![], vec![]));
    let anywhere = dynamic(vec![bound_claim("c", "v")], &[volume("v", json!({}))]);
    assert_eq!(plan(&anywhere), (vec![], vec![]));
    let elsewhere = dynamic(vec![bound_claim("c", "v")], &[volume("v", on("n2"))]);
    assert_eq!(found(&elsewhere), Found::Conflicts(vec![UNREACHABLE]));

    let mut gone = dynamic(vec![bound_claim("c", "v")], &[volume("v", json!({}))]);
    let sorted = claims::sort(&gone).unwrap();
    gone.volumes.clear();
    assert_eq!(find(&gone, &sorted, &place(json!({}))), Found::Conflicts(vec![NO_SUCH_VOLUME]));
}

/// kubernetes.md 1.5 "Static", "Chosen node": claims by size, chosen volumes excluded.
#[test]
fn volumes_that_are_there() {
    let (small, large) = (volume("small", on("n1")), volume("large", sized("5Gi", on("n1"))));
    let far = volume("far", on("n2"));
    let one = |volumes: &[_]| fixed(vec![asking("a", "1Gi")], volumes);
    let two = |volumes: &[_]| fixed(vec![asking("a", "5Gi"), asking("b", "1Gi")], volumes);

    assert_eq!(plan(&one(&[far.clone(), large.clone(), small.clone()])).0, pairs(&[("small", "a")]));
    assert_eq!(found(&one(std::slice::from_ref(&far))), Found::Conflicts(vec![NO_VOLUME]));
    assert_eq!(
        plan(&two(&[large.clone(), small.clone()])).0,
        pairs(&[("small", "b"), ("large", "a")]),
        "the smaller claim first, or it would take what the larger needs"
    );
    assert_eq!(found(&two(std::slice::from_ref(&small))), Found::Conflicts(vec![NO_VOLUME]));
    assert_eq!(
        found(&fixed(vec![asking("a", "1Gi"), asking("b", "1Gi")], std::slice::from_ref(&small))),
        Found::Conflicts(vec![NO_VOLUME]),
        "no volume for two"
    );

    let mixed = fixed(vec![asking("a", "1Gi"), bound_claim("b", "own")], &[small.clone(), owned("n1")]);
    assert_eq!(plan(&mixed).0, pairs(&[("small", "a")]));
    let no_match = fixed(vec![asking("a", "1Gi"), bound_claim("b", "own")], &[far, owned("n2")]);
    assert_eq!(found(&no_match), Found::Conflicts(vec![UNREACHABLE, NO_VOLUME]));

    // One that was reserved for the claim, even if a smaller one is free; and one of another's.
    let reserved = |uid: &str, on: Value| {
        over(json!({"spec": {"claimRef": {"namespace": "ns", "name": "a", "uid": uid}}}), sized("5Gi", on))
    };
    let own = volume("own", reserved("", on("n1")));
    assert_eq!(plan(&one(&[small.clone(), own])).0, pairs(&[("own", "a")]));
    let own_elsewhere = volume("own", reserved("a-uid", on("n2")));
    assert_eq!(found(&one(&[small.clone(), own_elsewhere])), Found::Conflicts(vec![NO_VOLUME]));
    let anothers = volume("other", reserved("old-uid", on("n1")));
    assert_eq!(plan(&one(&[small, anothers])).0, pairs(&[("small", "a")]));
}

/// kubernetes.md 1.5 "Provision".
#[test]
fn volumes_that_are_made() {
    let one = |more: Value| dynamic(vec![claim("a", more)], &[]);
    assert_eq!(plan(&one(json!({}))), (vec![], vec!["a".into()]));

    let (small, asks) = (volume("small", on("n1")), vec![asking("a", "5Gi"), asking("b", "1Gi")]);
    assert_eq!(plan(&dynamic(asks, &[small])), (pairs(&[("small", "b")]), vec!["a".into()]));

    let own = owned("n1");
    let mixed = dynamic(vec![bound_claim("b", "own"), claim("a", json!({}))], &[own]);
    assert_eq!(plan(&mixed), (vec![], vec!["a".into()]));

    let selected = |node: &str| json!({"metadata": {"annotations": {annotation::SELECTED_NODE: node}}});
    assert_eq!(plan(&one(selected("n1"))).1, ["a"]);
    assert_eq!(found(&one(selected("n2"))), Found::Conflicts(vec![NO_VOLUME]));
    // Its volume is on its way: one that is there is not for it.
    let chosen = dynamic(vec![claim("a", selected("n1"))], &[volume("v", on("n1"))]);
    assert_eq!(plan(&chosen), (vec![], vec!["a".into()]));

    for (rule, class_says, expected) in [
        ("no provisioner", json!({"provisioner": ""}), false),
        ("the one that makes none", json!({"provisioner": NO_PROVISIONER}), false),
        (
            "a place that is not allowed",
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "host", "values": ["n2"]}]}]}),
            false,
        ),
        (
            "a place that is",
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "host", "values": ["n1", "n2"]}]}]}),
            true,
        ),
    ] {
        let mut view = one(json!({}));
        view.classes.insert("wait".into(), class("wait", class_says));
        let plans = matches!(found(&view), Found::Plan(_));
        assert_eq!(plans, expected, "{rule}");
        if !plans {
            assert_eq!(found(&view), Found::Conflicts(vec![NO_VOLUME]), "{rule}");
        }
    }
    let mut classless = one(json!({}));
    let sorted = claims::sort(&classless).unwrap();
    classless.classes.clear();
    assert_eq!(
        find(&classless, &sorted, &place(json!({}))),
        Found::Failed("failed to find storage class \"wait\"".into())
    );
}

proptest! {
    /// Each claim gets one volume, there or to come; no volume is given twice, and none that is too small.
    #[test]
    fn a_plan_adds_up(
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
        let Found::Plan(plan) = found(&dynamic(claims.collect(), &volumes)) else { panic!("no plan") };
        prop_assert_eq!(plan.bindings.len() + plan.provisions.len(), sizes.len());
        let given: BTreeSet<&str> =
            plan.bindings.iter().map(|binding| binding.volume.metadata.name.as_str()).collect();
        prop_assert_eq!(given.len(), plan.bindings.len());
        for Binding { volume, claim } in &plan.bindings {
            prop_assert!(volume.spec.capacity.storage >= claim.requested());
            let labels = place(json!({})).labels;
            prop_assert!(reaches(volume.spec.node_affinity.as_ref(), "n1", &labels));
        }
    }
}

/// Only a plan with nothing in it needs no writes.
#[test]
fn empty_plans() {
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
