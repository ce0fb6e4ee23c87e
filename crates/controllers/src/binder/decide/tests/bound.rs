//! Sets 3 and 4: claims that were bound, and volumes that name one.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wharf_model::Key;

use super::super::super::view::{Found, Live};
use super::world::*;
use super::*;

const LOST: &str =
    "claim: Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!";

/// kubernetes.md 1.1 "Bound before"; upstream's set 3.
#[test]
fn set_3() {
    let names = |uid: &str| json!({"spec.claimRef": reference("c", uid), "status.phase": "Bound"});
    for (id, volumes, claim, state, told) in [
        (
            "3-1 it names no volume",
            vec![],
            bound_claim("c", "", json!({})),
            &["c Lost - - +done +ctl"][..],
            &[
                "claim: Warning ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            ][..],
        ),
        (
            "3-2 its volume is gone",
            vec![],
            bound_claim("c", "v", json!({})),
            &["c Lost v - +done +ctl"],
            &[LOST],
        ),
        (
            "3-2 and that was told",
            vec![],
            bound_claim("c", "v", json!({"status": {"phase": "Lost"}})),
            &["c Lost v - +done +ctl"],
            &[],
        ),
        (
            "3-3 its volume names nobody",
            vec![volume("v", json!({"status.phase": "Available"}))],
            bound_claim("c", "v", json!({})),
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "3-4 its volume names it, and is not bound",
            vec![volume("v", json!({"spec.claimRef": reference("c", "uid")}))],
            bound_claim("c", "v", json!({"status": {"phase": "Pending"}})),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "3-5 all is well",
            vec![volume("v", names("uid"))],
            bound_claim("c", "v", json!({})),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "3-6 its volume is another's",
            vec![volume("v", json!({"spec.claimRef": reference("other", "x"), "status.phase": "Released"}))],
            bound_claim("c", "v", json!({})),
            &["v Released other:x", "c Lost v - +done +ctl"],
            &[
                "claim: Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly",
            ],
        ),
        (
            "3-6 its volume is a namesake's",
            vec![volume("v", names("earlier"))],
            bound_claim("c", "v", json!({})),
            &["v Released c:earlier", "c Lost v - +done +ctl"],
            &[
                "claim: Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly",
            ],
        ),
        (
            "3-7 the selector is not asked any more",
            vec![volume("v", json!({}))],
            bound_claim("c", "v", json!({"spec.selector": {"matchLabels": {"zone": "a"}}})),
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "a lost volume is found again",
            vec![volume("v", names("uid"))],
            bound_claim("c", "v", json!({"status": {"phase": "Lost"}})),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
    ] {
        check(id, &World { volumes, claims: vec![claim], ..World::default() }, state, told);
    }
}

/// Fail closed: absence from our stores loses no claim and releases no volume.
#[test]
fn the_server_is_asked_before_anything_is_lost() {
    let unseen = |name: &str| BTreeSet::from([name.to_owned()]);
    // A volume that our store does not have yet.
    let volumes = vec![volume("v", json!({"spec.claimRef": reference("c", "uid"), "status.phase": "Bound"}))];
    let mut world = World {
        volumes: volumes.clone(),
        claims: vec![bound_claim("c", "v", json!({}))],
        unseen: unseen("v"),
        ..World::default()
    };
    world.run(usize::MAX);
    assert_eq!(
        (world.state(), world.asked()),
        (vec!["v Bound c:uid".into(), "c Bound v 1Gi +done +ctl".into()], 1)
    );
    // One that is lost already is not asked for again and again.
    let lost = bound_claim("c", "v", json!({"status": {"phase": "Lost"}}));
    let mut world = World { claims: vec![lost], ..World::default() };
    world.run(usize::MAX);
    assert_eq!(world.asked(), 0);
    // 4-12: a claim that our store does not have yet.
    let mut world = World {
        volumes,
        claims: vec![bound_claim("c", "v", json!({}))],
        unseen: unseen("c"),
        ..World::default()
    };
    world.run(usize::MAX);
    assert_eq!(
        (world.state(), world.asked()),
        (vec!["v Bound c:uid".into(), "c Bound v 1Gi +done +ctl".into()], 1)
    );
}

/// The server has the claim, our store has not, whatever the reason: that releases no volume.
#[test]
fn a_claim_that_is_there_is_believed() {
    let names = json!({"spec.claimRef": reference("c", "uid"), "status.phase": "Bound"});
    let world = World { volumes: vec![volume("v", names)], ..World::default() };
    for (found, step) in [
        (Found::There("uid".into()), Step::AskClaim),
        (
            Found::There("later".into()),
            Step::VolumePhase { volume: "v".into(), phase: VolumePhase::Released, told: None },
        ),
        (Found::Gone, Step::VolumePhase { volume: "v".into(), phase: VolumePhase::Released, told: None }),
    ] {
        let live = Live { claim: Some(found.clone()), ..Live::default() };
        assert_eq!(decide(&world.look(&Key::namespaced("ns", "c"), &live)), step, "{found:?}");
    }
}

/// An answer about another volume or node proves nothing of this one.
#[test]
fn answers_are_about_what_was_asked() {
    let key = Key::namespaced("ns", "c");
    let there = || Found::There("x".into());
    let world = World { claims: vec![bound_claim("c", "v", json!({}))], ..World::default() };
    for (asked, found, lost) in [("v", Found::Gone, true), ("w", Found::Gone, false), ("v", there(), false)] {
        let live = Live { volume: Some((asked.into(), found.clone())), ..Live::default() };
        let step = decide(&world.look(&key, &live));
        match lost {
            true => assert!(matches!(step, Step::ClaimPhase { phase: ClaimPhase::Lost, .. }), "{step:?}"),
            false => assert_eq!(step, Step::AskVolume { name: "v".into() }, "{asked} {found:?}"),
        }
    }
    // What our store has of the volume may be of the time before it was given to this claim.
    let world = World {
        volumes: vec![volume("v", json!({"spec.claimRef": reference("d", "before")}))],
        claims: vec![bound_claim("c", "v", json!({}))],
        ..World::default()
    };
    for (asked, lost) in [(None, false), (Some("w"), false), (Some("v"), true)] {
        let live = Live { volume: asked.map(|asked| (asked.into(), there())), ..Live::default() };
        let step = decide(&world.look(&key, &live));
        assert_eq!(matches!(step, Step::ClaimPhase { phase: ClaimPhase::Lost, .. }), lost, "{step:?}");
        assert_eq!(step == Step::AskVolume { name: "v".into() }, !lost, "{asked:?}");
    }
    let chosen =
        json!({"spec.storageClassName": "gold", "annotations": ["volume.kubernetes.io/selected-node=n"]});
    let world = World {
        claims: vec![claim("c", chosen)],
        classes: vec![storage_class("gold", json!({"volumeBindingMode": "WaitForFirstConsumer"}))],
        ..World::default()
    };
    let ask = || Step::AskNode { name: "n".into() };
    for (asked, found, step) in [
        ("n", Found::Gone, Step::ClearSelectedNode),
        ("m", Found::Gone, ask()),
        ("n", there(), Step::HandOver { provisioner: "d.test".into() }),
        ("m", there(), ask()),
    ] {
        let live = Live { node: Some((asked.into(), found.clone())), ..Live::default() };
        assert_eq!(decide(&world.look(&key, &live)), step, "{asked} {found:?}");
    }
}

/// kubernetes.md 1.1 "Volume phase", "Claim gone", "Claim elsewhere"; upstream's set 4.
#[test]
fn set_4() {
    let names = |uid: &str, phase: &str, more: Value| {
        let mut all = json!({"spec.claimRef": reference("c", uid), "status.phase": phase});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        volume("v", all)
    };
    let elsewhere =
        || vec![volume("w", json!({"spec.claimRef": reference("c", "uid"), "status.phase": "Bound"}))];
    let and = |volume: Value| {
        let mut volumes = elsewhere();
        volumes.push(volume);
        volumes
    };
    let bound = |volume: &str| vec![bound_claim("c", volume, json!({}))];
    let (w, c) = ("w Bound c:uid", "c Bound w 1Gi +done +ctl");
    for (id, volumes, claims, state, asked) in [
        ("4-1 new", vec![volume("v", json!({"status.phase": "Pending"}))], vec![], &["v Available -"][..], 0),
        ("4-2 new and reserved", vec![names("", "Pending", json!({}))], vec![], &["v Available c:"], 0),
        (
            "its claim was taken out",
            vec![volume("v", json!({"status.phase": "Released"}))],
            vec![],
            &["v Available -"],
            0,
        ),
        ("4-3 its claim is gone", vec![names("uid", "Bound", json!({}))], vec![], &["v Released c:uid"], 1),
        (
            "4-3 and that is known",
            vec![names("uid", "Released", json!({}))],
            vec![],
            &["v Released c:uid"],
            0,
        ),
        (
            "4-4 a namesake of its claim is there",
            vec![names("earlier", "Bound", json!({}))],
            vec![claim("c", json!({"spec.storageClassName": "none"}))],
            &["v Released c:earlier", "c Pending - - none"],
            1,
        ),
        (
            "4-5 its claim is to be bound",
            vec![names("uid", "Bound", json!({"annotations": ["ctl"]}))],
            vec![claim("c", json!({}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            0,
        ),
        (
            "4-6 its claim is bound to it",
            vec![names("uid", "Released", json!({}))],
            bound("v"),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            0,
        ),
        (
            "4-7 a controller bound it, the claim has another",
            and(names("uid", "Bound", json!({"annotations": ["ctl"]}))),
            bound("w"),
            &[w, "v Available -", c],
            0,
        ),
        (
            "4-8 a person reserved it, the claim has another",
            and(names("uid", "Bound", json!({}))),
            bound("w"),
            &[w, "v Available c:", c],
            0,
        ),
        (
            "4-9, 8-12 made for the claim, which has another",
            and(names(
                "uid",
                "Bound",
                json!({"annotations": ["ctl", "made"], "spec.persistentVolumeReclaimPolicy": "Delete"}),
            )),
            bound("w"),
            &[w, "v Released c:uid +ctl", c],
            1,
        ),
        (
            "made for the claim, but to be retained",
            and(names("uid", "Bound", json!({"annotations": ["ctl", "made"]}))),
            bound("w"),
            &[w, "v Available -", c],
            0,
        ),
        (
            "not made for the claim, though to be deleted",
            and(names(
                "uid",
                "Bound",
                json!({"annotations": ["ctl"], "spec.persistentVolumeReclaimPolicy": "Delete"}),
            )),
            bound("w"),
            &[w, "v Available -", c],
            0,
        ),
    ] {
        let world = World { volumes, claims, ..World::default() };
        let mut whole = world.clone();
        whole.run(usize::MAX);
        let told = whole.told().into_iter().map(str::to_owned).collect::<Vec<_>>();
        check(id, &world, state, &told.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(whole.asked(), asked, "{id}: questions");
    }
}
