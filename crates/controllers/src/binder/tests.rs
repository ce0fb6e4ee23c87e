//! The controllers on the embedded API: the flows as a user sees them, and crashes between any two writes.

mod stand;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::claim::ClaimPhase;
use wharf_model::names::{annotation, finalizer};
use wharf_model::volume::VolumePhase;
use wharf_model::whole::Pod;
use wharf_model::{Key, Node, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttributesClass};

use super::Settings;
use stand::{Cut, Stand, until};

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.phase == ClaimPhase::Bound
}

fn annotated(claim: &PersistentVolumeClaim, annotation: &str) -> bool {
    claim.metadata.annotations.contains_key(annotation)
}

/// What an external provisioner does for a claim that was handed to it: makes the volume `pvc-<uid>` with a claimRef.
async fn provision(stand: &Stand, claim: &PersistentVolumeClaim, name: &str) -> Key {
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
        "name": claim.metadata.name, "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
    });
    stand
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

/// What it does once a volume is released: deletes the object, and lets it go.
async fn delete(stand: &Stand, volume: &Key) {
    stand.delete::<PersistentVolume>(volume).await;
    let own = |volume: &PersistentVolume| volume.metadata.finalizers == [finalizer::PROVISIONER];
    stand.volume_is(volume, own).await;
    stand.change::<PersistentVolume>(volume, None, json!({"metadata": {"finalizers": null}})).await;
}

/// Static: bind, release, keep; take the claim out, and it is to be had again.
#[tokio::test]
async fn a_volume_that_a_person_made() {
    let stand = Stand::new().await;
    let _running = stand.start();
    let claim = stand.claim("data", Some("")).await;
    let seen = stand.claim_is(&claim, |_| true).await;
    let told = stand.told(&seen.metadata.uid, "FailedBinding").await;
    assert_eq!(told, "no persistent volumes available for this claim and no storage class is set");
    // The claim was first: the volume's coming wakes it.
    let volume = stand.volume("disk", "", json!({})).await;
    let bound = stand.claim_is(&claim, is_bound).await;
    assert_eq!(bound.spec.volume_name, "disk");
    assert_eq!(bound.status.capacity.storage.unwrap().to_string(), "1Gi");
    let own =
        |of: &PersistentVolume| of.is_bound_to(&bound.metadata) && of.status.phase == VolumePhase::Bound;
    stand.volume_is(&volume, own).await;

    stand.delete::<PersistentVolumeClaim>(&claim).await;
    stand.claim_is_gone(&claim).await;
    stand.volume_is(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
    stand.change::<PersistentVolume>(&volume, None, json!({"spec": {"claimRef": null}})).await;
    stand.volume_is(&volume, |volume| volume.status.phase == VolumePhase::Available).await;
    let again = stand.claim("again", Some("")).await;
    assert_eq!(stand.claim_is(&again, is_bound).await.spec.volume_name, "disk");
}

/// Dynamic: handed over, made, bound; a second volume for the same claim is released; the claim goes, and the volume.
#[tokio::test]
async fn a_volume_that_a_provisioner_made() {
    let stand = Stand::new().await;
    let _running = stand.start();
    stand.class("fast", false, false).await;
    let claim = stand.claim("data", Some("fast")).await;
    let handed = stand.claim_is(&claim, |claim| annotated(claim, annotation::STORAGE_PROVISIONER)).await;
    assert_eq!(handed.metadata.annotation(annotation::BETA_STORAGE_PROVISIONER), Some("d.test"));
    let told = stand.told(&handed.metadata.uid, "ExternalProvisioning").await;
    assert!(
        told.starts_with("Waiting for a volume to be created either by the external provisioner 'd.test'"),
        "{told}"
    );

    let name = format!("pvc-{}", handed.metadata.uid);
    let volume = provision(&stand, &handed, &name).await;
    assert_eq!(stand.claim_is(&claim, is_bound).await.spec.volume_name, name);
    // Once more, as after a provisioner's crash: this one is of no use to anybody.
    let second = provision(&stand, &handed, "second").await;
    stand.volume_is(&second, |volume| volume.status.phase == VolumePhase::Released).await;
    delete(&stand, &second).await;
    stand.volume_is_gone(&second).await;
    stand.volume_is(&volume, |volume| volume.status.phase == VolumePhase::Bound).await;

    stand.delete::<PersistentVolumeClaim>(&claim).await;
    stand.volume_is(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
    assert!(!stand.has::<PersistentVolumeClaim>(&claim).await.unwrap());
    delete(&stand, &volume).await;
    stand.volume_is_gone(&volume).await;
}

/// WaitForFirstConsumer: it waits, also for a node that is gone; then the scheduler chooses, and it is handed over.
#[tokio::test]
async fn a_claim_that_waits_for_its_first_consumer() {
    let stand = Stand::new().await;
    let _running = stand.start();
    stand.class("late", true, false).await;
    stand.node("n1").await;
    stand.node("n2").await;
    let claim = stand.claim("data", Some("late")).await;
    let seen = stand.claim_is(&claim, |_| true).await;
    stand.told(&seen.metadata.uid, "WaitForFirstConsumer").await;
    assert!(!annotated(&seen, annotation::STORAGE_PROVISIONER));

    let choose = |node: &str| json!({"metadata": {"annotations": {annotation::SELECTED_NODE: node}}});
    stand.change::<PersistentVolumeClaim>(&claim, None, choose("n1")).await;
    stand.claim_is(&claim, |claim| annotated(claim, annotation::STORAGE_PROVISIONER)).await;
    // kubernetes#100485: its node goes before the volume is made.
    stand.delete::<Node>(&Key::cluster("n1")).await;
    stand.claim_is(&claim, |claim| !annotated(claim, annotation::SELECTED_NODE)).await;
    stand.change::<PersistentVolumeClaim>(&claim, None, choose("n2")).await;
    let chosen = stand.claim_is(&claim, |claim| claim.selected_node() == Some("n2")).await;
    provision(&stand, &chosen, "made").await;
    assert_eq!(stand.claim_is(&claim, is_bound).await.spec.volume_name, "made");
}

/// A claim without class gets the default one as soon as there is one, and is seen to.
#[tokio::test]
async fn a_default_class_that_comes_late() {
    let stand = Stand::new().await;
    let _running = stand.start();
    let claim = stand.claim("data", None).await;
    let seen = stand.claim_is(&claim, |_| true).await;
    stand.told(&seen.metadata.uid, "FailedBinding").await;
    stand.class("usual", false, true).await;
    let handed = stand.claim_is(&claim, |claim| annotated(claim, annotation::STORAGE_PROVISIONER)).await;
    assert_eq!(handed.spec.storage_class_name.as_deref(), Some("usual"));
    stand.delete::<StorageClass>(&Key::cluster("usual")).await;
}

/// A bound claim whose volume is gone is lost, and told so.
#[tokio::test]
async fn a_lost_volume() {
    let stand = Stand::new().await;
    let _running = stand.start();
    let volume = stand.volume("disk", "", json!({})).await;
    let claim = stand.claim("data", Some("")).await;
    let bound = stand.claim_is(&claim, is_bound).await;
    stand.delete::<PersistentVolume>(&volume).await;
    // Protection keeps it while it is bound.
    let going = stand.volume_is(&volume, |volume| volume.metadata.is_deleting()).await;
    assert!(going.metadata.has_finalizer(finalizer::VOLUME_PROTECTION));
    assert!(is_bound(&*stand.claim_is(&claim, |_| true).await));
    // Somebody takes it away by force.
    stand.change::<PersistentVolume>(&volume, None, json!({"metadata": {"finalizers": null}})).await;
    stand.claim_is(&claim, |claim| claim.status.phase == ClaimPhase::Lost).await;
    let told = stand.told(&bound.metadata.uid, "ClaimLost").await;
    assert_eq!(told, "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
}

/// A volume that was put aside for the claim and is too small is passed over: another that fits is taken.
#[tokio::test]
async fn a_reserved_volume_that_does_not_fit() {
    let stand = Stand::new().await;
    let _running = stand.start();
    let reserved =
        json!({"spec.claimRef": {"namespace": "default", "name": "data"}, "spec.capacity.storage": "1Mi"});
    stand.volume("small", "", reserved).await;
    stand.volume("fits", "", json!({})).await;
    let claim = stand.claim("data", Some("")).await;
    let bound = stand.claim_is(&claim, is_bound).await;
    assert_eq!(bound.spec.volume_name, "fits");
}

/// kubernetes#95497: many claims and volumes at once; each claim gets one, and no volume is anybody's twice.
#[tokio::test]
async fn many_at_once() {
    const MANY: usize = 60;
    let stand = Stand::new().await;
    let mut claims = Vec::new();
    for n in 0..MANY {
        claims.push(stand.claim(&format!("c{n}"), Some("")).await);
        if n % 2 == 0 {
            stand.volume(&format!("v{n}"), "", json!({})).await;
        }
    }
    let running = stand.start();
    // Half of them wait for volumes that come while the others are being bound.
    for n in (1..MANY).step_by(2) {
        stand.volume(&format!("v{n}"), "", json!({})).await;
    }
    let mut given = BTreeSet::new();
    for claim in &claims {
        let bound = stand.claim_is(claim, is_bound).await;
        assert!(given.insert(bound.spec.volume_name.clone()), "{} twice", bound.spec.volume_name);
        let volume = stand.volumes.get(&Key::cluster(&bound.spec.volume_name)).unwrap();
        assert!(volume.is_bound_to(&bound.metadata));
    }
    assert_eq!(given.len(), MANY);
    // Each volume is offered, named and bound, each claim too, and nobody fought for one in vain.
    assert_eq!(running.writes(), 5 * MANY);
}

/// kubernetes.md 1.1 "Crash between writes": the binder dies at each of its writes, before and after
/// the server has done it, and another goes on.
#[tokio::test]
async fn a_crash_at_every_write_of_a_binding() {
    let stand = Stand::new().await;
    // The volume is offered, names the claim, is bound; the claim names the volume, is bound.
    const WRITES: usize = 5;
    for write in 1..=WRITES + 1 {
        for cut in [Cut::Before, Cut::After] {
            // Of a class of their own, and nobody provisions: each pair has only each other.
            let name = format!("{write}-{cut:?}").to_lowercase();
            let volume = stand.volume(&name, &name, json!({})).await;
            let claim = stand.claim(&name, Some(&name)).await;
            let dying = stand.start_cut(write, cut, Settings::default());
            let done = stand.claim_is(&claim, is_bound);
            tokio::select! {
                () = dying.broken() => assert!(write <= WRITES, "{name}: a write too many"),
                _ = done => assert!(write >= WRITES, "{name}: a write too few"),
            }
            dying.kill().await;
            let running = stand.start();
            let bound = stand.claim_is(&claim, is_bound).await;
            let volume = stand
                .volume_is(&volume, |of| {
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

/// The same for a claim that goes: what its finalizer keeps, and what its volume is told.
#[tokio::test]
async fn a_crash_at_every_write_of_a_release() {
    let stand = Stand::new().await;
    for write in 1..=2 {
        for cut in [Cut::Before, Cut::After] {
            let name = format!("{write}-{cut:?}").to_lowercase();
            let volume = stand.volume(&name, &name, json!({})).await;
            let claim = stand.claim(&name, Some(&name)).await;
            let running = stand.start();
            stand.claim_is(&claim, is_bound).await;
            running.kill().await;
            stand.delete::<PersistentVolumeClaim>(&claim).await;
            let dying = stand.start_cut(write, cut, Settings::default());
            dying.broken().await;
            dying.kill().await;
            let running = stand.start();
            stand.claim_is_gone(&claim).await;
            stand.volume_is(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
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

/// kubernetes.md 1.2 "Claim in use", "Live list": a claim that a pod uses stays until the pod is gone.
#[tokio::test]
async fn a_claim_that_a_pod_uses() {
    let stand = Stand::new().await;
    let _running = stand.start();
    stand.node("n1").await;
    let claim = stand.claim("data", Some("")).await;
    let other = stand.claim("other", Some("")).await;
    let of_pod = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
    stand.make::<Pod>(pod("user", of_pod)).await;
    stand.delete::<PersistentVolumeClaim>(&claim).await;
    stand.delete::<PersistentVolumeClaim>(&other).await;
    // The one that nobody uses goes, so the other was looked at as well: one list does for both.
    stand.claim_is_gone(&other).await;
    assert!(stand.has::<PersistentVolumeClaim>(&claim).await.unwrap());
    let key = Key::namespaced("default", "user");
    stand.change::<Pod>(&key, Some("status"), json!({"status": {"phase": "Succeeded"}})).await;
    let third = stand.claim("third", Some("")).await;
    stand.delete::<PersistentVolumeClaim>(&third).await;
    stand.claim_is_gone(&third).await;
    assert!(stand.has::<PersistentVolumeClaim>(&claim).await.unwrap(), "a pod that has ended is a user too");
    stand.delete::<Pod>(&key).await;
    stand.claim_is_gone(&claim).await;
}

/// Upstream's protection matrices: what lacks its finalizer gets it, and what the server refuses is tried again.
#[tokio::test]
async fn finalizers_come_back_and_refusals_are_overcome() {
    let stand = Stand::new().await;
    let running = stand.start();
    let claim = stand.claim("data", Some("")).await;
    let volume = stand.volume("disk", "", json!({})).await;
    stand.claim_is(&claim, is_bound).await;
    running.refuse(&[("PATCH", "/persistentvolumes/disk"), ("PATCH", "/persistentvolumeclaims/data")]);
    let none = || json!({"metadata": {"finalizers": null}});
    stand.change::<PersistentVolumeClaim>(&claim, None, none()).await;
    stand.change::<PersistentVolume>(&volume, None, none()).await;
    stand.claim_is(&claim, |claim| claim.metadata.has_finalizer(finalizer::CLAIM_PROTECTION)).await;
    stand.volume_is(&volume, |volume| volume.metadata.has_finalizer(finalizer::VOLUME_PROTECTION)).await;
    assert!(running.refused_all());
    // The list of pods, the finalizer, the question whether the claim is gone, and the phase.
    running.refuse(&[
        ("GET", "/namespaces/default/pods"),
        ("PATCH", "/persistentvolumeclaims/data"),
        ("GET", "/namespaces/default/persistentvolumeclaims/data"),
        ("PATCH", "/persistentvolumes/disk/status"),
    ]);
    stand.delete::<PersistentVolumeClaim>(&claim).await;
    stand.claim_is_gone(&claim).await;
    stand.volume_is(&volume, |volume| volume.status.phase == VolumePhase::Released).await;
    assert!(running.refused_all());
    stand.delete::<PersistentVolume>(&volume).await;
    stand.volume_is_gone(&volume).await;
}

/// Every write of a binding is refused once: it is bound all the same.
#[tokio::test]
async fn refusals_of_a_binding() {
    let stand = Stand::new().await;
    let running = stand.start();
    running.refuse(&[
        ("PATCH", "/persistentvolumes/disk/status"),
        ("PATCH", "/persistentvolumes/disk"),
        ("PATCH", "/persistentvolumeclaims/data/status"),
        ("PATCH", "/persistentvolumeclaims/data"),
    ]);
    stand.volume("disk", "", json!({})).await;
    let claim = stand.claim("data", Some("")).await;
    stand.claim_is(&claim, is_bound).await;
    assert!(running.refused_all());
}

/// kubernetes.md 1.2 "Ephemeral claim", "Ephemeral namesake": made for the pod, gone with it; a namesake is not
/// touched.
#[tokio::test]
async fn an_ephemeral_claim() {
    let stand = Stand::new().await;
    let _running = stand.start();
    stand.node("n1").await;
    let taken = stand.claim("theirs-scratch", Some("")).await;
    let scratch = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }}});
    let made = stand.make::<Pod>(pod("mine", scratch.clone())).await;
    let claim = Key::namespaced("default", "mine-scratch");
    let owner = stand.claim_is(&claim, |_| true).await.metadata.owner_references[0].clone();
    assert_eq!(
        (owner.kind.as_str(), json!(owner.uid), owner.controller),
        ("Pod", made["metadata"]["uid"].clone(), Some(true))
    );
    let theirs = stand.make::<Pod>(pod("theirs", scratch)).await;
    let told = stand.told(theirs["metadata"]["uid"].as_str().unwrap(), "FailedBinding").await;
    assert_eq!(
        told,
        "ephemeral volume scratch: PVC default/theirs-scratch was not created for pod default/theirs (pod is not owner)"
    );
    // Once the namesake is gone, the pod gets its own.
    stand.delete::<PersistentVolumeClaim>(&taken).await;
    stand.claim_is(&taken, |claim| !claim.metadata.owner_references.is_empty()).await;
    stand.delete::<Pod>(&Key::namespaced("default", "mine")).await;
    stand.claim_is_gone(&claim).await;
}

/// kubernetes.md 1.2 "Attributes class in use": a mutable class stays while somebody names it.
#[tokio::test]
async fn a_mutable_class_that_a_volume_names() {
    let stand = Stand::new().await;
    let _running = stand.start();
    let classes = stand.cluster.store::<VolumeAttributesClass>(Default::default());
    for name in ["gold", "tin"] {
        stand
            .make::<VolumeAttributesClass>(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
                "driverName": "d.test", "parameters": {"iops": "1"},
            }))
            .await;
    }
    let protected = |class: Arc<VolumeAttributesClass>| {
        class.metadata.has_finalizer(finalizer::ATTRIBUTES_CLASS_PROTECTION).then_some(())
    };
    let (gold, tin) = (Key::cluster("gold"), Key::cluster("tin"));
    until(&classes, "finalizer", || classes.get(&gold).and_then(protected)).await;
    until(&classes, "finalizer", || classes.get(&tin).and_then(protected)).await;
    let volume = stand.volume("disk", "", json!({"spec.volumeAttributesClassName": "gold"})).await;
    stand.volume_is(&volume, |volume| volume.status.phase == VolumePhase::Available).await;
    stand.delete::<VolumeAttributesClass>(&gold).await;
    stand.delete::<VolumeAttributesClass>(&tin).await;
    until(&classes, "end of tin", || classes.get(&tin).is_none().then_some(())).await;
    assert!(stand.has::<VolumeAttributesClass>(&gold).await.unwrap());
    stand.delete::<PersistentVolume>(&volume).await;
    until(&classes, "end of gold", || classes.get(&gold).is_none().then_some(())).await;
}

/// kubernetes.md 1.4 "External": a claim that asks for more is told whom it waits for.
#[tokio::test]
async fn a_claim_that_is_to_grow() {
    let stand = Stand::new().await;
    let _running = stand.start();
    stand.class("fast", false, false).await;
    stand.change::<StorageClass>(&Key::cluster("fast"), None, json!({"allowVolumeExpansion": true})).await;
    stand.volume("disk", "fast", json!({})).await;
    let claim = stand.claim("data", Some("fast")).await;
    let bound = stand.claim_is(&claim, is_bound).await;
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    stand.change::<PersistentVolumeClaim>(&claim, None, more).await;
    let told = stand.told(&bound.metadata.uid, "ExternalExpanding").await;
    assert_eq!(told, "waiting for an external controller to expand this PVC");
}
