//! The scheduler together with the real binder and ephemeral controller.

use serde_json::json;
use wharf_cluster::Preconditions;
use wharf_controllers::scheduler::Settings;
use wharf_model::claim::ClaimPhase;
use wharf_model::volume::VolumePhase;
use wharf_model::{Key, Kind, Node, PersistentVolume, PersistentVolumeClaim};

use super::world::{DYNAMIC, STATIC, World};

/// A pod with an existing volume and a generic ephemeral volume.
#[tokio::test]
async fn static_and_ephemeral_volumes_are_bound() {
    let mut world = World::new().await;
    world.start_controllers();
    world.start_provisioner(0);
    world.node("n1", None).await;
    world.node("n2", None).await;
    world.volume("v", "n2", "ReadWriteOnce").await;
    let scheduler = world.start_scheduler(Settings::default());
    let claim = world.claim("c", STATIC, "ReadWriteOnce").await;
    let template = json!({"spec": {
        "storageClassName": DYNAMIC, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }});
    let volumes = json!([
        {"name": "c", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "e", "ephemeral": {"volumeClaimTemplate": template}},
    ]);
    let pod = world.pod("p", &[], json!({"volumes": volumes})).await;
    assert_eq!(world.wait_for_node(&pod).await, "n2");
    for claim in [&claim, &Key::namespaced("default", "p-e")] {
        let bound = async || {
            let claim = world.cluster.get::<PersistentVolumeClaim>(claim).await.unwrap().unwrap();
            claim.status.phase == ClaimPhase::Bound
        };
        world.wait_until("a bound claim", bound).await;
    }
    let volume = world.cluster.get::<PersistentVolume>(&Key::cluster("v")).await.unwrap().unwrap();
    assert_eq!(volume.status.phase, VolumePhase::Bound);
    scheduler.stop().await;
}

/// kubernetes#100485: the selected node is deleted before the volume is provisioned.
#[tokio::test]
async fn deleted_selected_node_is_replaced() {
    let mut world = World::new().await;
    world.start_controllers();
    world.node("n1", None).await;
    let scheduler = world.start_scheduler(Settings::default());
    let claim = world.claim("c", DYNAMIC, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let selected = async |node: &str| world.selected(&claim).await.as_deref() == Some(node);
    world.wait_until("the first node", async || selected("n1").await).await;
    world.node("n2", None).await;
    world.cluster.delete(&Node::API, &Key::cluster("n1"), Preconditions::default()).await.unwrap();
    world.wait_until("the second node", async || selected("n2").await).await;
    world.start_provisioner(0);
    assert_eq!(world.wait_for_node(&pod).await, "n2");
    scheduler.stop().await;
}
