//! The attach/detach controller on the embedded API server, with a minimal attacher and node agents.

#![allow(clippy::unwrap_used)] // test helpers may panic

mod world;

use serde_json::json;
use tokio::time::sleep;
use wharf_controllers::attach_detach::Settings;
use wharf_model::{CSIDriver, Key, Node, VolumeAttachment};

use world::{Embedded, SETTLED};

/// kubernetes.md 1.3 "Attach", "Attach events", "Attachment", "Node status before detach": the lifecycle of a pod, and
/// the handshake with the node.
#[tokio::test]
async fn volume_is_attached_for_a_pod_and_detached_after_unmount() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    api.pod_attached("p", "a", &volume).await;
    let attachment = api.attachment(&volume, "a").await.unwrap();
    assert_eq!(attachment.spec.attacher, "d.test");
    assert_eq!(attachment.spec.source.persistent_volume_name.as_deref(), Some("one"));
    api.wait_until("attach event on the pod", async || {
        let expected = "AttachVolume.Attach succeeded for volume \"one\" ";
        api.events("SuccessfulAttachVolume").await.iter().any(|note| note == expected)
    })
    .await;

    api.in_use("a", &[&volume]).await;
    api.end_pod("p").await;
    api.assert_stays_attached(&volume, "a", "it is in use").await;
    assert!(api.is_reported(&volume, "a").await, "it is in use");

    api.in_use("a", &[]).await;
    api.wait_detached(&volume, "a").await;
    controller.stop().await;
}

/// kubernetes.md 1.3 "Node status before detach", "Check before detach": without the status update, or the live read of
/// the node, nothing is detached. Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce.
#[tokio::test]
async fn failed_status_update_or_node_read_prevents_detach() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    for (pod, refused, reported) in [
        ("p", ("PATCH", "/api/v1/nodes/", "/status"), true),
        // The watch is not sufficient: the Node itself is read from the API server.
        ("q", ("GET", "/api/v1/nodes/a", ""), false),
    ] {
        api.pod_attached(pod, "a", &volume).await;
        api.refuse(Some(refused));
        api.end_pod(pod).await;
        api.assert_stays_attached(&volume, "a", "the API server rejects the request").await;
        assert_eq!(api.is_reported(&volume, "a").await, reported);
        api.refuse(None);
        api.wait_detached(&volume, "a").await;
    }
    controller.stop().await;
}

/// kubernetes.md 1.3 "Bound later": a pod that is scheduled before its claim is bound.
#[tokio::test]
async fn volume_is_attached_once_its_claim_is_bound() {
    let (api, _, controller) = Embedded::with(&["a"], Settings::default()).await;
    let volume = api.volume_of_claim("late", &["ReadWriteOnce"]).await;
    api.pod("p", "a", "late").await;
    sleep(SETTLED).await;
    assert!(api.attachment(&volume, "a").await.is_none(), "it is not bound yet");
    api.bound("late").await;
    api.wait_attached(&volume, "a").await;
    controller.stop().await;
}

/// kubernetes.md 1.3 "Start": no decision before all stores are synced.
#[tokio::test]
async fn nothing_is_detached_before_all_stores_are_synced() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    api.pod_attached("p", "a", &volume).await;
    controller.stop().await;
    // Without the pods, the volume would seem unused.
    api.refuse(Some(("GET", "/api/v1/pods", "")));
    let controller = api.controller(Settings::default());
    api.assert_stays_attached(&volume, "a", "pods are not synced").await;
    assert!(api.is_reported(&volume, "a").await);
    api.refuse(None);
    api.assert_stays_attached(&volume, "a", "a pod uses it").await;
    controller.stop().await;
}

/// kubernetes.md 1.3 "Node status", "Node deleted": the status of a recreated Node lists all volumes again.
#[tokio::test]
async fn recreated_node_is_reported_its_volumes_again() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    api.pod_attached("p", "a", &volume).await;
    api.in_use("a", &[&volume]).await;
    let uid = api.attachment(&volume, "a").await.unwrap().metadata.uid;
    api.delete::<Node>(&Key::cluster("a")).await;
    api.assert_stays_attached(&volume, "a", "a pod uses it").await;
    api.node("a").await;
    api.wait_attached(&volume, "a").await;
    assert_eq!(api.attachment(&volume, "a").await.unwrap().metadata.uid, uid);
    controller.stop().await;
}

/// kubernetes#96142: a move is not an error, and the volume is never on both nodes.
#[tokio::test]
async fn moving_volume_is_never_on_two_nodes() {
    let (api, volume, controller) = Embedded::with(&["a", "b"], Settings::default()).await;
    for round in 0..4 {
        let (from, to) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        api.pod_attached(&format!("p{round}"), from, &volume).await;
        api.in_use(from, &[&volume]).await;
        api.end_pod(&format!("p{round}")).await;
        api.pod(&format!("q{round}"), to, "one").await;
        sleep(SETTLED / 8).await;
        assert!(api.attachment(&volume, to).await.is_none(), "it is in use");
        api.in_use(from, &[]).await;
        api.wait_attached(&volume, to).await;
        api.wait_detached(&volume, from).await;
        api.end_pod(&format!("q{round}")).await;
        api.wait_detached(&volume, to).await;
    }
    api.assert_never_on_two_nodes();
    assert_eq!(api.events("FailedAttachVolume").await, [""; 0]);
    controller.stop().await;
}

/// kubernetes.md 1.3 "Multi-Attach", "Multi-node volumes": one node or many, by access mode.
#[tokio::test]
async fn access_modes_decide_on_second_node() {
    let (api, one, controller) = Embedded::with(&["a", "b"], Settings::default()).await;
    let many = api.volume("many", &["ReadWriteMany"]).await;
    for (name, node, volume) in [("p", "a", &one), ("r", "a", &many), ("s", "b", &many)] {
        api.pod_attached(name, node, volume).await;
    }
    api.pod("q", "b", "one").await;
    api.wait_until("Multi-Attach event on the second pod", async || {
        let expected = "Multi-Attach error for volume \"one\" Volume is already used by pod(s) p";
        api.events("FailedAttachVolume").await.iter().any(|note| note == expected)
    })
    .await;
    assert!(api.attachment(&one, "b").await.is_none());
    api.end_pod("p").await;
    api.wait_attached(&one, "b").await;
    api.wait_detached(&one, "a").await;
    controller.stop().await;
}

/// kubernetes.md 1.3 "Initial state"; kubernetes#77324: after a restart unused attachments are deleted, used ones stay.
#[tokio::test]
async fn restart_deletes_dangling_attachments() {
    let (api, kept, controller) = Embedded::with(&["a"], Settings::default()).await;
    let left = api.volume("left", &["ReadWriteOnce"]).await;
    api.pod_attached("p", "a", &kept).await;
    api.pod_attached("q", "a", &left).await;
    let uid = api.attachment(&kept, "a").await.unwrap().metadata.uid;
    controller.stop().await;
    api.end_pod("q").await;
    // Upstream crashed during an attach: the attachment exists, was never reported, and no pod wants it.
    let dangling = api.volume("dangling", &["ReadWriteOnce"]).await;
    let source = json!({"persistentVolumeName": "dangling"});
    let spec = json!({"attacher": "d.test", "nodeName": "a", "source": source});
    let name = dangling.attachment_name("a");
    api.create::<VolumeAttachment>(None, json!({"metadata": {"name": name}, "spec": spec})).await;

    let controller = api.controller(Settings::default());
    api.wait_detached(&left, "a").await;
    api.wait_detached(&dangling, "a").await;
    api.assert_stays_attached(&kept, "a", "a pod uses it").await;
    assert_eq!(api.attachment(&kept, "a").await.unwrap().metadata.uid, uid);
    assert!(api.is_reported(&kept, "a").await);
    controller.stop().await;
}

/// kubernetes.md 1.3 "Forced detach", "Ready node", "Forced detach metric": a detach is forced after the maximum wait
/// if the node is not Ready, and never if it is. A forced detach is counted once.
#[tokio::test]
async fn detach_is_forced_only_from_a_node_that_is_not_ready() {
    let settings = Settings { max_wait_for_unmount: SETTLED / 4, ..Settings::default() };
    let (api, volume, controller) = Embedded::with(&["a", "b"], settings).await;
    api.pod_attached("p", "a", &volume).await;
    api.in_use("a", &[&volume]).await;
    api.end_pod("p").await;
    api.pod("q", "b", "one").await;
    api.assert_stays_attached(&volume, "a", "the node is Ready").await;
    assert!(!controller.metrics_text().contains("reason="), "{}", controller.metrics_text());
    api.ready("a", "Unknown").await;
    api.wait_detached(&volume, "a").await;
    api.wait_attached(&volume, "b").await;
    let metrics_text = controller.metrics_text();
    assert!(metrics_text.contains("_forced_detaches{reason=\"timeout\"} 1\n"), "{metrics_text}");
    api.assert_never_on_two_nodes();
    controller.stop().await;
}

/// kubernetes.md 1.3 "Relevant nodes", "Relevant volumes": unmanaged nodes are ignored. A deleted attachment that
/// is still wanted is recreated.
#[tokio::test]
async fn unmanaged_node_is_ignored_and_deleted_attachment_recreated() {
    let api = Embedded::start().await;
    api.create::<Node>(None, json!({"metadata": {"name": "alone"}})).await;
    api.node("a").await;
    api.create::<CSIDriver>(None, json!({"metadata": {"name": "d.test"}, "spec": {"attachRequired": true}}))
        .await;
    let volume = api.volume("one", &["ReadWriteMany"]).await;
    let controller = api.controller(Settings::default());
    api.pod("p", "alone", "one").await;
    api.pod_attached("q", "a", &volume).await;
    assert!(api.attachment(&volume, "alone").await.is_none());

    let uid = api.attachment(&volume, "a").await.unwrap().metadata.uid;
    api.delete::<VolumeAttachment>(&Key::cluster(volume.attachment_name("a"))).await;
    api.wait_until("another attachment", async || {
        api.attachment(&volume, "a").await.is_some_and(|attachment| attachment.metadata.uid != uid)
    })
    .await;
    api.wait_attached(&volume, "a").await;
    controller.stop().await;
}
