//! The scheduler on the embedded API, with hands in the test that provision and bind.
#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the answer

mod together;
mod world;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use wharf_cluster::Preconditions;
use wharf_controllers::scheduler::{AssignedPods, CapacityCheck, Settings};
use wharf_model::names::annotation;
use wharf_model::whole::{Node, Pod};
use wharf_model::{CSIDriver, CSINode, Key, Kind, PersistentVolume, PersistentVolumeClaim};
use world::{DRIVER, FIXED, MADE, World};

/// A pod without volumes gets a node, an event says so, and the server marks it scheduled.
#[tokio::test]
async fn a_pod_gets_a_node() {
    let world = World::new().await;
    let scheduler = world.schedule(Settings::default());
    let pod = world.pod("p", &[], json!({})).await;
    world.waits(&pod, "Unschedulable", "no nodes available to schedule pods").await;
    world.node("n1", None).await;
    assert_eq!(world.placed(&pod).await, "n1");
    world.told("FailedScheduling", "no nodes available to schedule pods").await;
    world.told("Scheduled", "Successfully assigned default/p to n1").await;
    let placed = world.cluster.get::<Pod>(&pod).await.unwrap().unwrap();
    let condition = placed.status.conditions.iter().find(|condition| condition.kind == "PodScheduled");
    assert_eq!(condition.unwrap().status, "True");
    scheduler.stop().await;
}

/// Others' pods, and pods behind a gate, are left alone.
#[tokio::test]
async fn only_pods_that_are_ours() {
    let world = World::new().await;
    world.node("n1", None).await;
    let scheduler = world.schedule(Settings::default());
    let other = world.pod("other", &[], json!({"schedulerName": "somebody"})).await;
    let gated = world.pod("gated", &[], json!({"schedulingGates": [{"name": "g"}]})).await;
    let ours = world.pod("ours", &[], json!({})).await;
    world.placed(&ours).await;
    assert_eq!((world.node_of(&other).await, world.node_of(&gated).await), Default::default());
    world.patch::<Pod>(&gated, None, json!({"spec": {"schedulingGates": []}})).await;
    world.placed(&gated).await;
    assert_eq!(world.node_of(&other).await, "");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "PreBind", "Bind wait", dynamic: the claim gets its node, then its volume, and then the pod gets
/// the node.
#[tokio::test]
async fn a_volume_is_made_for_the_pod() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    let scheduler = world.schedule(Settings::default());
    let claim = world.claim("c", MADE, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    world.until("the claim's node", async || world.selected(&claim).await.as_deref() == Some("n1")).await;
    assert_eq!(world.node_of(&pod).await, "", "not before it has its volume");
    world.provision(0);
    assert_eq!(world.placed(&pod).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "PreBind", static: the node is the one that reaches the volume, and the volume is given to the
/// claim.
#[tokio::test]
async fn a_pod_goes_where_its_volume_is() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.node("n2", None).await;
    world.bind();
    world.volume("v", "n2", "ReadWriteOnce").await;
    let scheduler = world.schedule(Settings::default());
    let claim = world.claim("c", FIXED, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let placed = world.placed(&pod).await;
    let claim = world.cluster.get::<PersistentVolumeClaim>(&claim).await.unwrap().unwrap();
    assert_eq!((placed.as_str(), claim.spec.volume_name.as_str()), ("n2", "v"));
    let volume = world.cluster.get::<PersistentVolume>(&Key::cluster("v")).await.unwrap().unwrap();
    assert!(volume.is_bound_to(&claim.metadata));
    assert_eq!(volume.metadata.annotation(annotation::BOUND_BY_CONTROLLER), Some("yes"));
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Driver missing"; kubernetes#95911: the driver has to be there, and the pod goes as soon as it
/// is.
#[tokio::test]
async fn a_pod_waits_for_its_driver() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.patch::<CSINode>(&Key::cluster("n1"), None, json!({"spec": {"drivers": []}})).await;
    world.make::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {}})).await;
    world.provision(0);
    let scheduler = world.schedule(Settings::default());
    world.claim("c", MADE, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let message = format!("0/1 nodes are available: 1 {DRIVER} CSI driver is not installed on the node.");
    world.waits(&pod, "Unschedulable", &message).await;
    world.told("FailedScheduling", &message).await;
    let drivers = json!([{"name": DRIVER, "nodeID": "n1", "topologyKeys": ["host"]}]);
    world.patch::<CSINode>(&Key::cluster("n1"), None, json!({"spec": {"drivers": drivers}})).await;
    assert_eq!(world.placed(&pod).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.1 "Reschedule": a node is chosen again.
#[tokio::test]
async fn provisioning_that_fails_is_begun_again() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.provision(1);
    let scheduler = world.schedule(Settings::default());
    world.claim("c", MADE, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let message =
        "running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"c\"";
    world.told("FailedScheduling", message).await;
    assert_eq!(world.placed(&pod).await, "n1");
    scheduler.stop().await;
}

/// A driver without room takes the node off all of a pod's claims, one after the other. That the second has changed is no
/// news: the pod waits a second, and then two.
#[tokio::test]
async fn failures_of_several_claims_have_their_pauses() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.provision(4);
    let (scheduler, begun) = (world.schedule(Settings::default()), Instant::now());
    for claim in ["a", "b"] {
        world.claim(claim, MADE, "ReadWriteOnce").await;
    }
    let pod = world.pod("p", &["a", "b"], json!({})).await;
    assert_eq!(world.placed(&pod).await, "n1");
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
    scheduler.stop().await;
}

/// A volume that nobody makes: after the time for it, a node is chosen again.
#[tokio::test]
async fn binding_does_not_wait_for_ever() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    let settings = Settings { bind_timeout: Duration::from_millis(300), ..Settings::default() };
    let scheduler = world.schedule(settings);
    world.claim("c", MADE, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let message = "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded";
    world.waits(&pod, "SchedulerError", message).await;
    world.provision(0);
    assert_eq!(world.placed(&pod).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Limits": one volume fits; the second pod goes when the first has left. Both come at once, so
/// the first is only promised its place when the second is looked at.
#[tokio::test]
async fn no_more_volumes_than_fit() {
    let mut world = World::new().await;
    world.node("n1", Some(1)).await;
    world.provision(0);
    world.claim("a", MADE, "ReadWriteOnce").await;
    world.claim("b", MADE, "ReadWriteOnce").await;
    let pods = [world.pod("a", &["a"], json!({})).await, world.pod("b", &["b"], json!({})).await];
    let scheduler = world.schedule(Settings::default());
    let on = async |pod| !world.node_of(pod).await.is_empty();
    world.until("one of the pods", async || on(&pods[0]).await || on(&pods[1]).await).await;
    let (first, second) = if on(&pods[0]).await { (&pods[0], &pods[1]) } else { (&pods[1], &pods[0]) };
    world.waits(second, "Unschedulable", "0/1 nodes are available: 1 node(s) exceed max volume count.").await;
    assert!(!on(second).await);
    // Nobody runs it here, so nobody lets it end: it ends at once.
    world.patch::<Pod>(first, Some("status"), json!({"status": {"phase": "Succeeded"}})).await;
    world.placed(second).await;
    scheduler.stop().await;
}

/// The same with many pods at once, and volumes that fail to be made: never more than fit, and never fewer in the end.
#[tokio::test]
async fn many_at_once() {
    let mut world = World::new().await;
    let names: Vec<String> = (0..8).map(|i| format!("p{i}")).collect();
    let mut pods = Vec::new();
    for name in &names {
        world.claim(name, MADE, "ReadWriteOnce").await;
        pods.push(world.pod(name, &[name], json!({})).await);
    }
    for node in ["n1", "n2", "n3"] {
        world.node(node, Some(2)).await;
    }
    world.provision(3);
    let scheduler = world.schedule(Settings::default());
    let on_nodes = async || {
        let mut nodes = BTreeMap::new();
        for pod in &pods {
            *nodes.entry(world.node_of(pod).await).or_insert(0) += 1;
        }
        nodes
    };
    let none = String::new();
    world
        .until("all that fit", async || {
            let nodes = on_nodes().await;
            assert!(nodes.iter().all(|(node, pods)| *node == none || *pods <= 2), "{nodes:?}");
            nodes.get(&none) == Some(&2)
        })
        .await;
    world.told("FailedScheduling", "0/3 nodes are available: 3 node(s) exceed max volume count.").await;
    assert_eq!(on_nodes().await.len(), 4, "two on each node, and two on none");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Reserve": what was promised to a pod that goes before its volume is there is another's at once.
#[tokio::test]
async fn who_goes_gives_back_what_it_was_promised() {
    let world = World::new().await;
    world.node("n1", None).await;
    let full = json!({"status": {"allocatable": {"pods": "1"}}});
    world.patch::<Node>(&Key::cluster("n1"), Some("status"), full).await;
    let scheduler = world.schedule(Settings::default());
    let claim = world.claim("c", MADE, "ReadWriteOnce").await;
    let first = world.pod("first", &["c"], json!({})).await;
    world.until("the claim's node", async || world.selected(&claim).await.is_some()).await;
    let second = world.pod("second", &[], json!({})).await;
    world.waits(&second, "Unschedulable", "0/1 nodes are available: 1 Too many pods.").await;
    world.cluster.delete(&Pod::API, &first, Preconditions::default()).await.unwrap();
    assert_eq!(world.placed(&second).await, "n1");
    scheduler.stop().await;
}

/// kubernetes.md 1.5 "Capacity": the room of a claim whose node is taken off, and that nobody wants any more.
#[tokio::test]
async fn room_that_is_given_back_is_anothers() {
    let world = World::new().await;
    world.make::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {"storageCapacity": true}})).await;
    world.node("n1", None).await;
    world.room("n1", "1Gi").await;
    let scheduler = world.schedule(Settings::default());
    let claims =
        [world.claim("a", MADE, "ReadWriteOnce").await, world.claim("b", MADE, "ReadWriteOnce").await];
    let first = world.pod("a", &["a"], json!({})).await;
    world.until("the first claim's node", async || world.selected(&claims[0]).await.is_some()).await;
    world.cluster.delete(&Pod::API, &first, Preconditions::default()).await.unwrap();
    let second = world.pod("b", &["b"], json!({})).await;
    let message = "0/1 nodes are available: 1 node(s) did not have enough free storage.";
    world.waits(&second, "Unschedulable", message).await;
    let given_back = json!({"metadata": {"annotations": {annotation::SELECTED_NODE: null}}});
    world.patch::<PersistentVolumeClaim>(&claims[0], None, given_back).await;
    world.until("the second claim's node", async || world.selected(&claims[1]).await.is_some()).await;
    scheduler.stop().await;
}

/// kubernetes#135985: two pods at once do not share room for one; upstream's check lets them.
#[tokio::test]
async fn room_is_promised_once() {
    for (check, apart) in [(CapacityCheck::Summed, true), (CapacityCheck::PerClaim, false)] {
        let world = World::new().await;
        world
            .make::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {"storageCapacity": true}}))
            .await;
        for node in ["n1", "n2"] {
            world.node(node, None).await;
            world.room(node, "1Gi").await;
        }
        // Else the second would go to the emptier node anyway.
        let away = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
        world.patch::<Node>(&Key::cluster("n2"), None, away).await;
        let claims =
            [world.claim("a", MADE, "ReadWriteOnce").await, world.claim("b", MADE, "ReadWriteOnce").await];
        world.pod("a", &["a"], json!({})).await;
        world.pod("b", &["b"], json!({})).await;
        let scheduler = world.schedule(Settings { capacity: check, ..Settings::default() });
        let nodes = async || (world.selected(&claims[0]).await, world.selected(&claims[1]).await);
        world.until("nodes for both", async || matches!(nodes().await, (Some(_), Some(_)))).await;
        let (first, second) = nodes().await;
        assert_eq!(first != second, apart, "{check:?}");
        scheduler.stop().await;
    }
}

/// kubernetes.md 1.5 "ReadWriteOncePod".
#[tokio::test]
async fn a_claim_for_one_pod_is_for_one_pod() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.volume("v", "n1", "ReadWriteOncePod").await;
    world.bind();
    let scheduler = world.schedule(Settings::default());
    world.claim("c", FIXED, "ReadWriteOncePod").await;
    let first = world.pod("first", &["c"], json!({})).await;
    world.placed(&first).await;
    let second = world.pod("second", &["c"], json!({})).await;
    let message = "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod \
                   access mode already in-use by another pod.";
    world.waits(&second, "Unschedulable", message).await;
    world.patch::<Pod>(&first, Some("status"), json!({"status": {"phase": "Failed"}})).await;
    world.placed(&second).await;
    scheduler.stop().await;
}

/// kubernetes#95767: a pod on a node by hand gets its volumes there; upstream's way leaves it.
#[tokio::test]
async fn pods_put_on_a_node_get_their_volumes() {
    for (assigned, seen_to) in [(AssignedPods::SeeToVolumes, true), (AssignedPods::Leave, false)] {
        let world = World::new().await;
        world.node("n1", None).await;
        world.node("n2", None).await;
        let scheduler = world.schedule(Settings { assigned, ..Settings::default() });
        // The claim comes after its pod.
        world.pod("p", &["c"], json!({"nodeName": "n2"})).await;
        let claim = world.claim("c", MADE, "ReadWriteOnce").await;
        if seen_to {
            world.until("the claim's node", async || world.selected(&claim).await.is_some()).await;
            assert_eq!(world.selected(&claim).await.as_deref(), Some("n2"));
        } else {
            // Another pod's turn comes after it.
            let other = world.pod("other", &[], json!({})).await;
            world.placed(&other).await;
            assert_eq!(world.selected(&claim).await, None);
        }
        scheduler.stop().await;
    }
}

/// The same of a node that comes after its pod. Until then nothing is said.
#[tokio::test]
async fn pods_put_on_a_node_wait_for_it() {
    let world = World::new().await;
    world.node("n1", None).await;
    let scheduler = world.schedule(Settings::default());
    let claim = world.claim("c", MADE, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({"nodeName": "late"})).await;
    // Another pod's turn comes after it.
    let other = world.pod("other", &[], json!({})).await;
    world.placed(&other).await;
    world.node("late", None).await;
    world.until("the claim's node", async || world.selected(&claim).await.is_some()).await;
    assert_eq!(world.selected(&claim).await.as_deref(), Some("late"));
    let pod = world.cluster.get::<Pod>(&pod).await.unwrap().unwrap();
    assert!(pod.status.conditions.iter().all(|condition| condition.status != "False"), "{pod:?}");
    scheduler.stop().await;
}

/// "And if we die here?": between the claim's node and its volume. The next one goes on where the first ended.
#[tokio::test]
async fn a_restart_keeps_what_was_chosen() {
    let mut world = World::new().await;
    world.node("n1", None).await;
    world.node("n2", None).await;
    let scheduler = world.schedule(Settings::default());
    let claim = world.claim("c", MADE, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    world.until("the claim's node", async || world.selected(&claim).await.is_some()).await;
    scheduler.stop().await;
    // The other node would be better by now.
    let full = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    world.patch::<Node>(&Key::cluster("n1"), None, full).await;
    let again = world.schedule(Settings::default());
    world.provision(0);
    assert_eq!(world.placed(&pod).await, "n1");
    again.stop().await;
}
