//! Changes under a running manager: sizes, attachments, drivers that stop responding.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};
use wharf_driver_local::DRIVER_NAME;
use wharf_model::{Key, PersistentVolumeClaim, VolumeAttachment};
use wharf_node::plugins::Plugin;
use wharf_node::volumes::Settings;

use crate::harness::{Fixture, MIB, until};

/// A driver that rounds up creates more than was allocated. The node must not expand the volume repeatedly because of a
/// stale copy of the claim.
#[tokio::test]
async fn volume_larger_than_allocated_expands_once() {
    let mut fixture = Fixture::new().await;
    // The claim is not watched: it is read when the pod is resynced, and the next resync is far away.
    fixture.privileged_client = false;
    fixture.without_attach().await;
    let volume = fixture.volume("pv1", 320, "xfs").await;
    let pod = fixture.pod_of("p", &volume).await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    agent.mounted(&pod).await;
    let request = wharf_csi::v1::ControllerExpandVolumeRequest {
        volume_id: volume.handle.clone(),
        capacity_range: Some(wharf_csi::v1::CapacityRange { required_bytes: 641 * MIB, limit_bytes: 0 }),
        ..Default::default()
    };
    fixture.driver.controller().controller_expand_volume(request).await.unwrap();
    fixture.grow("pv1", "641Mi").await;
    let pending = json!({
        "allocatedResources": {"storage": "640Mi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    });
    fixture.status::<PersistentVolumeClaim>(&Key::namespaced("default", "pv1"), pending).await;
    agent.volumes.request(pod.clone());
    until("the claim has its size", async || {
        let status = fixture.claim(&volume).await.status;
        let done = status.allocated_resource_statuses.storage.is_none();
        (done && status.capacity.storage.unwrap().bytes() == 640 * MIB).then_some(())
    })
    .await;
    let version = async || fixture.claim(&volume).await.metadata.resource_version;
    let before = version().await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(version().await, before, "the claim is written repeatedly");
}

/// A volume that was detached and attached again has a new attachment: its metadata is read before it is used.
#[tokio::test]
async fn recreated_attachment_is_read_again() {
    let fixture = Fixture::new().await;
    let volume = fixture.volume("pv1", 32, "ext4").await;
    let agent = fixture.agent();
    agent.volumes.mark_pods_known();
    let first = fixture.pod_of("p", &volume).await;
    agent.volumes.request(first.clone());
    fixture.in_use(&[volume.unique()]).await;
    fixture.attach(&volume).await;
    agent.mounted(&first).await;
    let attached = async |attached: bool| {
        let key = Key::cluster(volume.attachment());
        fixture.status::<VolumeAttachment>(&key, json!({"attached": attached})).await;
    };
    fixture.attached(&[]).await;
    attached(false).await;
    // So that the detach is observed before it is attached again.
    sleep(Duration::from_millis(300)).await;
    fixture.attached(&[&volume]).await;
    let second = fixture.pod_of("q", &volume).await;
    agent.volumes.request(second.clone());
    let error =
        timeout(Duration::from_secs(30), agent.volumes.wait_mounted(&second.metadata.uid)).await.unwrap();
    let message = error.expect_err("the context of the earlier attachment is used").message;
    assert!(message.contains("is not attached yet"), "{message}");
    attached(true).await;
    agent.mounted(&second).await;
}

/// A driver that hangs does not block the statistics of others.
#[tokio::test]
async fn hanging_driver_does_not_block_statistics_of_others() {
    // Sorted before the other driver.
    const HUNG: &str = "a.hung.example.com";
    let fixture = Fixture::new().await;
    for driver in [HUNG, DRIVER_NAME] {
        fixture.without_attach_of(driver).await;
    }
    let good = fixture.plugins.get(DRIVER_NAME).unwrap();
    let register = |endpoint| {
        let mut plugin = Plugin::new(HUNG, endpoint);
        plugin.capabilities = good.capabilities;
        fixture.plugins.insert(plugin);
    };
    register(good.endpoint.clone());
    let first = fixture.volume_of(HUNG, "pv1", 32, "ext4").await;
    let pod = fixture.pod_of("p", &first).await;
    let settings = Settings { statistics: Duration::from_millis(500), ..Settings::default() };
    let agent = fixture.agent_with(settings);
    let mut registry = prometheus_client::registry::Registry::default();
    agent.volumes.statistics().register(&mut registry);
    agent.volumes.mark_pods_known();
    agent.volumes.request(pod.clone());
    agent.mounted(&pod).await;
    // From now on it accepts calls and never responds.
    let silent = fixture.root.path().join("silent.sock");
    let _listener = UnixListener::bind(&silent).unwrap();
    register(format!("unix://{}", silent.display()).parse().unwrap());
    sleep(Duration::from_secs(1)).await;
    // A volume of the other driver: its statistics can only have been queried since.
    let later = fixture.volume("pv2", 32, "ext4").await;
    let pod = fixture.pod_of("q", &later).await;
    agent.volumes.request(pod.clone());
    agent.mounted(&pod).await;
    until("the volume's statistics", async || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.contains("kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"pv2\"}")
            .then_some(())
    })
    .await;
}
