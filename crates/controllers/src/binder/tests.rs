//! The controllers on the embedded API server: user-visible flows, and crashes between any two writes.

mod harness;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::claim::ClaimPhase;
use wharf_model::names::{annotation, finalizer};
use wharf_model::volume::VolumePhase;
use wharf_model::{
    Key, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttributesClass,
};

use super::Settings;
use harness::{CutPoint, Harness, wait_until};

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.phase == ClaimPhase::Bound
}

fn annotated(claim: &PersistentVolumeClaim, annotation: &str) -> bool {
    claim.metadata.annotations.contains_key(annotation)
}

/// Acts as the external provisioner of a claim: creates a volume with a claimRef.
async fn provision(harness: &Harness, claim: &PersistentVolumeClaim, name: &str) -> Key {
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
        "name": claim.metadata.name, "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
    });
    harness
        .volume(
            name,
            claim.class().unwrap(),
            json!({
                "metadata.annotations": {annotation::PROVISIONED_BY: "d.test"},
                "metadata.finalizers": [finalizer::PROVISIONER],
                "spec.claimRef": reference,
                "spec.persistentVolumeReclaimPolicy": "Delete",
            }),
        )
        .await
}

/// Acts as the external provisioner of a released volume: deletes the object and removes the finalizer.
async fn delete(harness: &Harness, volume: &Key) {
    harness.delete::<PersistentVolume>(volume).await;
    let own = |volume: &PersistentVolume| volume.metadata.finalizers == [finalizer::PROVISIONER];
    harness.wait_for_volume(volume, own).await;
    harness.patch::<PersistentVolume>(volume, None, json!({"metadata": {"finalizers": null}})).await;
}

/// Static provisioning: bind and release; once the claimRef is removed, the volume is available again.
#[tokio::test]
async fn static_volume_is_bound_released_and_reused() {
    let harness = Harness::new().await;
    let _running = harness.start();
    let claim = harness.claim("data", Some("")).await;
    let created = harness.wait_for_claim(&claim, |_| true).await;
    let message = harness.event_message(&created.metadata.uid, "FailedBinding").await;
    assert_eq!(message, "no persistent volumes available for this claim and no storage class is set");
    // The claim was created first: the new volume wakes it.
    let volume = harness.volume("disk", "", json!({})).await;
    let bound = harness.wait_for_claim(&claim, is_bound).await;
    assert_eq!(bound.spec.volume_name, "disk");
    assert_eq!(bound.status.capacity.storage.unwrap().to_string(), "1Gi");
    let own =
        |of: &PersistentVolume| of.is_bound_to(&bound.metadata) && of.status.phase == VolumePhase::Bound;
    harness.wait_for_volume(&volume, own).await;

    harness.delete::<PersistentVolumeClaim>(&claim).await;
    harness.wait_for_claim_deleted(&claim).await;
    harness.wait_for_volume(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
    harness.patch::<PersistentVolume>(&volume, None, json!({"spec": {"claimRef": null}})).await;
    harness.wait_for_volume(&volume, |volume| volume.status.phase == VolumePhase::Available).await;
    let again = harness.claim("again", Some("")).await;
    assert_eq!(harness.wait_for_claim(&again, is_bound).await.spec.volume_name, "disk");
}

/// Dynamic provisioning: the claim is assigned, provisioned and bound; a second volume for it is released; the volume
/// is deleted after the claim.
#[tokio::test]
async fn dynamic_volume_is_bound_and_reclaimed() {
    let harness = Harness::new().await;
    let _running = harness.start();
    harness.class("fast", false, false).await;
    let claim = harness.claim("data", Some("fast")).await;
    let assigned =
        harness.wait_for_claim(&claim, |claim| annotated(claim, annotation::STORAGE_PROVISIONER)).await;
    assert_eq!(assigned.metadata.annotation(annotation::BETA_STORAGE_PROVISIONER), Some("d.test"));
    let message = harness.event_message(&assigned.metadata.uid, "ExternalProvisioning").await;
    assert!(
        message.starts_with("Waiting for a volume to be created either by the external provisioner 'd.test'"),
        "{message}"
    );

    let name = format!("pvc-{}", assigned.metadata.uid);
    let volume = provision(&harness, &assigned, &name).await;
    assert_eq!(harness.wait_for_claim(&claim, is_bound).await.spec.volume_name, name);
    // A second volume, as after a crash of the provisioner: no claim needs it.
    let second = provision(&harness, &assigned, "second").await;
    harness.wait_for_volume(&second, |volume| volume.status.phase == VolumePhase::Released).await;
    delete(&harness, &second).await;
    harness.wait_for_volume_deleted(&second).await;
    harness.wait_for_volume(&volume, |volume| volume.status.phase == VolumePhase::Bound).await;

    harness.delete::<PersistentVolumeClaim>(&claim).await;
    harness.wait_for_volume(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
    assert!(!harness.exists::<PersistentVolumeClaim>(&claim).await.unwrap());
    delete(&harness, &volume).await;
    harness.wait_for_volume_deleted(&volume).await;
}

/// WaitForFirstConsumer: the claim is assigned once a node is selected; a deleted node is cleared and selected again.
#[tokio::test]
async fn delayed_claim_is_provisioned_after_node_selection() {
    let harness = Harness::new().await;
    let _running = harness.start();
    harness.class("late", true, false).await;
    harness.node("n1").await;
    harness.node("n2").await;
    let claim = harness.claim("data", Some("late")).await;
    let created = harness.wait_for_claim(&claim, |_| true).await;
    harness.event_message(&created.metadata.uid, "WaitForFirstConsumer").await;
    assert!(!annotated(&created, annotation::STORAGE_PROVISIONER));

    let choose = |node: &str| json!({"metadata": {"annotations": {annotation::SELECTED_NODE: node}}});
    harness.patch::<PersistentVolumeClaim>(&claim, None, choose("n1")).await;
    harness.wait_for_claim(&claim, |claim| annotated(claim, annotation::STORAGE_PROVISIONER)).await;
    // kubernetes#100485: the node is deleted before the volume is provisioned.
    harness.delete::<Node>(&Key::cluster("n1")).await;
    harness.wait_for_claim(&claim, |claim| !annotated(claim, annotation::SELECTED_NODE)).await;
    harness.patch::<PersistentVolumeClaim>(&claim, None, choose("n2")).await;
    let chosen = harness.wait_for_claim(&claim, |claim| claim.selected_node() == Some("n2")).await;
    provision(&harness, &chosen, "made").await;
    assert_eq!(harness.wait_for_claim(&claim, is_bound).await.spec.volume_name, "made");
}

/// A claim without a class gets the default class as soon as there is one, and is then provisioned.
#[tokio::test]
async fn late_default_class_is_assigned() {
    let harness = Harness::new().await;
    let _running = harness.start();
    let claim = harness.claim("data", None).await;
    let created = harness.wait_for_claim(&claim, |_| true).await;
    harness.event_message(&created.metadata.uid, "FailedBinding").await;
    harness.class("usual", false, true).await;
    let assigned =
        harness.wait_for_claim(&claim, |claim| annotated(claim, annotation::STORAGE_PROVISIONER)).await;
    assert_eq!(assigned.spec.storage_class_name.as_deref(), Some("usual"));
    harness.delete::<StorageClass>(&Key::cluster("usual")).await;
}

/// A bound claim whose volume is deleted becomes Lost, with an event.
#[tokio::test]
async fn deleted_volume_makes_claim_lost() {
    let harness = Harness::new().await;
    let _running = harness.start();
    let volume = harness.volume("disk", "", json!({})).await;
    let claim = harness.claim("data", Some("")).await;
    let bound = harness.wait_for_claim(&claim, is_bound).await;
    harness.delete::<PersistentVolume>(&volume).await;
    // The protection finalizer retains the volume while it is bound.
    let deleting = harness.wait_for_volume(&volume, |volume| volume.metadata.is_deleting()).await;
    assert!(deleting.metadata.has_finalizer(finalizer::VOLUME_PROTECTION));
    assert!(is_bound(&*harness.wait_for_claim(&claim, |_| true).await));
    // A user removes the finalizers by force.
    harness.patch::<PersistentVolume>(&volume, None, json!({"metadata": {"finalizers": null}})).await;
    harness.wait_for_claim(&claim, |claim| claim.status.phase == ClaimPhase::Lost).await;
    let message = harness.event_message(&bound.metadata.uid, "ClaimLost").await;
    assert_eq!(message, "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
}

/// A volume that is reserved for the claim but too small is skipped: the claim takes another that matches.
#[tokio::test]
async fn reserved_volume_that_is_too_small_is_skipped() {
    let harness = Harness::new().await;
    let _running = harness.start();
    let reserved =
        json!({"spec.claimRef": {"namespace": "default", "name": "data"}, "spec.capacity.storage": "1Mi"});
    harness.volume("small", "", reserved).await;
    harness.volume("fits", "", json!({})).await;
    let claim = harness.claim("data", Some("")).await;
    let bound = harness.wait_for_claim(&claim, is_bound).await;
    assert_eq!(bound.spec.volume_name, "fits");
}

/// kubernetes#95497: many claims and volumes at once. Each claim gets a volume, and no two claims get the same one.
#[tokio::test]
async fn many_claims_at_once_get_different_volumes() {
    const MANY: usize = 60;
    let harness = Harness::new().await;
    let mut claims = Vec::new();
    for n in 0..MANY {
        claims.push(harness.claim(&format!("c{n}"), Some("")).await);
        if n % 2 == 0 {
            harness.volume(&format!("v{n}"), "", json!({})).await;
        }
    }
    let running = harness.start();
    // Half of them wait for volumes that are created while the others are being bound.
    for n in (1..MANY).step_by(2) {
        harness.volume(&format!("v{n}"), "", json!({})).await;
    }
    let mut bound_volumes = BTreeSet::new();
    for claim in &claims {
        let bound = harness.wait_for_claim(claim, is_bound).await;
        assert!(
            bound_volumes.insert(bound.spec.volume_name.clone()),
            "{} bound twice",
            bound.spec.volume_name
        );
        let volume = harness.volumes.get(&Key::cluster(&bound.spec.volume_name)).unwrap();
        assert!(volume.is_bound_to(&bound.metadata));
    }
    assert_eq!(bound_volumes.len(), MANY);
    // Five writes each: volume Available, claimRef, volume Bound, volumeName, claim Bound. No write was unnecessary.
    assert_eq!(running.writes(), 5 * MANY);
}

/// kubernetes.md 1.1 "Crash between writes": the binder crashes at each of its writes, before and after the API server
/// applied it, and another binder completes the binding.
#[tokio::test]
async fn binding_survives_crash_at_every_write() {
    let harness = Harness::new().await;
    // Volume Available, claimRef, volume Bound, volumeName, claim Bound.
    const WRITES: usize = 5;
    for write in 1..=WRITES + 1 {
        for cut in [CutPoint::Before, CutPoint::After] {
            // A class of their own without a provisioner: each pair can only be bound to each other.
            let name = format!("{write}-{cut:?}").to_lowercase();
            let volume = harness.volume(&name, &name, json!({})).await;
            let claim = harness.claim(&name, Some(&name)).await;
            let crashing = harness.start_with_cut(write, cut, Settings::default());
            let done = harness.wait_for_claim(&claim, is_bound);
            tokio::select! {
                () = crashing.cut_reached() => assert!(write <= WRITES, "{name}: more writes than expected"),
                _ = done => assert!(write >= WRITES, "{name}: fewer writes than expected"),
            }
            crashing.kill().await;
            let running = harness.start();
            let bound = harness.wait_for_claim(&claim, is_bound).await;
            let volume = harness
                .wait_for_volume(&volume, |of| {
                    of.status.phase == VolumePhase::Bound && of.is_bound_to(&bound.metadata)
                })
                .await;
            let yes = |meta: &wharf_model::Meta, word| meta.annotation(word) == Some("yes");
            assert!(yes(&volume.metadata, annotation::BOUND_BY_CONTROLLER), "{name}");
            assert!(yes(&bound.metadata, annotation::BOUND_BY_CONTROLLER), "{name}");
            assert!(yes(&bound.metadata, annotation::BIND_COMPLETED), "{name}");
            assert_eq!(bound.status.capacity.storage.unwrap().to_string(), "1Gi", "{name}");
            running.kill().await;
        }
    }
}

/// A deleted claim: the binder crashes at the removal of the finalizer and at the release of the volume.
#[tokio::test]
async fn release_survives_crash_at_every_write() {
    let harness = Harness::new().await;
    for write in 1..=2 {
        for cut in [CutPoint::Before, CutPoint::After] {
            let name = format!("{write}-{cut:?}").to_lowercase();
            let volume = harness.volume(&name, &name, json!({})).await;
            let claim = harness.claim(&name, Some(&name)).await;
            let running = harness.start();
            harness.wait_for_claim(&claim, is_bound).await;
            running.kill().await;
            harness.delete::<PersistentVolumeClaim>(&claim).await;
            let crashing = harness.start_with_cut(write, cut, Settings::default());
            crashing.cut_reached().await;
            crashing.kill().await;
            let running = harness.start();
            harness.wait_for_claim_deleted(&claim).await;
            harness.wait_for_volume(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
            running.kill().await;
        }
    }
}

fn pod(name: &str, volume: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "n1", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i"}], "volumes": [volume],
        },
    })
}

/// kubernetes.md 1.2 "Claim in use", "Live list": a claim that a pod uses is retained until the pod is deleted.
#[tokio::test]
async fn claim_in_use_is_retained_until_pod_is_deleted() {
    let harness = Harness::new().await;
    let _running = harness.start();
    harness.node("n1").await;
    let claim = harness.claim("data", Some("")).await;
    let other = harness.claim("other", Some("")).await;
    let of_pod = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
    harness.create::<Pod>(pod("user", of_pod)).await;
    harness.delete::<PersistentVolumeClaim>(&claim).await;
    harness.delete::<PersistentVolumeClaim>(&other).await;
    // The unused claim is deleted, so the other one was checked too: one list of pods serves both.
    harness.wait_for_claim_deleted(&other).await;
    assert!(harness.exists::<PersistentVolumeClaim>(&claim).await.unwrap());
    let key = Key::namespaced("default", "user");
    harness.patch::<Pod>(&key, Some("status"), json!({"status": {"phase": "Succeeded"}})).await;
    let third = harness.claim("third", Some("")).await;
    harness.delete::<PersistentVolumeClaim>(&third).await;
    harness.wait_for_claim_deleted(&third).await;
    assert!(
        harness.exists::<PersistentVolumeClaim>(&claim).await.unwrap(),
        "a terminated pod still uses the claim"
    );
    harness.delete::<Pod>(&key).await;
    harness.wait_for_claim_deleted(&claim).await;
}

/// Upstream's protection matrices: missing finalizers are added, and rejected requests are retried.
#[tokio::test]
async fn removed_finalizers_are_restored_and_rejected_requests_retried() {
    let harness = Harness::new().await;
    let running = harness.start();
    let claim = harness.claim("data", Some("")).await;
    let volume = harness.volume("disk", "", json!({})).await;
    harness.wait_for_claim(&claim, is_bound).await;
    running.refuse(&[("PATCH", "/persistentvolumes/disk"), ("PATCH", "/persistentvolumeclaims/data")]);
    let none = || json!({"metadata": {"finalizers": null}});
    harness.patch::<PersistentVolumeClaim>(&claim, None, none()).await;
    harness.patch::<PersistentVolume>(&volume, None, none()).await;
    harness.wait_for_claim(&claim, |claim| claim.metadata.has_finalizer(finalizer::CLAIM_PROTECTION)).await;
    harness
        .wait_for_volume(&volume, |volume| volume.metadata.has_finalizer(finalizer::VOLUME_PROTECTION))
        .await;
    assert!(running.refused_all());
    // The list of pods, the finalizer, the live read of the claim, and the phase.
    running.refuse(&[
        ("GET", "/namespaces/default/pods"),
        ("PATCH", "/persistentvolumeclaims/data"),
        ("GET", "/namespaces/default/persistentvolumeclaims/data"),
        ("PATCH", "/persistentvolumes/disk/status"),
    ]);
    harness.delete::<PersistentVolumeClaim>(&claim).await;
    harness.wait_for_claim_deleted(&claim).await;
    harness.wait_for_volume(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
    assert!(running.refused_all());
    harness.delete::<PersistentVolume>(&volume).await;
    harness.wait_for_volume_deleted(&volume).await;
}

/// Every write of a binding is rejected once, and the claim is still bound.
#[tokio::test]
async fn binding_survives_rejection_of_every_write() {
    let harness = Harness::new().await;
    let running = harness.start();
    running.refuse(&[
        ("PATCH", "/persistentvolumes/disk/status"),
        ("PATCH", "/persistentvolumes/disk"),
        ("PATCH", "/persistentvolumeclaims/data/status"),
        ("PATCH", "/persistentvolumeclaims/data"),
    ]);
    harness.volume("disk", "", json!({})).await;
    let claim = harness.claim("data", Some("")).await;
    harness.wait_for_claim(&claim, is_bound).await;
    assert!(running.refused_all());
}

/// kubernetes.md 1.2 "Ephemeral claim", "Ephemeral name conflict": the claim is created for the pod and deleted with
/// it; a claim of that name that the pod does not own is not touched.
#[tokio::test]
async fn ephemeral_claim_is_created_and_deleted_with_its_pod() {
    let harness = Harness::new().await;
    let _running = harness.start();
    harness.node("n1").await;
    let conflicting = harness.claim("theirs-scratch", Some("")).await;
    let scratch = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }}});
    let created = harness.create::<Pod>(pod("mine", scratch.clone())).await;
    let claim = Key::namespaced("default", "mine-scratch");
    let owner = harness.wait_for_claim(&claim, |_| true).await.metadata.owner_references[0].clone();
    assert_eq!(
        (owner.kind.as_str(), json!(owner.uid), owner.controller),
        ("Pod", created["metadata"]["uid"].clone(), Some(true))
    );
    let other = harness.create::<Pod>(pod("theirs", scratch)).await;
    let message = harness.event_message(other["metadata"]["uid"].as_str().unwrap(), "FailedBinding").await;
    assert_eq!(
        message,
        "ephemeral volume scratch: PVC default/theirs-scratch was not created for pod default/theirs (pod is not owner)"
    );
    // Once the other claim is deleted, the pod gets its own.
    harness.delete::<PersistentVolumeClaim>(&conflicting).await;
    harness.wait_for_claim(&conflicting, |claim| !claim.metadata.owner_references.is_empty()).await;
    harness.delete::<Pod>(&Key::namespaced("default", "mine")).await;
    harness.wait_for_claim_deleted(&claim).await;
}

/// kubernetes.md 1.2 "Attributes class in use": a VolumeAttributesClass is retained while a volume names it.
#[tokio::test]
async fn attributes_class_in_use_is_retained() {
    let harness = Harness::new().await;
    let _running = harness.start();
    let classes = harness.cluster.store::<VolumeAttributesClass>(Default::default());
    for name in ["gold", "tin"] {
        harness
            .create::<VolumeAttributesClass>(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
                "driverName": "d.test", "parameters": {"iops": "1"},
            }))
            .await;
    }
    let protected = |class: Arc<VolumeAttributesClass>| {
        class.metadata.has_finalizer(finalizer::ATTRIBUTES_CLASS_PROTECTION).then_some(())
    };
    let (gold, tin) = (Key::cluster("gold"), Key::cluster("tin"));
    wait_until(&classes, "finalizer", || classes.get(&gold).and_then(protected)).await;
    wait_until(&classes, "finalizer", || classes.get(&tin).and_then(protected)).await;
    let volume = harness.volume("disk", "", json!({"spec.volumeAttributesClassName": "gold"})).await;
    harness.wait_for_volume(&volume, |volume| volume.status.phase == VolumePhase::Available).await;
    harness.delete::<VolumeAttributesClass>(&gold).await;
    harness.delete::<VolumeAttributesClass>(&tin).await;
    wait_until(&classes, "deletion of tin", || classes.get(&tin).is_none().then_some(())).await;
    assert!(harness.exists::<VolumeAttributesClass>(&gold).await.unwrap());
    harness.delete::<PersistentVolume>(&volume).await;
    wait_until(&classes, "deletion of gold", || classes.get(&gold).is_none().then_some(())).await;
}

/// kubernetes.md 1.4 "External resizer": an event on an expanded claim says what it waits for.
#[tokio::test]
async fn expanded_claim_gets_external_expanding_event() {
    let harness = Harness::new().await;
    let _running = harness.start();
    harness.class("fast", false, false).await;
    harness.patch::<StorageClass>(&Key::cluster("fast"), None, json!({"allowVolumeExpansion": true})).await;
    harness.volume("disk", "fast", json!({})).await;
    let claim = harness.claim("data", Some("fast")).await;
    let bound = harness.wait_for_claim(&claim, is_bound).await;
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    harness.patch::<PersistentVolumeClaim>(&claim, None, more).await;
    let message = harness.event_message(&bound.metadata.uid, "ExternalExpanding").await;
    assert_eq!(message, "waiting for an external controller to expand this PVC");
}
