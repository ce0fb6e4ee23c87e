//! The volume manager with a real driver on the real kernel: mounts, devices and files are looked at, not believed.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod changes;
mod harness;
mod lives;

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::Duration;

use harness::{Ground, MIB, agreeing, claim, directory, until};
use serde_json::json;
use tokio::time::{sleep, timeout};
use wharf_cluster::WatchOptions;
use wharf_driver_local::DRIVER_NAME;
use wharf_model::claim::ResizeStatus;
use wharf_model::names::condition;
use wharf_model::{Event, Key, PersistentVolume, PersistentVolumeClaim};
use wharf_node::volumes::{Place, Settings};

/// kubernetes.md 1.8 "Handshake", "Stage path", "Publish path", "Removal", "Orphans": from the handshake to the last
/// file: in use, attached, staged, published, and back.
#[tokio::test]
async fn a_pod_has_its_volume_and_lets_go() {
    let ground = Ground::new().await;
    let volume = ground.volume("pv1", 32, "ext4").await;
    let pod = ground.pod_of("p", &volume).await;
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    ground.in_use(&[volume.unique()]).await;
    assert_eq!(*agent.volumes.in_use().borrow(), [volume.unique()]);
    sleep(Duration::from_millis(200)).await;
    assert!(ground.mounts().is_empty(), "nothing is touched before it is attached");
    ground.attach(&volume).await;

    let mounted = agent.mounted(&pod).await;
    let path = directory(&mounted, "data");
    assert_eq!(path, ground.root.publish(&pod.metadata.uid, "pv1").join("mount"));
    fs::write(path.join("file"), "content").unwrap();
    let staged = ground.root.stage(DRIVER_NAME, &volume.handle);
    assert_eq!(fs::read_to_string(staged.join("globalmount/file")).unwrap(), "content");
    assert_eq!(ground.mounts().len(), 2, "stage and share");
    let record = fs::read_to_string(staged.join("vol_data.json")).unwrap();
    assert_eq!(
        record,
        format!("{{\"driverName\":\"{DRIVER_NAME}\",\"volumeHandle\":\"{}\"}}\n", volume.handle)
    );
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(path.with_file_name("vol_data.json")).unwrap()).unwrap();
    assert_eq!((&record["specVolID"], &record["nodeName"]), (&json!("pv1"), &json!("node-1")));

    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    ground.gone().await;
    ground.in_use(&[]).await;
    assert!(agent.volumes.pods().is_empty());
    assert!(!staged.exists() && !path.parent().unwrap().exists());
}

/// kubernetes.md 1.8 "Device paths": the device itself, its record and its link.
#[tokio::test]
async fn a_device_is_a_device() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 8, "").await;
    let pod = ground.pod("p", json!([claim("disk", &volume)]), &["disk"], json!({})).await;
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    let mounted = agent.mounted(&pod).await;
    let Place::Device { path, read_only: false } = &mounted.volumes["disk"] else { panic!("{mounted:?}") };
    assert_eq!(*path, ground.root.device_publish("pv1", &pod.metadata.uid));
    assert!(fs::metadata(path).unwrap().file_type().is_block_device());
    let link = ground.root.pod(&pod.metadata.uid).join("volumeDevices/kubernetes.io~csi/pv1");
    assert_eq!(fs::read_link(&link).unwrap(), *path);
    fs::write(path, [7; 4096]).unwrap();
    assert!(ground.root.device_data("pv1").join("vol_data.json").exists());
    assert!(agent.volumes.in_use().borrow().is_empty(), "it is not attached");

    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    ground.gone().await;
    until("the directories go", async || (!ground.root.devices().join("pv1").exists()).then_some(())).await;
    assert!(!ground.root.device_stage("pv1").exists() && fs::symlink_metadata(&link).is_err());
}

/// kubernetes.md 1.8 "Device paths", "Removal": a driver without STAGE_UNSTAGE_VOLUME is never asked to unstage, and of
/// its device no record is left either.
#[tokio::test]
async fn a_device_that_is_not_staged_leaves_no_record() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 8, "").await;
    let pod = ground.pod("p", json!([claim("disk", &volume)]), &["disk"], json!({})).await;
    let (plugin, calls) = agreeing();
    ground.plugins.put(plugin);
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    agent.mounted(&pod).await;
    assert!(ground.root.device_data("pv1").join("vol_data.json").exists());
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    ground.gone().await;
    until("the directories go", async || (!ground.root.devices().join("pv1").exists()).then_some(())).await;
    let calls = calls.lock().unwrap();
    assert_eq!(*calls, ["/csi.v1.Node/NodePublishVolume", "/csi.v1.Node/NodeUnpublishVolume"]);
}

/// kubernetes.md 1.8 "fsGroup", "Ownership": the files belong to the pod's group before the pod has them.
#[tokio::test]
async fn files_belong_to_the_pods_group() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 32, "ext4").await;
    let context = json!({"fsGroup": 4242, "fsGroupChangePolicy": "OnRootMismatch"});
    let pod = ground.pod("p", json!([claim("data", &volume)]), &[], context).await;
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    let path = directory(&agent.mounted(&pod).await, "data");
    let root = fs::metadata(&path).unwrap();
    assert_eq!((root.gid(), root.mode() & 0o2070), (4242, 0o2070));
}

/// kubernetes.md 1.4 "Node side", "Node writes", online: the file system grows, and the claim says so.
#[tokio::test]
async fn a_volume_grows_while_the_pod_has_it() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 320, "xfs").await;
    let pod = ground.pod_of("p", &volume).await;
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    let path = directory(&agent.mounted(&pod).await, "data");
    let size = || rustix::fs::statvfs(&path).map(|stat| stat.f_blocks * stat.f_frsize).unwrap();
    let before = size();
    // What the user and the resizer do.
    let key = Key::namespaced("default", "pv1");
    let bytes = 640 * MIB;
    let request = wharf_csi::v1::ControllerExpandVolumeRequest {
        volume_id: volume.handle.clone(),
        capacity_range: Some(wharf_csi::v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    };
    ground.driver.controller().controller_expand_volume(request).await.unwrap();
    ground.grow("pv1", "640Mi").await;
    ground
        .status::<PersistentVolumeClaim>(
            &key,
            json!({
                "allocatedResources": {"storage": "640Mi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
                "conditions": [{"type": condition::FILE_SYSTEM_RESIZE_PENDING, "status": "True"}],
            }),
        )
        .await;
    let claim = until("the claim has its size", async || {
        let claim = ground.claim(&volume).await;
        (claim.status.capacity.storage.unwrap().bytes() == bytes).then_some(claim)
    })
    .await;
    assert_eq!(claim.status.allocated_resource_statuses.storage, None);
    assert!(claim.status.condition(condition::FILE_SYSTEM_RESIZE_PENDING).is_none());
    assert!(size() > before + 200 * MIB as u64, "{before} → {}", size());
    ground.event("FileSystemResizeSuccessful").await;
}

/// A node's own rights are enough: what it may not watch it sees at its next look.
#[tokio::test]
async fn with_a_nodes_rights_alone() {
    let mut ground = Ground::new().await;
    ground.lent = false;
    let volume = ground.volume("pv1", 32, "ext4").await;
    let pod = ground.pod_of("p", &volume).await;
    let agent = ground.agent_with(Settings { resync: Duration::from_millis(100), ..Settings::default() });
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    ground.in_use(&[volume.unique()]).await;
    ground.attach(&volume).await;
    agent.mounted(&pod).await;
    // What a resizer leaves to the node: this driver has nothing to do there for a volume that has its size already.
    ground.grow("pv1", "33Mi").await;
    ground
        .status::<PersistentVolumeClaim>(
            &Key::namespaced("default", "pv1"),
            json!({
                "allocatedResources": {"storage": "33Mi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            }),
        )
        .await;
    until("the node has seen it", async || {
        let claim = ground.claim(&volume).await;
        (claim.status.allocated_resource_statuses.storage != Some(ResizeStatus::NodeResizePending))
            .then_some(())
    })
    .await;
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    ground.gone().await;
}

/// Volumes that cannot be mounted here are told of on the pod, and what to do.
#[tokio::test]
async fn kinds_that_are_not_supported() {
    let ground = Ground::new().await;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "volumeName": "nfs", "storageClassName": "",
        "resources": {"requests": {"storage": "1Mi"}},
    });
    let claim = json!({"metadata": {"name": "nfs"}, "spec": spec});
    let claim = ground.create::<PersistentVolumeClaim>(Some("default"), claim).await;
    let volume = json!({"metadata": {"name": "nfs"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "nfs": {"server": "s", "path": "/"},
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "nfs",
            "uid": claim["metadata"]["uid"],
        },
    }});
    ground.create::<PersistentVolume>(None, volume).await;
    let bound = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}});
    ground.status::<PersistentVolumeClaim>(&Key::namespaced("default", "nfs"), bound).await;
    let volumes = json!([
        {"name": "data", "persistentVolumeClaim": {"claimName": "nfs"}},
        {"name": "disk", "iscsi": {"targetPortal": "127.0.0.1:3260", "iqn": "iqn.2001-04.com.example:disk", "lun": 0}},
    ]);
    let pod = ground.pod("p", volumes, &[], json!({})).await;
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    ground
        .told("volumes=[data]: error processing PVC default/nfs: PersistentVolume nfs is not a CSI volume")
        .await;
    ground.told("volumes=[disk]: volume disk is of a kind that is not supported here").await;
}

/// kubernetes.md 1.8 "Transient"; kubernetes#113226: who waits is told what for, of this volume and no other; a
/// driver that comes ends the wait.
#[tokio::test]
async fn a_driver_that_comes_late() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 32, "ext4").await;
    let pod = ground.pod_of("p", &volume).await;
    let plugin = ground.plugins.get(DRIVER_NAME).unwrap();
    ground.plugins.remove(DRIVER_NAME);
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    let error = timeout(Duration::from_secs(30), agent.volumes.mounted(&pod.metadata.uid))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "unmounted volumes=[data]: data: driver name {DRIVER_NAME} not found in the list of registered CSI drivers"
        )
    );
    ground.event("FailedMount").await;
    ground.plugins.put(plugin);
    agent.mounted(&pod).await;
}

/// kubernetes.md 1.8 "Statistics".
#[tokio::test]
async fn statistics_are_shown_while_the_pod_has_it() {
    let ground = Ground::new().await;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 32, "ext4").await;
    let pod = ground.pod_of("p", &volume).await;
    let settings = wharf_node::volumes::Settings {
        statistics: Duration::from_millis(50),
        ..wharf_node::volumes::Settings::default()
    };
    let agent = ground.agent_with(settings);
    let mut registry = prometheus_client::registry::Registry::default();
    agent.volumes.statistics().register(&mut registry);
    let shown = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines()
            .filter(|line| line.starts_with("kubelet_volume_stats_") && line.contains("\"pv1\""))
            .count()
    };
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    agent.mounted(&pod).await;
    until("six gauges at least", async || (shown() >= 6).then_some(())).await;
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    until("none", async || (shown() == 0).then_some(())).await;
}

impl Ground {
    pub(crate) async fn grow(&self, volume: &str, size: &str) {
        use wharf_model::Kind as _;
        let patch = wharf_cluster::Patch::Merge(json!({"spec": {"capacity": {"storage": size}}}));
        let key = Key::cluster(volume);
        self.cluster.patch(&PersistentVolume::API, &key, None, patch).await.unwrap();
    }

    /// Waits for a warning on a pod that its volumes cannot be mounted.
    async fn told(&self, note: &str) {
        until(note, async || {
            let events = self.cluster.list::<Event>(&WatchOptions::default()).await.unwrap().items;
            let is_it = |event: &Event| event.reason == "FailedMount" && event.message.contains(note);
            events.iter().any(is_it).then_some(())
        })
        .await;
    }

    async fn event(&self, reason: &str) {
        until(reason, async || {
            let events =
                self.cluster.list::<Event>(&wharf_cluster::WatchOptions::default()).await.unwrap().items;
            events.iter().any(|event| event.reason == reason).then_some(())
        })
        .await;
    }
}
