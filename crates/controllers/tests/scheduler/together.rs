//! The scheduler beside the controllers that bind claims: nothing in the test plays their part.

use serde_json::json;
use wharf_cluster::Preconditions;
use wharf_controllers::scheduler::Settings;
use wharf_model::claim::ClaimPhase;
use wharf_model::volume::VolumePhase;
use wharf_model::whole::Node;
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim};

use super::world::{FIXED, MADE, World};

/// A pod with a volume that is there and one that is made for it alone.
#[tokio::test]
async fn volumes_of_both_kinds() {
    let mut world = World::new().await;
    world.control();
    world.provision(0);
    world.node("n1", None).await;
    world.node("n2", None).await;
    world.volume("v", "n2", "ReadWriteOnce").await;
    let scheduler = world.schedule(Settings::default());
    let claim = world.claim("c", FIXED, "ReadWriteOnce").await;
    let template = json!({"spec": {
        "storageClassName": MADE, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }});
    let volumes = json!([
        {"name": "c", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "e", "ephemeral": {"volumeClaimTemplate": template}},
    ]);
    let pod = world.pod("p", &[], json!({"volumes": volumes})).await;
    assert_eq!(world.placed(&pod).await, "n2");
    for claim in [&claim, &Key::namespaced("default", "p-e")] {
        let bound = async || {
            let claim = world.cluster.get::<PersistentVolumeClaim>(claim).await.unwrap().unwrap();
            claim.status.phase == ClaimPhase::Bound
        };
        world.until("a bound claim", bound).await;
    }
    let volume = world.cluster.get::<PersistentVolume>(&Key::cluster("v")).await.unwrap().unwrap();
    assert_eq!(volume.status.phase, VolumePhase::Bound);
    scheduler.stop().await;
}

/// kubernetes#100485: the node that was chosen goes before the volume is there.
#[tokio::test]
async fn a_node_that_goes_is_given_up() {
    let mut world = World::new().await;
    world.control();
    world.node("n1", None).await;
    let scheduler = world.schedule(Settings::default());
    let claim = world.claim("c", MADE, "ReadWriteOnce").await;
    let pod = world.pod("p", &["c"], json!({})).await;
    let selected = async |node: &str| world.selected(&claim).await.as_deref() == Some(node);
    world.until("the first node", async || selected("n1").await).await;
    world.node("n2", None).await;
    world.cluster.delete(&Node::API, &Key::cluster("n1"), Preconditions::default()).await.unwrap();
    world.until("the second node", async || selected("n2").await).await;
    world.provision(0);
    assert_eq!(world.placed(&pod).await, "n2");
    scheduler.stop().await;
}
