//! Lives of the manager that end at any moment: the next one finds what was left.

use std::fs;
use std::path::Path;

use serde_json::json;
use wharf_csi::v1;
use wharf_driver_local::DRIVER_NAME;
use wharf_linux::{Linux, Mounts as _};
use wharf_model::whole::{Node, Pod};
use wharf_model::{Key, Kind as _};

use crate::harness::{Agent, Ground, NODE, Volume, directory, until};

/// A pod that has a volume with a file in it, and the life that mounted it.
async fn mounted(ground: &Ground) -> (Agent, Volume, std::sync::Arc<Pod>) {
    let volume = ground.volume("pv1", 32, "ext4").await;
    let pod = ground.pod_of("p", &volume).await;
    let agent = ground.agent();
    agent.volumes.want(pod.clone());
    ground.in_use(&[volume.unique()]).await;
    ground.attach(&volume).await;
    let path = directory(&agent.mounted(&pod).await, "data");
    fs::write(path.join("file"), "content").unwrap();
    (agent, volume, pod)
}

/// kubernetes.md 1.8 "Found": wanted, it is published again, and nothing of it is lost.
#[tokio::test]
async fn a_new_life_goes_on() {
    let ground = Ground::new().await;
    let (agent, volume, pod) = mounted(&ground).await;
    agent.kill().await;
    let before = ground.mounts();
    let agent = ground.agent();
    until("it is found", async || agent.volumes.pods().contains(&pod.metadata.uid).then_some(())).await;
    ground.in_use(&[volume.unique()]).await;
    assert_eq!(ground.mounts(), before, "what is found is left alone until all pods are known");
    agent.volumes.want(pod.clone());
    agent.volumes.settle();
    let path = directory(&agent.mounted(&pod).await, "data");
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "content");
    assert_eq!(ground.mounts(), before);
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    ground.gone().await;
    ground.in_use(&[]).await;
}

/// kubernetes.md 1.8 "Found", "Gate": not wanted, it goes, once all pods are known.
#[tokio::test]
async fn a_pod_that_went_meanwhile() {
    let ground = Ground::new().await;
    let (agent, _, pod) = mounted(&ground).await;
    agent.kill().await;
    let agent = ground.agent();
    until("it is found", async || agent.volumes.pods().contains(&pod.metadata.uid).then_some(())).await;
    agent.volumes.settle();
    agent.released(&pod).await;
    ground.gone().await;
    ground.in_use(&[]).await;
}

/// kubernetes#85476: unpublished and not unstaged when we died. Nobody but its own record knows of it.
#[tokio::test]
async fn what_is_staged_and_not_published_is_found() {
    let ground = Ground::new().await;
    let (agent, volume, pod) = mounted(&ground).await;
    agent.kill().await;
    let target = ground.root.publish(&pod.metadata.uid, "pv1").join("mount");
    let request = v1::NodeUnpublishVolumeRequest {
        volume_id: volume.handle.clone(),
        target_path: target.display().to_string(),
    };
    ground.driver.node().node_unpublish_volume(request).await.unwrap();
    fs::remove_dir_all(target.parent().unwrap()).unwrap();
    assert_eq!(ground.mounts().len(), 1, "the stage");

    let agent = ground.agent();
    ground.in_use(&[volume.unique()]).await;
    assert_eq!(ground.mounts().len(), 1, "not before all pods are known");
    agent.volumes.settle();
    ground.gone().await;
    ground.in_use(&[]).await;
}

/// kubernetes.md 1.8 "Found without a record"; kubernetes#85280: records are torn or missing; other evidence tells,
/// and what is mounted is not lost.
#[tokio::test]
async fn torn_and_missing_records() {
    for (name, stage, share) in [
        ("the share's is missing", Damage::None, Damage::Missing),
        ("the share's is torn", Damage::None, Damage::Torn),
        ("the stage's is torn", Damage::Torn, Damage::None),
        ("both are missing", Damage::Missing, Damage::Missing),
    ] {
        let ground = Ground::new().await;
        let (agent, volume, pod) = mounted(&ground).await;
        agent.kill().await;
        stage.done(&ground.root.stage(DRIVER_NAME, &volume.handle));
        share.done(&ground.root.publish(&pod.metadata.uid, "pv1"));
        let agent = ground.agent();
        until("it is found", async || agent.volumes.pods().contains(&pod.metadata.uid).then_some(())).await;
        agent.volumes.settle();
        agent.released(&pod).await;
        ground.gone().await;
        ground.in_use(&[]).await;
        println!("{name}: taken down");
    }
}

/// What is mounted and cannot be told is in use, whatever it is: detached, its disk would go under a mount.
#[tokio::test]
async fn what_cannot_be_told_stays_in_use() {
    let mut ground = Ground::new().await;
    let (agent, volume, pod) = mounted(&ground).await;
    agent.kill().await;
    Damage::Torn.done(&ground.root.stage(DRIVER_NAME, &volume.handle));
    Damage::Torn.done(&ground.root.publish(&pod.metadata.uid, "pv1"));
    // Without the pod, a node may not read its volume.
    let (api, key) = (Pod::API, Key::namespaced("default", "p"));
    ground.cluster.delete_now(&api, &key, Default::default()).await.unwrap();
    ground.lent = false;
    let in_use = json!({"volumesInUse": [volume.unique(), "kubernetes.io/csi/d^gone"]});
    ground.status::<Node>(&Key::cluster(NODE), in_use).await;
    let before = ground.mounts();
    let agent = ground.agent();
    let other = ground.volume("pv2", 32, "ext4").await;
    let another = ground.pod_of("other", &other).await;
    agent.volumes.want(another.clone());
    agent.volumes.settle();
    let all = ["kubernetes.io/csi/d^gone".to_owned(), volume.unique(), other.unique()];
    let mut all = all.to_vec();
    all.sort();
    ground.in_use(&all).await;
    agent.volumes.release(&another.metadata.uid);
    all.retain(|name| *name != other.unique());
    ground.in_use(&all).await;
    assert_eq!(ground.mounts(), before);
    agent.kill().await;
    // The driver's own: nobody else will.
    for path in before {
        Linux::new().unmount(&path).unwrap();
    }
}

enum Damage {
    None,
    Missing,
    Torn,
}

impl Damage {
    fn done(&self, dir: &Path) {
        let record = dir.join("vol_data.json");
        match self {
            Self::None => {}
            Self::Missing => fs::remove_file(record).unwrap(),
            Self::Torn => fs::write(record, "{\"driverName\":\"loc").unwrap(),
        }
    }
}

/// A pod that goes while its volume is being mounted: whatever was reached is taken down.
#[tokio::test]
async fn a_pod_that_goes_in_the_middle() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let agent = ground.agent();
    agent.volumes.settle();
    for step in 0..8 {
        let volume = ground.volume(&format!("pv{step}"), 32, "ext4").await;
        let pod = ground.pod_of(&format!("p{step}"), &volume).await;
        agent.volumes.want(pod.clone());
        tokio::time::sleep(std::time::Duration::from_millis(step * 15)).await;
        agent.volumes.release(&pod.metadata.uid);
        agent.released(&pod).await;
    }
    ground.gone().await;
}

/// The same with a life that ends in the middle, at many moments.
#[tokio::test]
async fn a_life_that_ends_in_the_middle() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 32, "ext4").await;
    for step in 0..10 {
        let pod = ground.pod_of(&format!("p{step}"), &volume).await;
        let agent = ground.agent();
        agent.volumes.settle();
        agent.volumes.want(pod.clone());
        tokio::time::sleep(std::time::Duration::from_millis(step * 12)).await;
        agent.kill().await;
        let agent = ground.agent();
        agent.volumes.settle();
        if step % 2 == 0 {
            agent.volumes.want(pod.clone());
            let path = directory(&agent.mounted(&pod).await, "data");
            fs::write(path.join(format!("file{step}")), "content").unwrap();
            agent.volumes.release(&pod.metadata.uid);
        }
        ground.gone().await;
        agent.kill().await;
    }
}
