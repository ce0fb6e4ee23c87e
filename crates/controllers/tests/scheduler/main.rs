//! The scheduler on the embedded API server, with a provisioner and a binder that the test plays.
#![allow(clippy::unwrap_used)] // test helpers may panic

mod with_controllers;
mod world;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use wharf_cluster::Preconditions;
use wharf_controllers::scheduler::{AssignedPods, CapacityCheck, Settings};
use wharf_model::names::annotation;
use wharf_model::{CSIDriver, CSINode, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use world::{DRIVER, DYNAMIC, STATIC, World};

/// A pod without volumes is bound to a node, with an event, and the API server sets its condition.
#[tokio::test]
async fn pod_is_bound_to_a_node() {
    let world = World::new().await;
    let scheduler = world.start_scheduler(Settings::default());
    let pod = world.pod("p", &[], json!({})).await;
    world.wait_for_condition(&pod, "Unschedulable", "no nodes available to schedule pods").await;
    world.node("n1", None).await;
    assert_eq!(world.wait_for_node(&pod).await, "n1");
    world.wait_for_event("FailedScheduling", "no nodes available to schedule pods").await;
    world.wait_for_event("Scheduled", "Successfully assigned default/p to n1").await;
    let placed = world.cluster.get::<Pod>(&pod).await.unwrap().unwrap();
    let condition = placed.status.conditions.iter().find(|condition| condition.kind == "PodScheduled");
    assert_eq!(condition.unwrap().status, "True");
    scheduler.stop().await;
}

/// Pods with another schedulerName or with scheduling gates are ignored.
#[tokio::test]
async fn foreign_and_gated_pods_are_ignored() {
    let world = World::new().await;
    world.node("n1", None).await;
    let scheduler = world.start_scheduler(Settings::default());
    let other = world.pod("other", &[], json!({"schedulerName": "somebody"})).await;
    let gated = world.pod("gated", &[], json!({"schedulingGates": [{"name": "g"}]})).await;
    let ours = world.pod("ours", &[], json!({})).await;
    world.wait_for_node(&ours).await;
    assert_eq!((world.node_of(&other).await, world.node_of(&gated).await), Default::default());
    world.patch::<Pod>(&gated, None, json!({"spec": {"schedulingGates": []}})).await;
    world.wait_for_node(&gated).await;
    assert_eq!(world.node_of(&other).await, "");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "PreBind", "Bind wait", dynamic: the claim gets its selected node, then its volume, and then the
/// pod is bound to the node.
#[tokio::test]
async fn volume_is_provisioned_before_the_pod_is_bound() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    let scheduler = world.start_scheduler(Settings::default());
    let claim = world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    world
        .wait_until("the claim's node", async || world.selected(&claim).await.as_deref() == Some("n1"))
        .await;
    assert_eq!(world.node_of(&pod).await, "", "not before its volume is bound");
    world.start_provisioner(0);
    assert_eq!(world.wait_for_node(&pod).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "PreBind", static: the pod is bound to the node that can access the volume, and the volume to the
/// claim.
#[tokio::test]
async fn pod_is_bound_to_the_node_of_its_volume() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.node("n2", None).await;
    world.start_binder();
    world.volume("v", "n2", "ReadWriteOnce").await;
    let scheduler = world.start_scheduler(Settings::default());
    let claim = world.claim("c", STATIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let placed = world.wait_for_node(&pod).await;
    let claim = world.cluster.get::<PersistentVolumeClaim>(&claim).await.unwrap().unwrap();
    assert_eq!((placed.as_str(), claim.spec.volume_name.as_str()), ("n2", "v"));
    let volume = world.cluster.get::<PersistentVolume>(&Key::cluster("v")).await.unwrap().unwrap();
    assert!(volume.is_bound_to(&claim.metadata));
    assert_eq!(volume.metadata.annotation(annotation::BOUND_BY_CONTROLLER), Some("yes"));
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Driver missing"; kubernetes#95911: the pod waits until its driver is registered on the node.
#[tokio::test]
async fn pod_waits_for_its_driver() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.patch::<CSINode>(&Key::cluster("n1"), None, json!({"spec": {"drivers": []}})).await;
    world.create::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {}})).await;
    world.start_provisioner(0);
    let scheduler = world.start_scheduler(Settings::default());
    world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let message = format!("0/1 nodes are available: 1 {DRIVER} CSI driver is not installed on the node.");
    world.wait_for_condition(&pod, "Unschedulable", &message).await;
    world.wait_for_event("FailedScheduling", &message).await;
    let drivers = json!([{"name": DRIVER, "nodeID": "n1", "topologyKeys": ["host"]}]);
    world.patch::<CSINode>(&Key::cluster("n1"), None, json!({"spec": {"drivers": drivers}})).await;
    assert_eq!(world.wait_for_node(&pod).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.1 "Reschedule": the pod is scheduled again.
#[tokio::test]
async fn failed_provisioning_reschedules_the_pod() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.start_provisioner(1);
    let scheduler = world.start_scheduler(Settings::default());
    world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let message =
        "running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"c\"";
    world.wait_for_event("FailedScheduling", message).await;
    assert_eq!(world.wait_for_node(&pod).await, "n1");
    scheduler.stop().await;
}

/// A driver without capacity clears the selected node of all claims of a pod, one by one. The second change does not
/// end the backoff: the pod waits one second, and then two.
#[tokio::test]
async fn failures_of_several_claims_back_off() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.start_provisioner(4);
    let (scheduler, started) = (world.start_scheduler(Settings::default()), Instant::now());
    for claim in ["a", "b"] {
        world.claim(claim, DYNAMIC, "ReadWriteOnce").await;
    }
    let pod = world.pod("p", &["a", "b"], json!({})).await;
    assert_eq!(world.wait_for_node(&pod).await, "n1");
    assert!(started.elapsed() >= Duration::from_secs(3), "{:?}", started.elapsed());
    scheduler.stop().await;
}

/// A volume that is never provisioned: after the timeout the pod is rescheduled.
#[tokio::test]
async fn binding_times_out() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    let settings = Settings { bind_timeout: Duration::from_millis(300), ..Settings::default() };
    let scheduler = world.start_scheduler(settings);
    world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let message = "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded";
    world.wait_for_condition(&pod, "SchedulerError", message).await;
    world.start_provisioner(0);
    assert_eq!(world.wait_for_node(&pod).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Limits": one volume fits; the second pod is scheduled when the first has terminated. Both are
/// created at once, so the first is only assumed when the second is evaluated.
#[tokio::test]
async fn volume_limit_is_respected() {
    let mut world = World::new().await;
    world.node("n1", Some(1)).await;
    world.start_provisioner(0);
    world.claim("a", DYNAMIC, "ReadWriteOnce").await;
    world.claim("b", DYNAMIC, "ReadWriteOnce").await;
    let pods = [world.pod("a", &["a"], json!({})).await, world.pod("b", &["b"], json!({})).await];
    let scheduler = world.start_scheduler(Settings::default());
    let on = async |pod| !world.node_of(pod).await.is_empty();
    world.wait_until("one of the pods", async || on(&pods[0]).await || on(&pods[1]).await).await;
    let (first, second) = if on(&pods[0]).await { (&pods[0], &pods[1]) } else { (&pods[1], &pods[0]) };
    world
        .wait_for_condition(
            second,
            "Unschedulable",
            "0/1 nodes are available: 1 node(s) exceed max volume count.",
        )
        .await;
    assert!(!on(second).await);
    // No node runs the pod, so the test terminates it.
    world.patch::<Pod>(first, Some("status"), json!({"status": {"phase": "Succeeded"}})).await;
    world.wait_for_node(second).await;
    scheduler.stop().await;
}

/// Many pods at once, with failures of provisioning: never more than the limit, and in the end exactly the limit.
#[tokio::test]
async fn volume_limit_is_respected_with_many_pods() {
    let mut world = World::new().await;
    let names: Vec<String> = (0..8).map(|i| format!("p{i}")).collect();
    let mut pods = Vec::new();
    for name in &names {
        world.claim(name, DYNAMIC, "ReadWriteOnce").await;
        pods.push(world.pod(name, &[name], json!({})).await);
    }
    for node in ["n1", "n2", "n3"] {
        world.node(node, Some(2)).await;
    }
    world.start_provisioner(3);
    let scheduler = world.start_scheduler(Settings::default());
    let on_nodes = async || {
        let mut nodes = BTreeMap::new();
        for pod in &pods {
            *nodes.entry(world.node_of(pod).await).or_insert(0) += 1;
        }
        nodes
    };
    let none = String::new();
    world
        .wait_until("all that fit", async || {
            let nodes = on_nodes().await;
            assert!(nodes.iter().all(|(node, pods)| *node == none || *pods <= 2), "{nodes:?}");
            nodes.get(&none) == Some(&2)
        })
        .await;
    world
        .wait_for_event("FailedScheduling", "0/3 nodes are available: 3 node(s) exceed max volume count.")
        .await;
    assert_eq!(on_nodes().await.len(), 4, "two on each node, and two on none");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Reserve": a pod that is deleted before its volume is bound frees its node resources at once.
#[tokio::test]
async fn deleted_pod_frees_what_was_assumed_for_it() {
    let world = World::new().await;
    world.node("n1", None).await;
    let full = json!({"status": {"allocatable": {"pods": "1"}}});
    world.patch::<Node>(&Key::cluster("n1"), Some("status"), full).await;
    let scheduler = world.start_scheduler(Settings::default());
    let claim = world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let first = world.pod("first", &["c"], json!({})).await;
    world.wait_until("the claim's node", async || world.selected(&claim).await.is_some()).await;
    let second = world.pod("second", &[], json!({})).await;
    world.wait_for_condition(&second, "Unschedulable", "0/1 nodes are available: 1 Too many pods.").await;
    world.cluster.delete(&Pod::API, &first, Preconditions::default()).await.unwrap();
    assert_eq!(world.wait_for_node(&second).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Capacity": a claim whose selected node is cleared frees its capacity.
#[tokio::test]
async fn released_capacity_is_available_again() {
    let world = World::new().await;
    world.create::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {"storageCapacity": true}})).await;
    world.node("n1", None).await;
    world.capacity("n1", "1Gi").await;
    let scheduler = world.start_scheduler(Settings::default());
    let claims =
        [world.claim("a", DYNAMIC, "ReadWriteOnce").await, world.claim("b", DYNAMIC, "ReadWriteOnce").await];
    let first = world.pod("a", &["a"], json!({})).await;
    world.wait_until("the first claim's node", async || world.selected(&claims[0]).await.is_some()).await;
    world.cluster.delete(&Pod::API, &first, Preconditions::default()).await.unwrap();
    let second = world.pod("b", &["b"], json!({})).await;
    let message = "0/1 nodes are available: 1 node(s) did not have enough free storage.";
    world.wait_for_condition(&second, "Unschedulable", message).await;
    let given_back = json!({"metadata": {"annotations": {annotation::SELECTED_NODE: null}}});
    world.patch::<PersistentVolumeClaim>(&claims[0], None, given_back).await;
    world.wait_until("the second claim's node", async || world.selected(&claims[1]).await.is_some()).await;
    scheduler.stop().await;
}

/// kubernetes#135985: two pods at once do not share the capacity for one; with upstream's check they do.
#[tokio::test]
async fn capacity_is_assumed_once() {
    for (check, apart) in [(CapacityCheck::Summed, true), (CapacityCheck::PerClaim, false)] {
        let world = World::new().await;
        world
            .create::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {"storageCapacity": true}}))
            .await;
        for node in ["n1", "n2"] {
            world.node(node, None).await;
            world.capacity(node, "1Gi").await;
        }
        // Otherwise the second pod would prefer the emptier node anyway.
        let away = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
        world.patch::<Node>(&Key::cluster("n2"), None, away).await;
        let claims = [
            world.claim("a", DYNAMIC, "ReadWriteOnce").await,
            world.claim("b", DYNAMIC, "ReadWriteOnce").await,
        ];
        world.pod("a", &["a"], json!({})).await;
        world.pod("b", &["b"], json!({})).await;
        let scheduler = world.start_scheduler(Settings { capacity_check: check, ..Settings::default() });
        let nodes = async || (world.selected(&claims[0]).await, world.selected(&claims[1]).await);
        world.wait_until("nodes for both", async || matches!(nodes().await, (Some(_), Some(_)))).await;
        let (first, second) = nodes().await;
        assert_eq!(first != second, apart, "{check:?}");
        scheduler.stop().await;
    }
}

/// kubernetes.md 1.5 "ReadWriteOncePod".
#[tokio::test]
async fn rwop_claim_is_used_by_one_pod() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.volume("v", "n1", "ReadWriteOncePod").await;
    world.start_binder();
    let scheduler = world.start_scheduler(Settings::default());
    world.claim("c", STATIC, "ReadWriteOncePod").await;
    let first = world.pod("first", &["c"], json!({})).await;
    world.wait_for_node(&first).await;
    let second = world.pod("second", &["c"], json!({})).await;
    let message = "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod \
                   access mode already in-use by another pod.";
    world.wait_for_condition(&second, "Unschedulable", message).await;
    world.patch::<Pod>(&first, Some("status"), json!({"status": {"phase": "Failed"}})).await;
    world.wait_for_node(&second).await;
    scheduler.stop().await;
}

/// kubernetes#95767: a pod that was created with a nodeName gets its volumes there; with upstream's setting it does
/// not.
#[tokio::test]
async fn preassigned_pod_gets_its_volumes() {
    for (assigned, bound) in [(AssignedPods::BindVolumes, true), (AssignedPods::Ignore, false)] {
        let world = World::new().await;
        world.node("n1", None).await;
        world.node("n2", None).await;
        let scheduler = world.start_scheduler(Settings { assigned_pods: assigned, ..Settings::default() });
        // The claim is created after its pod.
        world.pod("p", &["c"], json!({"nodeName": "n2"})).await;
        let claim = world.claim("c", DYNAMIC, "ReadWriteOnce").await;
        if bound {
            world.wait_until("the claim's node", async || world.selected(&claim).await.is_some()).await;
            assert_eq!(world.selected(&claim).await.as_deref(), Some("n2"));
        } else {
            // The other pod is scheduled after it.
            let other = world.pod("other", &[], json!({})).await;
            world.wait_for_node(&other).await;
            assert_eq!(world.selected(&claim).await, None);
        }
        scheduler.stop().await;
    }
}

/// A pod whose nodeName does not exist yet: nothing is reported, and its volumes are bound once the node exists.
#[tokio::test]
async fn preassigned_pod_waits_for_its_node() {
    let world = World::new().await;
    world.node("n1", None).await;
    let scheduler = world.start_scheduler(Settings::default());
    let claim = world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({"nodeName": "late"})).await;
    // The other pod is scheduled after it.
    let other = world.pod("other", &[], json!({})).await;
    world.wait_for_node(&other).await;
    world.node("late", None).await;
    world.wait_until("the claim's node", async || world.selected(&claim).await.is_some()).await;
    assert_eq!(world.selected(&claim).await.as_deref(), Some("late"));
    let pod = world.cluster.get::<Pod>(&pod).await.unwrap().unwrap();
    assert!(pod.status.conditions.iter().all(|condition| condition.status != "False"), "{pod:?}");
    scheduler.stop().await;
}

/// A crash between the claim's selected node and its volume: the next scheduler continues where the first stopped.
#[tokio::test]
async fn restart_keeps_the_selected_node() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.node("n2", None).await;
    let scheduler = world.start_scheduler(Settings::default());
    let claim = world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    world.wait_until("the claim's node", async || world.selected(&claim).await.is_some()).await;
    scheduler.stop().await;
    // The other node would be preferred by now.
    let full = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    world.patch::<Node>(&Key::cluster("n1"), None, full).await;
    let again = world.start_scheduler(Settings::default());
    world.start_provisioner(0);
    assert_eq!(world.wait_for_node(&pod).await, "n1");
    again.stop().await;
}
