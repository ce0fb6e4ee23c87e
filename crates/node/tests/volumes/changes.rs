//! What changes under a manager that has looked already: sizes, attachments, drivers that stop answering.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};
use wharf_driver_local::DRIVER_NAME;
use wharf_model::{Key, PersistentVolumeClaim, VolumeAttachment};
use wharf_node::plugins::Plugin;
use wharf_node::volumes::Settings;

use crate::harness::{Ground, MIB, until};

/// A driver that rounds up makes more than was allocated. What the node has expanded it does not expand again and again
/// because it remembers the claim as it was before.
#[tokio::test]
async fn a_volume_that_is_larger_than_allocated_grows_once() {
    let mut ground = Ground::new().await;
    // Nobody tells of the claim: it is seen when the pod is looked at, and that is long until the next time.
    ground.lent = false;
    ground.without_attach().await;
    let volume = ground.volume("pv1", 320, "xfs").await;
    let pod = ground.pod_of("p", &volume).await;
    let agent = ground.agent();
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    agent.mounted(&pod).await;
    let request = wharf_csi::v1::ControllerExpandVolumeRequest {
        volume_id: volume.handle.clone(),
        capacity_range: Some(wharf_csi::v1::CapacityRange { required_bytes: 641 * MIB, limit_bytes: 0 }),
        ..Default::default()
    };
    ground.driver.controller().controller_expand_volume(request).await.unwrap();
    ground.grow("pv1", "641Mi").await;
    let pending = json!({
        "allocatedResources": {"storage": "640Mi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    });
    ground.status::<PersistentVolumeClaim>(&Key::namespaced("default", "pv1"), pending).await;
    agent.volumes.want(pod.clone());
    until("the claim has its size", async || {
        let status = ground.claim(&volume).await.status;
        let done = status.allocated_resource_statuses.storage.is_none();
        (done && status.capacity.storage.unwrap().bytes() == 640 * MIB).then_some(())
    })
    .await;
    let version = async || ground.claim(&volume).await.metadata.resource_version;
    let before = version().await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(version().await, before, "the claim is written to again and again");
}

/// A volume that was detached and attached again has another attachment: what that gives is read before it is used.
#[tokio::test]
async fn an_attachment_that_comes_back_is_read_again() {
    let ground = Ground::new().await;
    let volume = ground.volume("pv1", 32, "ext4").await;
    let agent = ground.agent();
    agent.volumes.settle();
    let first = ground.pod_of("p", &volume).await;
    agent.volumes.want(first.clone());
    ground.in_use(&[volume.unique()]).await;
    ground.attach(&volume).await;
    agent.mounted(&first).await;
    let attached = async |attached: bool| {
        let key = Key::cluster(volume.attachment());
        ground.status::<VolumeAttachment>(&key, json!({"attached": attached})).await;
    };
    ground.attached(&[]).await;
    attached(false).await;
    // So that it is seen before it is attached again.
    sleep(Duration::from_millis(300)).await;
    ground.attached(&[&volume]).await;
    let second = ground.pod_of("q", &volume).await;
    agent.volumes.want(second.clone());
    let error = timeout(Duration::from_secs(30), agent.volumes.mounted(&second.metadata.uid)).await.unwrap();
    let message = error.expect_err("it is used by what an earlier attachment gave").message;
    assert!(message.contains("is not attached yet"), "{message}");
    attached(true).await;
    agent.mounted(&second).await;
}

/// One driver that hangs keeps no other from being asked how full its volumes are.
#[tokio::test]
async fn statistics_of_drivers_beside_one_that_hangs() {
    // Before the other one, in whatever order they are asked.
    const HUNG: &str = "a.hung.example.com";
    let ground = Ground::new().await;
    for driver in [HUNG, DRIVER_NAME] {
        ground.without_attach_of(driver).await;
    }
    let good = ground.plugins.get(DRIVER_NAME).unwrap();
    let register = |endpoint| {
        let mut plugin = Plugin::new(HUNG, endpoint);
        plugin.capabilities = good.capabilities;
        ground.plugins.put(plugin);
    };
    register(good.endpoint.clone());
    let first = ground.volume_of(HUNG, "pv1", 32, "ext4").await;
    let pod = ground.pod_of("p", &first).await;
    let settings = Settings { statistics: Duration::from_millis(500), ..Settings::default() };
    let agent = ground.agent_with(settings);
    let mut registry = prometheus_client::registry::Registry::default();
    agent.volumes.statistics().register(&mut registry);
    agent.volumes.settle();
    agent.volumes.want(pod.clone());
    agent.mounted(&pod).await;
    // From now on it takes calls and answers none.
    let silent = ground.root.path().join("silent.sock");
    let _listener = UnixListener::bind(&silent).unwrap();
    register(format!("unix://{}", silent.display()).parse().unwrap());
    sleep(Duration::from_secs(1)).await;
    // A volume of the other one: how full it is can only have been asked since.
    let later = ground.volume("pv2", 32, "ext4").await;
    let pod = ground.pod_of("q", &later).await;
    agent.volumes.want(pod.clone());
    agent.mounted(&pod).await;
    until("how full it is", async || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.contains("kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"pv2\"}")
            .then_some(())
    })
    .await;
}
