//! Statically provisioned volumes, and claims that lost theirs, by the binder's rules.

use super::*;

type Volume = wharf_model::PersistentVolume;

/// An available volume.
fn available(class: &str, claim_ref: Value) -> Volume {
    serde_json::from_value(json!({
        "metadata": {"name": "static"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "capacity": {"storage": "1Gi"},
            "claimRef": claim_ref},
        "status": {"phase": "Available"},
    }))
    .unwrap()
}

fn expect_claim(facts: ClaimFacts, subject: &str, state: Option<State>, waiting_for: &str, message: &str) {
    expect(subject, &of(facts), state, waiting_for, message);
}

/// That no volume matches is reported only if all were read.
#[test]
fn claim_waits_for_binder_if_a_static_volume_matches() {
    let pending = |spec: Value, class, candidates: Option<Vec<Volume>>| ClaimFacts {
        class,
        candidates,
        default_class: Some(false),
        ..claim(spec, json!({"phase": "Pending"}))
    };
    let of_class = |class: &str| json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"]});
    let provisioned_by = |provisioner: &str, mode: &str| {
        object(json!({"metadata": {"name": "fast"}, "provisioner": provisioner, "volumeBindingMode": mode}))
    };
    let static_class = || provisioned_by("kubernetes.io/no-provisioner", "Immediate");
    let delayed = || provisioned_by("kubernetes.io/no-provisioner", "WaitForFirstConsumer");
    let reserved = json!({"namespace": "default", "name": "data"});
    let another = json!({"namespace": "default", "name": "first"});
    let some = |class: &str, claim_ref: &Value| Some(vec![available(class, claim_ref.clone())]);
    let free = Value::Null;
    let (waits, unknown) = (Some(State::Waiting), Some(State::Unknown));
    for (spec, class, candidates, state, waiting_for, message) in [
        (of_class(""), Lookup::Unknown, some("", &free), waits, "binder", "PersistentVolume static matches"),
        (
            of_class(""),
            Lookup::Unknown,
            some("", &another),
            waits,
            "you to create a Persistent",
            "no existing",
        ),
        (of_class(""), Lookup::Unknown, None, unknown, "", "is unknown"),
        (json!({}), Lookup::Unknown, some("", &free), waits, "binder", "PersistentVolume static matches"),
        (json!({}), Lookup::Unknown, Some(vec![]), waits, "you to set storageClassName", "no existing"),
        (json!({}), Lookup::Unknown, None, unknown, "", "is unknown"),
        // Static volumes need no StorageClass object.
        (
            of_class("manual"),
            Lookup::Absent,
            some("manual", &free),
            waits,
            "binder",
            "PersistentVolume static matches",
        ),
        (
            of_class("manual"),
            Lookup::Absent,
            some("fast", &free),
            waits,
            "you to create the Storage",
            "not exist",
        ),
        (of_class("manual"), Lookup::Absent, None, unknown, "", "manual does not exist; whether"),
        (
            of_class("fast"),
            static_class(),
            some("fast", &free),
            waits,
            "binder",
            "PersistentVolume static matches",
        ),
        (
            of_class("fast"),
            static_class(),
            Some(vec![]),
            waits,
            "you to create a Persistent",
            "does not provision",
        ),
        (of_class("fast"), static_class(), None, unknown, "", "fast (kubernetes.io/no-provisioner) does not"),
        // Before its pod is scheduled, only a reserved volume is bound.
        (
            of_class("fast"),
            delayed(),
            some("fast", &reserved),
            waits,
            "binder",
            "PersistentVolume static matches",
        ),
        (
            of_class("fast"),
            delayed(),
            some("fast", &free),
            waits,
            "you to create a pod",
            "no pod uses this claim",
        ),
        // The provisioner of a migrated in-tree plugin is named as the binder names it.
        (
            of_class("fast"),
            provisioned_by("kubernetes.io/gce-pd", "Immediate"),
            Some(vec![]),
            waits,
            "binder",
            "provisioning by pd.csi.storage.gke.io",
        ),
        // The binder acts either way.
        (
            of_class("fast"),
            provisioned_by("d.csi", "Immediate"),
            None,
            waits,
            "binder",
            "provisioning by d.csi",
        ),
        (
            of_class("fast"),
            provisioned_by("d.csi", "Immediate"),
            some("fast", &free),
            waits,
            "binder",
            "static",
        ),
    ] {
        expect_claim(pending(spec, class, candidates), "pvc/data", state, waiting_for, message);
    }
}

/// A claim is Lost because its volume is gone or bound to another claim.
#[test]
fn lost_claim_names_what_became_of_its_volume() {
    let lost = |name: &str, volume| ClaimFacts {
        volume,
        ..claim(json!({"volumeName": name}), json!({"phase": "Lost"}))
    };
    let found = |claim_ref: Value| Lookup::Found(available("", claim_ref));
    let of_claim = |name: &str, uid: &str| json!({"namespace": "default", "name": name, "uid": uid});
    let (waits, unknown) = (Some(State::Waiting), Some(State::Unknown));
    for (facts, state, waiting_for, message) in [
        (
            lost("pv", Lookup::Absent),
            waits,
            "restore the PersistentVolume",
            "PersistentVolume pv no longer exists",
        ),
        (lost("pv", Lookup::Unknown), unknown, "", "could not be read"),
        (
            lost("pv", found(of_claim("first", "f"))),
            waits,
            "free the volume",
            "belongs to claim default/first",
        ),
        // Another claim of the same name: the binder compares UIDs only.
        (lost("pv", found(of_claim("data", "old"))), waits, "free the volume", "(uid \"old\")"),
        (lost("pv", found(of_claim("data", ""))), waits, "free the volume", "(uid \"\")"),
        (lost("pv", found(of_claim("data", "c"))), waits, "binder", "exists again"),
        (lost("pv", found(Value::Null)), waits, "binder", "exists again"),
        (lost("", Lookup::Unknown), waits, "you to delete the claim", "spec.volumeName is empty"),
    ] {
        expect_claim(facts, "pvc/data", state, waiting_for, message);
    }
}

/// The claim's phase is Bound, but the volume's claimRef is another claim and the binder has not reacted yet.
#[test]
fn bound_claim_whose_volume_belongs_to_another_claim() {
    let waits = Some(State::Waiting);
    let of_claim = |uid: &str| json!({"namespace": "default", "name": "first", "uid": uid});
    for (claim_ref, state, waiting_for, message) in [
        (of_claim("c"), None, "", "bound to volume pv"),
        (of_claim("f"), waits, "you to delete the claim, or free the volume", "claim default/first"),
        (of_claim(""), waits, "free the volume", "(uid \"\")"),
        (Value::Null, waits, "binder", "has no claimRef"),
    ] {
        let facts = ClaimFacts { volume: Lookup::Found(available("", claim_ref)), ..bound() };
        expect_claim(facts, "pvc/data", state, waiting_for, message);
    }
}

#[test]
fn reclaim_policy_decides_what_a_released_volume_waits_for() {
    let waits = Some(State::Waiting);
    for (phase, policy, claim_ref, state, waiting_for, message) in [
        ("Available", "Retain", false, None, "", "available for a matching claim"),
        ("Available", "Retain", true, None, "", "reserved for claim default/data"),
        ("Released", "Retain", true, waits, "you to delete it", "Retain keeps the volume"),
        ("Released", "Recycle", true, waits, "binder", "Recycle makes the volume available"),
        ("Released", "Shred", true, waits, "binder", "not supported"),
        // No component retries.
        ("Failed", "Delete", true, waits, "you to delete it", "could not be reclaimed"),
        ("Failed", "Recycle", true, waits, "you to delete it", "could not be reclaimed"),
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
            driver: Lookup::Absent,
            pods: Some(Vec::new()),
            attachments: Some(Vec::new()),
            ..ClaimFacts::default()
        };
        expect_claim(facts, "pv/pv", state, waiting_for, message);
    }
}
