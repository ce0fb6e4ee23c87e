//! The node service on directories: publish, unpublish, statistics and health through the socket. Needs root.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use wharf_linux::{Linux, Mounts as _};

use crate::driver::Running;
use crate::support::Place;

pub(crate) fn stats(id: &str, path: &str) -> v1::NodeGetVolumeStatsRequest {
    v1::NodeGetVolumeStatsRequest { volume_id: id.into(), volume_path: path.into(), ..Default::default() }
}

fn publish(id: &str, target: &str, context: &[(&str, &str)], mode: Mode) -> v1::NodePublishVolumeRequest {
    let volume_context: BTreeMap<String, String> =
        context.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    v1::NodePublishVolumeRequest {
        volume_id: id.into(),
        target_path: target.into(),
        volume_capability: Some(v1::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }),
        volume_context: volume_context.into_iter().collect(),
        ..Default::default()
    }
}

fn unpublish(id: &str, target: &str) -> v1::NodeUnpublishVolumeRequest {
    v1::NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: target.into() }
}

const RWX: Mode = Mode::MultiNodeMultiWriter;

/// A static volume: its ID is any text, and there is no record of it.
#[tokio::test]
async fn static_volume_is_published_and_unpublished_repeatedly() {
    let place = Place::new();
    let driver = Running::start(&place).await;
    let mut node = driver.client().node();
    std::fs::create_dir_all(place.path("export/x/v1")).unwrap();
    std::fs::write(place.path("export/x/v1/file"), "data").unwrap();
    std::fs::create_dir(place.path("pods")).unwrap();
    let target = place.path("pods/a");
    let at = target.to_str().unwrap();
    let context = [("server", "nas"), ("share", "/x"), ("subDir", "v1"), ("mountPermissions", "0751")];
    for _ in 0..2 {
        node.node_publish_volume(publish("any text##", at, &context, RWX)).await.unwrap();
        assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "data");
    }
    let mode = std::fs::metadata(place.path("export/x/v1")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o751);
    let usage = node.node_get_volume_stats(stats("any text##", at)).await.unwrap().into_inner().usage;
    assert!(usage[0].total > 0);
    let health = v1::NodeGetVolumeHealthRequest {
        volume_id: "any text##".into(),
        volume_publish_path: at.into(),
        ..Default::default()
    };
    let issues = node.node_get_volume_health(health).await.unwrap().into_inner().volume_health.unwrap();
    assert!(issues.health_statuses.is_empty(), "{issues:?}");
    for _ in 0..2 {
        node.node_unpublish_volume(unpublish("any text##", at)).await.unwrap();
        assert!(!target.exists());
    }
    assert_eq!(std::fs::read_to_string(place.path("export/x/v1/file")).unwrap(), "data");
    let gone = node.node_get_volume_stats(stats("any text##", at)).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

/// B22: a mount at the target counts only if it is the volume's.
#[tokio::test]
async fn other_mount_at_the_target_is_not_taken_for_the_volume() {
    let place = Place::new();
    let driver = Running::start(&place).await;
    let mut node = driver.client().node();
    for name in ["v1", "v2"] {
        std::fs::create_dir_all(place.path("export/x").join(name)).unwrap();
    }
    let target = place.path("t");
    let at = target.to_str().unwrap();
    let context = |sub_dir| [("server", "nas"), ("share", "/x"), ("subDir", sub_dir)];
    node.node_publish_volume(publish("v1", at, &context("v1"), RWX)).await.unwrap();
    let other = node.node_publish_volume(publish("v2", at, &context("v2"), RWX)).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists, "{other}");
    let mut read_only = publish("v1", at, &context("v1"), RWX);
    read_only.readonly = true;
    let status = node.node_publish_volume(read_only.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    // A second target of the volume, read-only.
    let second = place.path("u");
    read_only.target_path = second.to_str().unwrap().into();
    node.node_publish_volume(read_only).await.unwrap();
    assert!(std::fs::write(second.join("file"), "x").is_err());
    let single =
        publish("v1", place.path("w").to_str().unwrap(), &context("v1"), Mode::SingleNodeSingleWriter);
    let status = node.node_publish_volume(single).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    for path in [&target, &second] {
        node.node_unpublish_volume(unpublish("v1", path.to_str().unwrap())).await.unwrap();
    }
}

/// B23: mountPermissions on a read-only mount is skipped.
#[tokio::test]
async fn mount_permissions_are_ignored_on_a_read_only_mount() {
    let place = Place::new();
    let driver = Running::start(&place).await;
    let mut node = driver.client().node();
    std::fs::create_dir_all(place.path("export/x/v1")).unwrap();
    let before = std::fs::metadata(place.path("export/x/v1")).unwrap().permissions().mode();
    let target = place.path("t");
    let context = [("server", "nas"), ("share", "/x"), ("subDir", "v1"), ("mountPermissions", "0700")];
    let mut request = publish("v1", target.to_str().unwrap(), &context, RWX);
    request.readonly = true;
    for _ in 0..2 {
        node.node_publish_volume(request.clone()).await.unwrap();
    }
    assert_eq!(std::fs::metadata(place.path("export/x/v1")).unwrap().permissions().mode(), before);
    node.node_unpublish_volume(unpublish("v1", target.to_str().unwrap())).await.unwrap();
}

#[tokio::test]
async fn publish_errors_have_their_codes() {
    let place = Place::new();
    let driver = Running::start(&place).await;
    let mut node = driver.client().node();
    std::fs::create_dir_all(place.path("export/x")).unwrap();
    let target = place.path("t");
    let at = target.to_str().unwrap();
    let inline = format!("csi-{}", "ab".repeat(32));
    for (id, context, code) in [
        ("v", &[("server", "nas"), ("share", "/x"), ("subDir", "missing")][..], Code::NotFound),
        ("v", &[("server", "other"), ("share", "/x")], Code::Unavailable),
        ("v", &[("server", "nas")], Code::InvalidArgument),
        ("v", &[("server", "nas"), ("share", "/x"), ("subDir", "../..")], Code::InvalidArgument),
        ("v", &[("server", "nas"), ("share", "/x"), ("mountOptions", "vers=9")], Code::InvalidArgument),
        (&inline, &[("server", "nas"), ("share", "/x")], Code::PermissionDenied),
    ] {
        let status = node.node_publish_volume(publish(id, at, context, RWX)).await.unwrap_err();
        assert_eq!(status.code(), code, "{context:?}: {status}");
    }
    assert!(Linux::new().mount_table().unwrap().at(&target).is_none());
    node.node_unpublish_volume(unpublish("v", at)).await.unwrap();
    assert!(!target.exists());
}

/// A mount that is in use is not detached while nothing says that its server is gone.
#[tokio::test]
async fn busy_mount_is_not_detached() {
    let place = Place::new();
    let driver = Running::start(&place).await;
    let mut node = driver.client().node();
    std::fs::create_dir_all(place.path("export/x/v1")).unwrap();
    let target = place.path("t");
    let at = target.to_str().unwrap();
    let context = [("server", "nas"), ("share", "/x"), ("subDir", "v1")];
    node.node_publish_volume(publish("v1", at, &context, RWX)).await.unwrap();
    let file = std::fs::File::create(target.join("file")).unwrap();
    let status = node.node_unpublish_volume(unpublish("v1", at)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(Linux::new().mount_table().unwrap().at(&target).is_some());
    drop(file);
    node.node_unpublish_volume(unpublish("v1", at)).await.unwrap();
}
