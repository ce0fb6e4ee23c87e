//! Volumes that somebody made by hand, and claims that lost theirs: by the binder's rules, and nothing is made up.

use super::*;

type Volume = wharf_model::PersistentVolume;

/// A volume that is to be had.
fn offer(class: &str, claim_ref: Value) -> Volume {
    serde_json::from_value(json!({
        "metadata": {"name": "by-hand"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "capacity": {"storage": "1Gi"},
            "claimRef": claim_ref},
        "status": {"phase": "Available"},
    }))
    .unwrap()
}

fn said(facts: ClaimFacts, subject: &str, state: Option<State>, whose: &str, says: &str) {
    expect(subject, &of(facts), state, whose, says);
}

/// A volume that fits is the binder's to give; that none does is said only if all were read.
#[test]
fn claims_for_volumes_made_by_hand() {
    let asks = |spec: Value, class, candidates: Option<Vec<Volume>>| ClaimFacts {
        class,
        candidates,
        default_class: Some(false),
        ..claim(spec, json!({"phase": "Pending"}))
    };
    let of_class = |class: &str| json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"]});
    let served_by = |provisioner: &str, mode: &str| {
        object(json!({"metadata": {"name": "fast"}, "provisioner": provisioner, "volumeBindingMode": mode}))
    };
    let by_hand = || served_by("kubernetes.io/no-provisioner", "Immediate");
    let delayed = || served_by("kubernetes.io/no-provisioner", "WaitForFirstConsumer");
    let reserved = json!({"namespace": "default", "name": "data"});
    let another = json!({"namespace": "default", "name": "first"});
    let some = |class: &str, claim_ref: &Value| Some(vec![offer(class, claim_ref.clone())]);
    let free = Value::Null;
    let (waits, unknown) = (Some(State::Waits), Some(State::Unknown));
    for (spec, class, candidates, state, whose, says) in [
        (of_class(""), Known::Unknown, some("", &free), waits, "binder", "volume by-hand is there"),
        (of_class(""), Known::Unknown, some("", &another), waits, "you: make a Persistent", "no volume"),
        (of_class(""), Known::Unknown, None, unknown, "", "not known"),
        (json!({}), Known::Unknown, some("", &free), waits, "binder", "volume by-hand is there"),
        (json!({}), Known::Unknown, Some(vec![]), waits, "you: name a class", "no volume"),
        (json!({}), Known::Unknown, None, unknown, "", "not known"),
        // A class that nobody made an object of is as good as any for these.
        (
            of_class("manual"),
            Known::Absent,
            some("manual", &free),
            waits,
            "binder",
            "volume by-hand is there",
        ),
        (of_class("manual"), Known::Absent, some("fast", &free), waits, "you: make the class", "not exist"),
        (of_class("manual"), Known::Absent, None, unknown, "", "manual does not exist; whether"),
        (of_class("fast"), by_hand(), some("fast", &free), waits, "binder", "volume by-hand is there"),
        (of_class("fast"), by_hand(), Some(vec![]), waits, "you: make a Persistent", "nobody makes"),
        (of_class("fast"), by_hand(), None, unknown, "", "nobody makes volumes of its class fast"),
        // Before its pod has a node, only what is reserved.
        (of_class("fast"), delayed(), some("fast", &reserved), waits, "binder", "volume by-hand is there"),
        (
            of_class("fast"),
            delayed(),
            some("fast", &free),
            waits,
            "you: make a pod",
            "no pod uses this claim",
        ),
        // Whoever provisions is named as the binder names it.
        (
            of_class("fast"),
            served_by("kubernetes.io/gce-pd", "Immediate"),
            Some(vec![]),
            waits,
            "binder",
            "asked pd.csi.storage.gke.io",
        ),
        // It is the binder's turn either way.
        (of_class("fast"), served_by("d.csi", "Immediate"), None, waits, "binder", "nobody has asked d.csi"),
        (of_class("fast"), served_by("d.csi", "Immediate"), some("fast", &free), waits, "binder", "by-hand"),
    ] {
        said(asks(spec, class, candidates), "pvc/data", state, whose, says);
    }
}

/// A claim is lost because its volume is gone, or another's; which of them is looked at, and not made up.
#[test]
fn lost_claims() {
    let lost = |name: &str, volume| ClaimFacts {
        volume,
        ..claim(json!({"volumeName": name}), json!({"phase": "Lost"}))
    };
    let there = |claim_ref: Value| Known::There(offer("", claim_ref));
    let of_claim = |name: &str, uid: &str| json!({"namespace": "default", "name": name, "uid": uid});
    let (waits, unknown) = (Some(State::Waits), Some(State::Unknown));
    for (facts, state, whose, says) in [
        (lost("pv", Known::Absent), waits, "restore the volume", "its volume pv is gone"),
        (lost("pv", Known::Unknown), unknown, "", "could not be read"),
        (lost("pv", there(of_claim("first", "f"))), waits, "free the volume", "claim default/first's"),
        // Of the same name, and not the same: to the binder only the identity counts.
        (lost("pv", there(of_claim("data", "old"))), waits, "free the volume", "of uid \"old\""),
        (lost("pv", there(of_claim("data", ""))), waits, "free the volume", "of uid \"\""),
        (lost("pv", there(of_claim("data", "c"))), waits, "binder", "there again"),
        (lost("pv", there(Value::Null)), waits, "binder", "there again"),
        (lost("", Known::Unknown), waits, "you: delete the claim", "no longer names"),
    ] {
        assert!(!answer("pvc/data", &of(facts.clone())).2.contains("data with it"));
        said(facts, "pvc/data", state, whose, says);
    }
}

/// A claim that is bound, by its own word: its volume may be another's, and the binder has not said so yet.
#[test]
fn claims_bound_to_anothers_volume() {
    let waits = Some(State::Waits);
    let of_claim = |uid: &str| json!({"namespace": "default", "name": "first", "uid": uid});
    for (claim_ref, state, whose, says) in [
        (of_claim("c"), None, "", "bound to volume pv"),
        (of_claim("f"), waits, "you: delete the claim, or free the volume", "claim default/first's"),
        (of_claim(""), waits, "free the volume", "of uid \"\""),
        (Value::Null, waits, "binder", "names no claim"),
    ] {
        let facts = ClaimFacts { volume: Known::There(offer("", claim_ref)), ..bound() };
        said(facts, "pvc/data", state, whose, says);
    }
}

/// What becomes of a volume is its policy's to say, and who may have it its claimRef's.
#[test]
fn volumes_and_their_policies() {
    let waits = Some(State::Waits);
    for (phase, policy, claim_ref, state, whose, says) in [
        ("Available", "Retain", false, None, "", "free for a claim that it fits"),
        ("Available", "Retain", true, None, "", "reserved for claim default/data"),
        ("Released", "Retain", true, waits, "you: delete it", "to keep it"),
        ("Released", "Recycle", true, waits, "binder", "to empty it"),
        ("Released", "Shred", true, waits, "binder", "none that is known"),
        // Nobody tries again.
        ("Failed", "Delete", true, waits, "you: delete it", "could not be reclaimed"),
        ("Failed", "Recycle", true, waits, "you: delete it", "could not be reclaimed"),
    ] {
        let reference = json!({"namespace": "default", "name": "data"});
        let volume = object(json!({
            "metadata": {"name": "pv", "uid": "v"},
            "spec": {
                "csi": {"driver": "d.csi", "volumeHandle": "h"}, "persistentVolumeReclaimPolicy": policy,
                "claimRef": if claim_ref { reference } else { Value::Null },
            },
            "status": {"phase": phase},
        }));
        let facts = ClaimFacts {
            volume,
            driver: Known::Absent,
            pods: Some(Vec::new()),
            attachments: Some(Vec::new()),
            ..ClaimFacts::default()
        };
        said(facts, "pv/pv", state, whose, says);
    }
}
