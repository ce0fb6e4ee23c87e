//! Sets 3 and 4: claims that were bound before, and volumes that reference a claim.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wharf_model::Key;

use super::super::super::view::{LiveObject, LiveReads};
use super::world::*;
use super::*;

const LOST: &str =
    "claim: Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!";

/// kubernetes.md 1.1 "Already bound"; upstream's set 3.
#[test]
fn set_3_bound_claim_is_repaired_or_lost() {
    let names = |uid: &str| json!({"spec.claimRef": reference("c", uid), "status.phase": "Bound"});
    for (id, volumes, claim, state, events) in [
        (
            "3-1 no volumeName",
            vec![],
            bound_claim("c", "", json!({})),
            &["c Lost - - +done +ctl"][..],
            &[
                "claim: Warning ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            ][..],
        ),
        ("3-2 volume deleted", vec![], bound_claim("c", "v", json!({})), &["c Lost v - +done +ctl"], &[LOST]),
        (
            "3-2 volume deleted, event already recorded",
            vec![],
            bound_claim("c", "v", json!({"status": {"phase": "Lost"}})),
            &["c Lost v - +done +ctl"],
            &[],
        ),
        (
            "3-3 volume without claimRef",
            vec![volume("v", json!({"status.phase": "Available"}))],
            bound_claim("c", "v", json!({})),
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "3-4 volume references the claim, but is not bound",
            vec![volume("v", json!({"spec.claimRef": reference("c", "uid")}))],
            bound_claim("c", "v", json!({"status": {"phase": "Pending"}})),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "3-5 nothing to do",
            vec![volume("v", names("uid"))],
            bound_claim("c", "v", json!({})),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "3-6 volume belongs to another claim",
            vec![volume("v", json!({"spec.claimRef": reference("other", "x"), "status.phase": "Released"}))],
            bound_claim("c", "v", json!({})),
            &["v Released other:x", "c Lost v - +done +ctl"],
            &[
                "claim: Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly",
            ],
        ),
        (
            "3-6 volume belongs to an earlier claim of the same name",
            vec![volume("v", names("earlier"))],
            bound_claim("c", "v", json!({})),
            &["v Released c:earlier", "c Lost v - +done +ctl"],
            &[
                "claim: Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly",
            ],
        ),
        (
            "3-7 the selector is ignored",
            vec![volume("v", json!({}))],
            bound_claim("c", "v", json!({"spec.selector": {"matchLabels": {"zone": "a"}}})),
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
        (
            "lost claim whose volume is back",
            vec![volume("v", names("uid"))],
            bound_claim("c", "v", json!({"status": {"phase": "Lost"}})),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            &[],
        ),
    ] {
        check(id, &World { volumes, claims: vec![claim], ..World::default() }, state, events);
    }
}

/// Fail closed: absence from the stores marks no claim lost and releases no volume.
#[test]
fn api_server_is_read_before_claim_is_lost_or_volume_released() {
    let uncached = |name: &str| BTreeSet::from([name.to_owned()]);
    // A volume that the store does not have yet.
    let volumes = vec![volume("v", json!({"spec.claimRef": reference("c", "uid"), "status.phase": "Bound"}))];
    let mut world = World {
        volumes: volumes.clone(),
        claims: vec![bound_claim("c", "v", json!({}))],
        uncached: uncached("v"),
        ..World::default()
    };
    world.run(usize::MAX);
    assert_eq!(
        (world.state(), world.live_reads()),
        (vec!["v Bound c:uid".into(), "c Bound v 1Gi +done +ctl".into()], 1)
    );
    // The volume of a lost claim is not read again.
    let lost = bound_claim("c", "v", json!({"status": {"phase": "Lost"}}));
    let mut world = World { claims: vec![lost], ..World::default() };
    world.run(usize::MAX);
    assert_eq!(world.live_reads(), 0);
    // 4-12: a claim that the store does not have yet.
    let mut world = World {
        volumes,
        claims: vec![bound_claim("c", "v", json!({}))],
        uncached: uncached("c"),
        ..World::default()
    };
    world.run(usize::MAX);
    assert_eq!(
        (world.state(), world.live_reads()),
        (vec!["v Bound c:uid".into(), "c Bound v 1Gi +done +ctl".into()], 1)
    );
}

/// A claim that the API server has and the store lacks releases no volume.
#[test]
fn existing_claim_is_not_released() {
    let names = json!({"spec.claimRef": reference("c", "uid"), "status.phase": "Bound"});
    let world = World { volumes: vec![volume("v", names)], ..World::default() };
    for (found, step) in [
        (LiveObject::Present("uid".into()), Step::FetchClaim),
        (
            LiveObject::Present("later".into()),
            Step::SetVolumePhase { volume: "v".into(), phase: VolumePhase::Released, event: None },
        ),
        (
            LiveObject::Absent,
            Step::SetVolumePhase { volume: "v".into(), phase: VolumePhase::Released, event: None },
        ),
    ] {
        let live = LiveReads { claim: Some(found.clone()), ..LiveReads::default() };
        assert_eq!(decide(&world.view(&Key::namespaced("ns", "c"), &live)), step, "{found:?}");
    }
}

/// A live read of another volume or node proves nothing about this one.
#[test]
fn live_read_counts_only_for_its_object() {
    let key = Key::namespaced("ns", "c");
    let present = || LiveObject::Present("x".into());
    let world = World { claims: vec![bound_claim("c", "v", json!({}))], ..World::default() };
    for (fetched, found, lost) in
        [("v", LiveObject::Absent, true), ("w", LiveObject::Absent, false), ("v", present(), false)]
    {
        let live = LiveReads { volume: Some((fetched.into(), found.clone())), ..LiveReads::default() };
        let step = decide(&world.view(&key, &live));
        match lost {
            true => assert!(matches!(step, Step::SetClaimPhase { phase: ClaimPhase::Lost, .. }), "{step:?}"),
            false => assert_eq!(step, Step::FetchVolume { name: "v".into() }, "{fetched} {found:?}"),
        }
    }
    // The stored volume may be older than its binding to this claim.
    let world = World {
        volumes: vec![volume("v", json!({"spec.claimRef": reference("d", "before")}))],
        claims: vec![bound_claim("c", "v", json!({}))],
        ..World::default()
    };
    for (fetched, lost) in [(None, false), (Some("w"), false), (Some("v"), true)] {
        let live =
            LiveReads { volume: fetched.map(|fetched| (fetched.into(), present())), ..LiveReads::default() };
        let step = decide(&world.view(&key, &live));
        assert_eq!(matches!(step, Step::SetClaimPhase { phase: ClaimPhase::Lost, .. }), lost, "{step:?}");
        assert_eq!(step == Step::FetchVolume { name: "v".into() }, !lost, "{fetched:?}");
    }
    let chosen =
        json!({"spec.storageClassName": "gold", "annotations": ["volume.kubernetes.io/selected-node=n"]});
    let world = World {
        claims: vec![claim("c", chosen)],
        classes: vec![storage_class("gold", json!({"volumeBindingMode": "WaitForFirstConsumer"}))],
        ..World::default()
    };
    let fetch = || Step::FetchNode { name: "n".into() };
    for (fetched, found, step) in [
        ("n", LiveObject::Absent, Step::ClearSelectedNode),
        ("m", LiveObject::Absent, fetch()),
        ("n", present(), Step::SetProvisioner { provisioner: "d.test".into() }),
        ("m", present(), fetch()),
    ] {
        let live = LiveReads { node: Some((fetched.into(), found.clone())), ..LiveReads::default() };
        assert_eq!(decide(&world.view(&key, &live)), step, "{fetched} {found:?}");
    }
}

/// kubernetes.md 1.1 "Volume phase", "Claim deleted", "Claim bound elsewhere"; upstream's set 4.
#[test]
fn set_4_volume_follows_its_claim() {
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
    for (id, volumes, claims, state, fetched) in [
        ("4-1 new", vec![volume("v", json!({"status.phase": "Pending"}))], vec![], &["v Available -"][..], 0),
        ("4-2 new and reserved", vec![names("", "Pending", json!({}))], vec![], &["v Available c:"], 0),
        (
            "claimRef removed",
            vec![volume("v", json!({"status.phase": "Released"}))],
            vec![],
            &["v Available -"],
            0,
        ),
        ("4-3 claim deleted", vec![names("uid", "Bound", json!({}))], vec![], &["v Released c:uid"], 1),
        (
            "4-3 claim deleted, already Released",
            vec![names("uid", "Released", json!({}))],
            vec![],
            &["v Released c:uid"],
            0,
        ),
        (
            "4-4 another claim of the same name exists",
            vec![names("earlier", "Bound", json!({}))],
            vec![claim("c", json!({"spec.storageClassName": "none"}))],
            &["v Released c:earlier", "c Pending - - none"],
            1,
        ),
        (
            "4-5 claim not bound yet",
            vec![names("uid", "Bound", json!({"annotations": ["ctl"]}))],
            vec![claim("c", json!({}))],
            &["v Bound c:uid +ctl", "c Bound v 1Gi +done +ctl"],
            0,
        ),
        (
            "4-6 claim bound to it",
            vec![names("uid", "Released", json!({}))],
            bound("v"),
            &["v Bound c:uid", "c Bound v 1Gi +done +ctl"],
            0,
        ),
        (
            "4-7 bound by a controller, the claim has another volume",
            and(names("uid", "Bound", json!({"annotations": ["ctl"]}))),
            bound("w"),
            &[w, "v Available -", c],
            0,
        ),
        (
            "4-8 reserved by a user, the claim has another volume",
            and(names("uid", "Bound", json!({}))),
            bound("w"),
            &[w, "v Available c:", c],
            0,
        ),
        (
            "4-9, 8-12 provisioned for the claim, which has another volume",
            and(names(
                "uid",
                "Bound",
                json!({"annotations": ["ctl", "provisioned"], "spec.persistentVolumeReclaimPolicy": "Delete"}),
            )),
            bound("w"),
            &[w, "v Released c:uid +ctl", c],
            1,
        ),
        (
            "provisioned for the claim, policy Retain",
            and(names("uid", "Bound", json!({"annotations": ["ctl", "provisioned"]}))),
            bound("w"),
            &[w, "v Available -", c],
            0,
        ),
        (
            "not provisioned for the claim, policy Delete",
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
        let mut uninterrupted = world.clone();
        uninterrupted.run(usize::MAX);
        let events = uninterrupted.events().into_iter().map(str::to_owned).collect::<Vec<_>>();
        check(id, &world, state, &events.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(uninterrupted.live_reads(), fetched, "{id}: live reads");
    }
}
