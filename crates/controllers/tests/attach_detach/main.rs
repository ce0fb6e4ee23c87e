//! The attach/detach controller on the embedded API, with an attacher and node agents of a few lines.

#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the answer

mod world;

use serde_json::json;
use tokio::time::sleep;
use wharf_controllers::attach_detach::Settings;
use wharf_model::whole::Node;
use wharf_model::{CSIDriver, Key, VolumeAttachment};

use world::{Embedded, SETTLED};

/// kubernetes.md 1.3 "Attach", "Attach events", "Attachment", "Told first": from a pod's coming to its end, the
/// handshake with the node.
#[tokio::test]
async fn a_volume_comes_and_goes() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    api.pod_with("p", "a", &volume).await;
    let attachment = api.attachment(&volume, "a").await.unwrap();
    assert_eq!(attachment.spec.attacher, "d.test");
    assert_eq!(attachment.spec.source.persistent_volume_name.as_deref(), Some("one"));
    api.until("the pod is told", async || {
        let words = "AttachVolume.Attach succeeded for volume \"one\" ";
        api.events("SuccessfulAttachVolume").await.iter().any(|note| note == words)
    })
    .await;

    api.in_use("a", &[&volume]).await;
    api.end_pod("p").await;
    api.stays(&volume, "a", "it is in use").await;
    assert!(api.told(&volume, "a").await, "it is in use");

    api.in_use("a", &[]).await;
    api.detached(&volume, "a").await;
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Told first", "Verified": what cannot be taken back, or asked, is not done.
/// Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce.
#[tokio::test]
async fn what_a_node_was_not_told_or_asked_is_not_done() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    for (pod, refused, told) in [
        ("p", ("PATCH", "/api/v1/nodes/", "/status"), true),
        // Of what is said in watches nothing follows: the server is asked for the Node itself.
        ("q", ("GET", "/api/v1/nodes/a", ""), false),
    ] {
        api.pod_with(pod, "a", &volume).await;
        api.refuse(Some(refused));
        api.end_pod(pod).await;
        api.stays(&volume, "a", "the server refuses").await;
        assert_eq!(api.told(&volume, "a").await, told);
        api.refuse(None);
        api.detached(&volume, "a").await;
    }
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Bound later": a pod that is placed before its claim is bound.
#[tokio::test]
async fn a_claim_that_is_bound_later() {
    let (api, _, controller) = Embedded::with(&["a"], Settings::default()).await;
    let volume = api.volume_of_claim("late", &["ReadWriteOnce"]).await;
    api.pod("p", "a", "late").await;
    sleep(SETTLED).await;
    assert!(api.attachment(&volume, "a").await.is_none(), "it is not bound yet");
    api.bound("late").await;
    api.attached(&volume, "a").await;
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Start": of half the objects nothing follows.
#[tokio::test]
async fn nothing_is_decided_before_all_is_known() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    api.pod_with("p", "a", &volume).await;
    controller.stopped().await;
    // Without its pods, the volume would seem unwanted.
    api.refuse(Some(("GET", "/api/v1/pods", "")));
    let controller = api.controller(Settings::default());
    api.stays(&volume, "a", "pods are not known").await;
    assert!(api.told(&volume, "a").await);
    api.refuse(None);
    api.stays(&volume, "a", "a pod uses it").await;
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Node status", "Node gone": a Node that is made anew is told all again.
#[tokio::test]
async fn a_node_that_goes_and_comes() {
    let (api, volume, controller) = Embedded::with(&["a"], Settings::default()).await;
    api.pod_with("p", "a", &volume).await;
    api.in_use("a", &[&volume]).await;
    let uid = api.attachment(&volume, "a").await.unwrap().metadata.uid;
    api.delete::<Node>(&Key::cluster("a")).await;
    api.stays(&volume, "a", "a pod uses it").await;
    api.node("a").await;
    api.attached(&volume, "a").await;
    assert_eq!(api.attachment(&volume, "a").await.unwrap().metadata.uid, uid);
    controller.stopped().await;
}

/// kubernetes#96142: a move is no error, and the volume is never on both nodes.
#[tokio::test]
async fn a_volume_moves() {
    let (api, volume, controller) = Embedded::with(&["a", "b"], Settings::default()).await;
    for round in 0..4 {
        let (from, to) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        api.pod_with(&format!("p{round}"), from, &volume).await;
        api.in_use(from, &[&volume]).await;
        api.end_pod(&format!("p{round}")).await;
        api.pod(&format!("q{round}"), to, "one").await;
        sleep(SETTLED / 8).await;
        assert!(api.attachment(&volume, to).await.is_none(), "it is in use");
        api.in_use(from, &[]).await;
        api.attached(&volume, to).await;
        api.detached(&volume, from).await;
        api.end_pod(&format!("q{round}")).await;
        api.detached(&volume, to).await;
    }
    api.assert_never_on_two_nodes();
    assert_eq!(api.events("FailedAttachVolume").await, [""; 0]);
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Multi-Attach", "Many nodes": one node or many, as the modes allow.
#[tokio::test]
async fn one_node_or_many() {
    let (api, one, controller) = Embedded::with(&["a", "b"], Settings::default()).await;
    let many = api.volume("many", &["ReadWriteMany"]).await;
    for (name, node, volume) in [("p", "a", &one), ("r", "a", &many), ("s", "b", &many)] {
        api.pod_with(name, node, volume).await;
    }
    api.pod("q", "b", "one").await;
    api.until("the second is told", async || {
        let words = "Multi-Attach error for volume \"one\" Volume is already used by pod(s) p";
        api.events("FailedAttachVolume").await.iter().any(|note| note == words)
    })
    .await;
    assert!(api.attachment(&one, "b").await.is_none());
    api.end_pod("p").await;
    api.attached(&one, "b").await;
    api.detached(&one, "a").await;
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Left behind"; kubernetes#77324: what was left behind is cleared away, what is wanted stays.
#[tokio::test]
async fn a_restart_leaves_nothing_dangling() {
    let (api, kept, controller) = Embedded::with(&["a"], Settings::default()).await;
    let left = api.volume("left", &["ReadWriteOnce"]).await;
    api.pod_with("p", "a", &kept).await;
    api.pod_with("q", "a", &left).await;
    let uid = api.attachment(&kept, "a").await.unwrap().metadata.uid;
    controller.stopped().await;
    api.end_pod("q").await;
    // An upstream that died in mid-attach: asked for, never told, and nobody wants it.
    let dangling = api.volume("dangling", &["ReadWriteOnce"]).await;
    let source = json!({"persistentVolumeName": "dangling"});
    let spec = json!({"attacher": "d.test", "nodeName": "a", "source": source});
    let name = dangling.attachment("a");
    api.create::<VolumeAttachment>(None, json!({"metadata": {"name": name}, "spec": spec})).await;

    let controller = api.controller(Settings::default());
    api.detached(&left, "a").await;
    api.detached(&dangling, "a").await;
    api.stays(&kept, "a", "a pod uses it").await;
    assert_eq!(api.attachment(&kept, "a").await.unwrap().metadata.uid, uid);
    assert!(api.told(&kept, "a").await);
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Force", "Well", "Forced metric": a node that is not well has its time, one that is well has for ever.
/// What was forced is counted, once.
#[tokio::test]
async fn a_node_that_is_not_well() {
    let settings = Settings { max_wait_for_unmount: SETTLED / 4, ..Settings::default() };
    let (api, volume, controller) = Embedded::with(&["a", "b"], settings).await;
    api.pod_with("p", "a", &volume).await;
    api.in_use("a", &[&volume]).await;
    api.end_pod("p").await;
    api.pod("q", "b", "one").await;
    api.stays(&volume, "a", "it is well").await;
    assert!(!controller.counted().contains("reason="), "{}", controller.counted());
    api.ready("a", "Unknown").await;
    api.detached(&volume, "a").await;
    api.attached(&volume, "b").await;
    let counted = controller.counted();
    assert!(counted.contains("_forced_detaches{reason=\"timeout\"} 1\n"), "{counted}");
    api.assert_never_on_two_nodes();
    controller.stopped().await;
}

/// kubernetes.md 1.3 "Nodes that count", "Volumes that count": nodes and drivers that are not ours. Somebody who
/// deletes an attachment gets it back.
#[tokio::test]
async fn what_is_left_alone_and_what_comes_back() {
    let api = Embedded::start().await;
    api.create::<Node>(None, json!({"metadata": {"name": "alone"}})).await;
    api.node("a").await;
    api.create::<CSIDriver>(None, json!({"metadata": {"name": "d.test"}, "spec": {"attachRequired": true}}))
        .await;
    let volume = api.volume("one", &["ReadWriteMany"]).await;
    let controller = api.controller(Settings::default());
    api.pod("p", "alone", "one").await;
    api.pod_with("q", "a", &volume).await;
    assert!(api.attachment(&volume, "alone").await.is_none());

    let uid = api.attachment(&volume, "a").await.unwrap().metadata.uid;
    api.delete::<VolumeAttachment>(&Key::cluster(volume.attachment("a"))).await;
    api.until("there is another", async || {
        api.attachment(&volume, "a").await.is_some_and(|attachment| attachment.metadata.uid != uid)
    })
    .await;
    api.attached(&volume, "a").await;
    controller.stopped().await;
}
