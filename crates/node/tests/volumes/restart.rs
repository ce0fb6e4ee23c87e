//! Managers that are killed at any moment: the next one recovers their state.

use std::fs;
use std::path::Path;

use serde_json::json;
use wharf_csi::v1;
use wharf_driver_local::DRIVER_NAME;
use wharf_linux::{Linux, Mounts as _};
use wharf_model::{Key, Kind as _};
use wharf_model::{Node, Pod};

use crate::harness::{Agent, Fixture, NODE, Volume, directory, until};

/// A pod that has a volume mounted with a file in it, and the manager that mounted it.
async fn mounted(fixture: &Fixture) -> (Agent, Volume, std::sync::Arc<Pod>) {
    let volume = fixture.volume("pv1", 32, "ext4").await;
    let pod = fixture.pod_of("p", &volume).await;
    let agent = fixture.agent();
    agent.volumes.request(pod.clone());
    fixture.in_use(&[volume.unique()]).await;
    fixture.attach(&volume).await;
    let path = directory(&agent.mounted(&pod).await, "data");
    fs::write(path.join("file"), "content").unwrap();
    (agent, volume, pod)
}

/// kubernetes.md 1.8 "Found at start": if desired, it is published again, and no data is lost.
#[tokio::test]
async fn restarted_manager_keeps_desired_volumes() {
    let fixture = Fixture::new().await;
    let (agent, volume, pod) = mounted(&fixture).await;
    agent.kill().await;
    let before = fixture.mounts();
    let agent = fixture.agent();
    until("the volume to be found", async || agent.volumes.pods().contains(&pod.metadata.uid).then_some(()))
        .await;
    fixture.in_use(&[volume.unique()]).await;
    assert_eq!(fixture.mounts(), before, "found volumes are left alone until all pods are known");
    agent.volumes.request(pod.clone());
    agent.volumes.mark_pods_known();
    let path = directory(&agent.mounted(&pod).await, "data");
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "content");
    assert_eq!(fixture.mounts(), before);
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    fixture.gone().await;
    fixture.in_use(&[]).await;
}

/// kubernetes.md 1.8 "Found at start", "Wait for all pods": if not desired, it is unmounted once all pods are known.
#[tokio::test]
async fn restarted_manager_unmounts_volumes_of_deleted_pods() {
    let fixture = Fixture::new().await;
    let (agent, _, pod) = mounted(&fixture).await;
    agent.kill().await;
    let agent = fixture.agent();
    until("the volume to be found", async || agent.volumes.pods().contains(&pod.metadata.uid).then_some(()))
        .await;
    agent.volumes.mark_pods_known();
    agent.released(&pod).await;
    fixture.gone().await;
    fixture.in_use(&[]).await;
}

/// kubernetes#85476: killed between unpublish and unstage. Only the staged volume's own record is left.
#[tokio::test]
async fn staged_but_unpublished_volume_is_found() {
    let fixture = Fixture::new().await;
    let (agent, volume, pod) = mounted(&fixture).await;
    agent.kill().await;
    let target = fixture.root.publish(&pod.metadata.uid, "pv1").join("mount");
    let request = v1::NodeUnpublishVolumeRequest {
        volume_id: volume.handle.clone(),
        target_path: target.display().to_string(),
    };
    fixture.driver.node().node_unpublish_volume(request).await.unwrap();
    fs::remove_dir_all(target.parent().unwrap()).unwrap();
    assert_eq!(fixture.mounts().len(), 1, "the stage");

    let agent = fixture.agent();
    fixture.in_use(&[volume.unique()]).await;
    assert_eq!(fixture.mounts().len(), 1, "not before all pods are known");
    agent.volumes.mark_pods_known();
    fixture.gone().await;
    fixture.in_use(&[]).await;
}

/// kubernetes.md 1.8 "Found without a record"; kubernetes#85280: records are truncated or missing; other evidence
/// identifies the volume, and it is unmounted.
#[tokio::test]
async fn volumes_with_damaged_records_are_unmounted() {
    for (name, stage, published) in [
        ("the published volume's is missing", Damage::None, Damage::Missing),
        ("the published volume's is truncated", Damage::None, Damage::Torn),
        ("the staged volume's is truncated", Damage::Torn, Damage::None),
        ("both are missing", Damage::Missing, Damage::Missing),
    ] {
        let fixture = Fixture::new().await;
        let (agent, volume, pod) = mounted(&fixture).await;
        agent.kill().await;
        stage.apply(&fixture.root.stage(DRIVER_NAME, &volume.handle));
        published.apply(&fixture.root.publish(&pod.metadata.uid, "pv1"));
        let agent = fixture.agent();
        until("the volume to be found", async || {
            agent.volumes.pods().contains(&pod.metadata.uid).then_some(())
        })
        .await;
        agent.volumes.mark_pods_known();
        agent.released(&pod).await;
        fixture.gone().await;
        fixture.in_use(&[]).await;
        println!("{name}: unmounted");
    }
}

/// An unidentified mount counts as in use: if its volume were detached, the disk would disappear under the mount.
#[tokio::test]
async fn unidentified_mount_stays_in_use() {
    let mut fixture = Fixture::new().await;
    let (agent, volume, pod) = mounted(&fixture).await;
    agent.kill().await;
    Damage::Torn.apply(&fixture.root.stage(DRIVER_NAME, &volume.handle));
    Damage::Torn.apply(&fixture.root.publish(&pod.metadata.uid, "pv1"));
    // Without the pod, a node may not read the pod's volume.
    let (api, key) = (Pod::API, Key::namespaced("default", "p"));
    fixture.cluster.delete_without_grace(&api, &key, Default::default()).await.unwrap();
    fixture.privileged_client = false;
    let in_use = json!({"volumesInUse": [volume.unique(), "kubernetes.io/csi/d^gone"]});
    fixture.status::<Node>(&Key::cluster(NODE), in_use).await;
    let before = fixture.mounts();
    let agent = fixture.agent();
    let other = fixture.volume("pv2", 32, "ext4").await;
    let another = fixture.pod_of("other", &other).await;
    agent.volumes.request(another.clone());
    agent.volumes.mark_pods_known();
    let all = ["kubernetes.io/csi/d^gone".to_owned(), volume.unique(), other.unique()];
    let mut all = all.to_vec();
    all.sort();
    fixture.in_use(&all).await;
    agent.volumes.release(&another.metadata.uid);
    all.retain(|name| *name != other.unique());
    fixture.in_use(&all).await;
    assert_eq!(fixture.mounts(), before);
    agent.kill().await;
    // Mounts of the driver that nothing else will unmount.
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
    fn apply(&self, dir: &Path) {
        let record = dir.join("vol_data.json");
        match self {
            Self::None => {}
            Self::Missing => fs::remove_file(record).unwrap(),
            Self::Torn => fs::write(record, "{\"driverName\":\"loc").unwrap(),
        }
    }
}

/// A pod released while its volume is being mounted: whatever was done is undone.
#[tokio::test]
async fn pod_released_during_mount_is_cleaned_up() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    for step in 0..8 {
        let volume = fixture.volume(&format!("pv{step}"), 32, "ext4").await;
        let pod = fixture.pod_of(&format!("p{step}"), &volume).await;
        agent.volumes.request(pod.clone());
        tokio::time::sleep(std::time::Duration::from_millis(step * 15)).await;
        agent.volumes.release(&pod.metadata.uid);
        agent.released(&pod).await;
    }
    fixture.gone().await;
}

/// Like the previous test, with the manager killed at different points.
#[tokio::test]
async fn manager_killed_during_mount_is_recovered() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 32, "ext4").await;
    for step in 0..10 {
        let pod = fixture.pod_of(&format!("p{step}"), &volume).await;
        let agent = fixture.agent();
        agent.volumes.mark_pods_known();
        agent.volumes.request(pod.clone());
        tokio::time::sleep(std::time::Duration::from_millis(step * 12)).await;
        agent.kill().await;
        let agent = fixture.agent();
        agent.volumes.mark_pods_known();
        if step % 2 == 0 {
            agent.volumes.request(pod.clone());
            let path = directory(&agent.mounted(&pod).await, "data");
            fs::write(path.join(format!("file{step}")), "content").unwrap();
            agent.volumes.release(&pod.metadata.uid);
        }
        fixture.gone().await;
        agent.kill().await;
    }
}
