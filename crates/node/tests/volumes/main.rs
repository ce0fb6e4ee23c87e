//! The volume manager with a real driver on the real kernel: the tests check the actual mounts, devices and files.

#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

mod changes;
mod harness;
mod restart;

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::Duration;

use harness::{Fixture, MIB, accepting_driver, claim, directory, until};
use serde_json::json;
use tokio::time::{sleep, timeout};
use wharf_cluster::WatchOptions;
use wharf_driver_local::DRIVER_NAME;
use wharf_model::claim::ResizeStatus;
use wharf_model::names::condition;
use wharf_model::{Event, Key, PersistentVolume, PersistentVolumeClaim};
use wharf_node::volumes::{Settings, VolumePath};

/// kubernetes.md 1.8 "Attach handshake", "Stage path", "Publish path", "Removal", "Orphans": from the handshake to the
/// last file: in use, attached, staged, published, and back.
#[tokio::test]
async fn volume_is_mounted_after_attach_and_fully_removed() {
    let fixture = Fixture::new().await;
    let volume = fixture.volume("pv1", 32, "ext4").await;
    let pod = fixture.pod_of("p", &volume).await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    fixture.in_use(&[volume.unique()]).await;
    assert_eq!(*agent.volumes.in_use().borrow(), [volume.unique()]);
    sleep(Duration::from_millis(200)).await;
    assert!(fixture.mounts().is_empty(), "nothing is touched before it is attached");
    fixture.attach(&volume).await;

    let mounted = agent.mounted(&pod).await;
    let path = directory(&mounted, "data");
    assert_eq!(path, fixture.root.publish(&pod.metadata.uid, "pv1").join("mount"));
    fs::write(path.join("file"), "content").unwrap();
    let staged = fixture.root.stage(DRIVER_NAME, &volume.handle);
    assert_eq!(fs::read_to_string(staged.join("globalmount/file")).unwrap(), "content");
    assert_eq!(fixture.mounts().len(), 2, "staged and published");
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
    fixture.gone().await;
    fixture.in_use(&[]).await;
    assert!(agent.volumes.pods().is_empty());
    assert!(!staged.exists() && !path.parent().unwrap().exists());
}

/// kubernetes.md 1.8 "Device paths": the device itself, its record and its link.
#[tokio::test]
async fn block_volume_is_published_as_a_device() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 8, "").await;
    let pod = fixture.pod("p", json!([claim("disk", &volume)]), &["disk"], json!({})).await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    let mounted = agent.mounted(&pod).await;
    let VolumePath::Device { path, read_only: false } = &mounted.volumes["disk"] else {
        panic!("{mounted:?}")
    };
    assert_eq!(*path, fixture.root.device_publish("pv1", &pod.metadata.uid));
    assert!(fs::metadata(path).unwrap().file_type().is_block_device());
    let link = fixture.root.pod(&pod.metadata.uid).join("volumeDevices/kubernetes.io~csi/pv1");
    assert_eq!(fs::read_link(&link).unwrap(), *path);
    fs::write(path, [7; 4096]).unwrap();
    assert!(fixture.root.device_data("pv1").join("vol_data.json").exists());
    assert!(agent.volumes.in_use().borrow().is_empty(), "not attached");

    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    fixture.gone().await;
    until("the directories to be removed", async || {
        (!fixture.root.devices().join("pv1").exists()).then_some(())
    })
    .await;
    assert!(!fixture.root.device_stage("pv1").exists() && fs::symlink_metadata(&link).is_err());
}

/// kubernetes.md 1.8 "Device paths", "Removal": a driver without STAGE_UNSTAGE_VOLUME gets no NodeUnstageVolume, and no
/// record of its block volume is left either.
#[tokio::test]
async fn unstaged_block_volume_leaves_no_record() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 8, "").await;
    let pod = fixture.pod("p", json!([claim("disk", &volume)]), &["disk"], json!({})).await;
    let (plugin, calls) = accepting_driver();
    fixture.plugins.insert(plugin);
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    agent.mounted(&pod).await;
    assert!(fixture.root.device_data("pv1").join("vol_data.json").exists());
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    fixture.gone().await;
    until("the directories to be removed", async || {
        (!fixture.root.devices().join("pv1").exists()).then_some(())
    })
    .await;
    let calls = calls.lock().unwrap();
    assert_eq!(*calls, ["/csi.v1.Node/NodePublishVolume", "/csi.v1.Node/NodeUnpublishVolume"]);
}

/// kubernetes.md 1.8 "fsGroup", "Ownership": the files have the pod's group before the volume is ready.
#[tokio::test]
async fn fs_group_is_applied_before_the_volume_is_ready() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 32, "ext4").await;
    let context = json!({"fsGroup": 4242, "fsGroupChangePolicy": "OnRootMismatch"});
    let pod = fixture.pod("p", json!([claim("data", &volume)]), &[], context).await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    let path = directory(&agent.mounted(&pod).await, "data");
    let root = fs::metadata(&path).unwrap();
    assert_eq!((root.gid(), root.mode() & 0o2070), (4242, 0o2070));
}

/// kubernetes.md 1.4 "Node expansion", "Node writes", online: the file system is expanded, and the claim's status
/// updated.
#[tokio::test]
async fn mounted_volume_is_expanded_online() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 320, "xfs").await;
    let pod = fixture.pod_of("p", &volume).await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
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
    fixture.driver.controller().controller_expand_volume(request).await.unwrap();
    fixture.grow("pv1", "640Mi").await;
    fixture
        .status::<PersistentVolumeClaim>(
            &key,
            json!({
                "allocatedResources": {"storage": "640Mi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
                "conditions": [{"type": condition::FILE_SYSTEM_RESIZE_PENDING, "status": "True"}],
            }),
        )
        .await;
    let claim = until("the claim to have its size", async || {
        let claim = fixture.claim(&volume).await;
        (claim.status.capacity.storage.unwrap().bytes() == bytes).then_some(claim)
    })
    .await;
    assert_eq!(claim.status.allocated_resource_statuses.storage, None);
    assert!(claim.status.condition(condition::FILE_SYSTEM_RESIZE_PENDING).is_none());
    assert!(size() > before + 200 * MIB as u64, "{before} → {}", size());
    fixture.event("FileSystemResizeSuccessful").await;
}

/// Node permissions are sufficient: objects that cannot be watched are read at the next resync.
#[tokio::test]
async fn volume_manager_works_with_node_permissions_only() {
    let mut fixture = Fixture::new().await;
    fixture.privileged_client = false;
    let volume = fixture.volume("pv1", 32, "ext4").await;
    let pod = fixture.pod_of("p", &volume).await;
    let agent = fixture.agent_with(Settings { resync: Duration::from_millis(100), ..Settings::default() });
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    fixture.in_use(&[volume.unique()]).await;
    fixture.attach(&volume).await;
    agent.mounted(&pod).await;
    // What a resizer leaves to the node: for this driver nothing, since the volume already has its size.
    fixture.grow("pv1", "33Mi").await;
    fixture
        .status::<PersistentVolumeClaim>(
            &Key::namespaced("default", "pv1"),
            json!({
                "allocatedResources": {"storage": "33Mi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            }),
        )
        .await;
    until("the node to observe it", async || {
        let claim = fixture.claim(&volume).await;
        (claim.status.allocated_resource_statuses.storage != Some(ResizeStatus::NodeResizePending))
            .then_some(())
    })
    .await;
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    fixture.gone().await;
}

/// Unsupported volumes are reported on the pod.
#[tokio::test]
async fn unsupported_volume_types_are_reported() {
    let fixture = Fixture::new().await;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "volumeName": "nfs", "storageClassName": "",
        "resources": {"requests": {"storage": "1Mi"}},
    });
    let claim = json!({"metadata": {"name": "nfs"}, "spec": spec});
    let claim = fixture.create::<PersistentVolumeClaim>(Some("default"), claim).await;
    let volume = json!({"metadata": {"name": "nfs"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "nfs": {"server": "s", "path": "/"},
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "nfs",
            "uid": claim["metadata"]["uid"],
        },
    }});
    fixture.create::<PersistentVolume>(None, volume).await;
    let bound = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}});
    fixture.status::<PersistentVolumeClaim>(&Key::namespaced("default", "nfs"), bound).await;
    let volumes = json!([
        {"name": "data", "persistentVolumeClaim": {"claimName": "nfs"}},
        {"name": "disk", "iscsi": {"targetPortal": "127.0.0.1:3260", "iqn": "iqn.2001-04.com.example:disk", "lun": 0}},
    ]);
    let pod = fixture.pod("p", volumes, &[], json!({})).await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    fixture
        .mount_warning(
            "volumes=[data]: error processing PVC default/nfs: PersistentVolume nfs is not a CSI volume",
        )
        .await;
    fixture.mount_warning("volumes=[disk]: the type of volume disk is not supported here").await;
}

/// kubernetes.md 1.8 "Transient"; kubernetes#113226: the error lists the problem of this volume and no other; a
/// driver that registers ends the wait.
#[tokio::test]
async fn late_driver_registration_ends_the_wait() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 32, "ext4").await;
    let pod = fixture.pod_of("p", &volume).await;
    let plugin = fixture.plugins.get(DRIVER_NAME).unwrap();
    fixture.plugins.remove(DRIVER_NAME);
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    let error = timeout(Duration::from_secs(30), agent.volumes.wait_mounted(&pod.metadata.uid))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "unmounted volumes=[data]: data: driver name {DRIVER_NAME} not found in the list of registered CSI drivers"
        )
    );
    fixture.event("FailedMount").await;
    fixture.plugins.insert(plugin);
    agent.mounted(&pod).await;
}

/// kubernetes.md 1.8 "Statistics".
#[tokio::test]
async fn statistics_are_reported_while_mounted() {
    let fixture = Fixture::new().await;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 32, "ext4").await;
    let pod = fixture.pod_of("p", &volume).await;
    let settings = wharf_node::volumes::Settings {
        statistics: Duration::from_millis(50),
        ..wharf_node::volumes::Settings::default()
    };
    let agent = fixture.agent_with(settings);
    let mut registry = prometheus_client::registry::Registry::default();
    agent.volumes.statistics().register(&mut registry);
    let shown = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines()
            .filter(|line| line.starts_with("kubelet_volume_stats_") && line.contains("\"pv1\""))
            .count()
    };
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    agent.mounted(&pod).await;
    until("six gauges at least", async || (shown() >= 6).then_some(())).await;
    agent.volumes.release(&pod.metadata.uid);
    agent.released(&pod).await;
    until("none", async || (shown() == 0).then_some(())).await;
}

impl Fixture {
    pub(crate) async fn grow(&self, volume: &str, size: &str) {
        use wharf_model::Kind as _;
        let patch = wharf_cluster::Patch::Merge(json!({"spec": {"capacity": {"storage": size}}}));
        let key = Key::cluster(volume);
        self.cluster.patch(&PersistentVolume::API, &key, None, patch).await.unwrap();
    }

    /// Waits for a FailedMount event on a pod.
    async fn mount_warning(&self, note: &str) {
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
