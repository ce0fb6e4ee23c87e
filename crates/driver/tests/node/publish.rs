//! Publish and unpublish of file systems and raw devices.

use std::os::unix::fs::FileTypeExt as _;

use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_csi::v1::volume_usage::Unit;
use wharf_driver::backend::FormatState;

use crate::support::{Bench, MIB, block, mount, mount_with, refused, run, text};

const SIZE: u64 = 32 * MIB;

async fn bench() -> Bench {
    let bench = Bench::new().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    bench
}

#[tokio::test]
async fn file_system_is_bound_once_and_removed() {
    let bench = bench().await;
    refused(bench.publish("v", "a", &mount("ext4"), false).await, Code::FailedPrecondition, "not staged");
    refused(bench.publish("none", "a", &mount("ext4"), false).await, Code::NotFound, "none");
    bench.stage("v", &mount("ext4")).await.unwrap();
    for _ in 0..2 {
        bench.publish("v", "a", &mount("ext4"), false).await.unwrap();
    }
    std::fs::write(bench.target("a").join("file"), "a").unwrap();
    refused(bench.publish("v", "a", &mount("ext4"), true).await, Code::AlreadyExists, "read-only");
    refused(
        bench.publish("v", "a", &block(Mode::SingleNodeWriter), false).await,
        Code::FailedPrecondition,
        "staged as",
    );

    refused(bench.publish("v", "b", &mount("xfs"), false).await, Code::FailedPrecondition, "staged as ext4");

    for _ in 0..2 {
        bench.publish("v", "b", &mount("ext4"), true).await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(bench.target("b").join("file")).unwrap(), "a");
    assert!(std::fs::write(bench.target("b").join("other"), "").is_err(), "read-only");

    for target in ["a", "b", "a", "b"] {
        bench.unpublish("v", target).await.unwrap();
        assert!(!bench.target(target).exists());
    }
    assert_eq!(std::fs::read_to_string(bench.staging("v").join("file")).unwrap(), "a");
}

#[tokio::test]
async fn btrfs_mounts_are_found_without_a_device_number() {
    let bench = Bench::new().await;
    bench.images.create("v", 128 * MIB, FormatState::Blank);
    for _ in 0..2 {
        bench.stage("v", &mount("btrfs")).await.unwrap();
        bench.publish("v", "a", &mount("btrfs"), false).await.unwrap();
    }
    refused(bench.unstage("v").await, Code::FailedPrecondition, "still published");
    assert!(bench.stats("v", &bench.target("a")).await.unwrap()[0].total > 0);
    bench.unpublish("v", "a").await.unwrap();
    bench.unstage("v").await.unwrap();
}

#[tokio::test]
async fn single_writer_volume_is_published_to_one_pod_only() {
    let bench = bench().await;
    for capability in
        [mount_with("ext4", &[], Mode::SingleNodeSingleWriter), block(Mode::SingleNodeSingleWriter)]
    {
        bench.images.create("v", SIZE, FormatState::Blank);
        bench.stage("v", &capability).await.unwrap();
        for _ in 0..2 {
            bench.publish("v", "a", &capability, false).await.unwrap();
        }
        let second = bench.publish("v", "b", &capability, false).await;
        refused(second, Code::FailedPrecondition, &text(&bench.target("a")));
        assert!(!bench.target("b").exists());
        bench.unpublish("v", "a").await.unwrap();
        bench.publish("v", "b", &capability, false).await.unwrap();
        bench.unpublish("v", "b").await.unwrap();
        bench.unstage("v").await.unwrap();
    }
}

#[tokio::test]
async fn reader_only_volume_is_mounted_read_only() {
    let bench = bench().await;
    bench.stage("v", &mount("ext4")).await.unwrap();
    std::fs::write(bench.staging("v").join("file"), "kept").unwrap();
    bench.unstage("v").await.unwrap();
    let reader = mount_with("ext4", &[], Mode::SingleNodeReaderOnly);
    bench.stage("v", &reader).await.unwrap();
    for _ in 0..2 {
        bench.publish("v", "a", &reader, false).await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(bench.target("a").join("file")).unwrap(), "kept");
    assert!(std::fs::write(bench.target("a").join("file"), "").is_err());
}

#[tokio::test]
async fn raw_device_is_bound_on_a_file() {
    let bench = bench().await;
    let writer = block(Mode::SingleNodeMultiWriter);
    refused(bench.publish("v", "a", &writer, false).await, Code::FailedPrecondition, "not staged");
    for _ in 0..2 {
        bench.stage("v", &writer).await.unwrap();
        bench.publish("v", "a", &writer, false).await.unwrap();
    }
    let target = bench.target("a");
    assert!(target.metadata().unwrap().file_type().is_block_device());
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={}", text(&target)),
            "bs=1M",
            "count=1",
            "conv=notrunc,fsync",
            "status=none",
        ],
    );
    assert!(std::fs::read(bench.images.image("v")).unwrap()[..MIB as usize].iter().any(|byte| *byte != 0));
    let stats = bench.stats("v", &target).await.unwrap();
    assert_eq!((stats[0].unit(), stats[0].total, stats.len()), (Unit::Bytes, SIZE as i64, 1));

    refused(bench.stage("v", &mount("ext4")).await, Code::FailedPrecondition, &text(&target));
    // This backend has no read-only device, so the orchestrator's device rules have to restrict the pod (U-11).
    for _ in 0..2 {
        bench.publish("v", "b", &writer, true).await.unwrap();
    }
    assert!(bench.mount_at(&bench.target("b")).unwrap().is_read_only());
    bench.unpublish("v", "b").await.unwrap();
    refused(bench.unstage("v").await, Code::FailedPrecondition, &text(&target));
    for _ in 0..2 {
        bench.unpublish("v", "a").await.unwrap();
    }
    assert!(!target.exists());
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.images.device("v"), None);
}

#[tokio::test]
async fn read_only_device_is_published_read_only() {
    let bench = bench().await;
    bench.images.change("v", |entry| entry.read_only = true);
    let reader = block(Mode::SingleNodeReaderOnly);
    bench.stage("v", &reader).await.unwrap();
    assert_eq!(bench.images.format_of("v"), FormatState::Blank, "a read-only device keeps its record");
    for _ in 0..2 {
        bench.publish("v", "a", &reader, true).await.unwrap();
    }
    assert!(std::fs::write(bench.target("a"), "x").is_err());
}

#[tokio::test]
async fn unpublish_unmounts_only_the_volume() {
    let bench = bench().await;
    bench.stage("v", &mount("ext4")).await.unwrap();
    let target = bench.target("a");
    std::fs::create_dir(&target).unwrap();
    run("mount", &["-t", "tmpfs", "foreign", &text(&target)]);
    refused(bench.publish("v", "a", &mount("ext4"), false).await, Code::FailedPrecondition, "foreign");
    refused(bench.unpublish("v", "a").await, Code::FailedPrecondition, "foreign");
    assert_eq!(bench.mount_at(&target).unwrap().source, "foreign");
    run("umount", &[&text(&target)]);
    bench.unpublish("v", "a").await.unwrap();
    assert!(!target.exists(), "a target that a crash left without its mount is removed");

    std::fs::write(&target, "data").unwrap();
    refused(bench.publish("v", "a", &mount("ext4"), false).await, Code::FailedPrecondition, "File");
    assert!(bench.unpublish("v", "a").await.is_err());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "data", "a file with content must not be removed");
}

#[tokio::test]
async fn stats_are_those_of_the_volume_or_not_found() {
    let bench = bench().await;
    bench.stage("v", &mount("ext4")).await.unwrap();
    bench.publish("v", "a", &mount("ext4"), false).await.unwrap();
    for path in [bench.staging("v"), bench.target("a")] {
        let stats = bench.stats("v", &path).await.unwrap();
        assert_eq!(stats.iter().map(v1::VolumeUsage::unit).collect::<Vec<_>>(), [Unit::Bytes, Unit::Inodes]);
        for usage in stats {
            assert!(
                usage.total > 0 && usage.available > 0 && usage.used + usage.available <= usage.total,
                "{usage:?}"
            );
        }
    }
    for (id, path) in [
        ("none", bench.target("a")),
        ("v", bench.target("b")),
        ("v", "/proc".into()),
        ("v", "some/path".into()),
    ] {
        assert_eq!(bench.stats(id, &path).await.unwrap_err().code(), Code::NotFound, "{id} {path:?}");
    }
    let empty_path = bench.stats("v", std::path::Path::new("")).await;
    assert_eq!(empty_path.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn malformed_publish_requests_are_rejected() {
    let bench = bench().await;
    let good = v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        target_path: text(&bench.target("a")),
        volume_capability: Some(mount("ext4")),
        ..Default::default()
    };
    let staging = good.staging_target_path.clone();
    bench.stage("v", &mount("ext4")).await.unwrap();
    for (request, code) in [
        (v1::NodePublishVolumeRequest { volume_id: String::new(), ..good.clone() }, Code::InvalidArgument),
        (v1::NodePublishVolumeRequest { target_path: String::new(), ..good.clone() }, Code::InvalidArgument),
        (v1::NodePublishVolumeRequest { target_path: "a/b".into(), ..good.clone() }, Code::InvalidArgument),
        (v1::NodePublishVolumeRequest { target_path: staging, ..good.clone() }, Code::InvalidArgument),
        (v1::NodePublishVolumeRequest { volume_capability: None, ..good.clone() }, Code::InvalidArgument),
        (
            v1::NodePublishVolumeRequest { staging_target_path: String::new(), ..good.clone() },
            Code::FailedPrecondition,
        ),
    ] {
        assert_eq!(bench.call(request).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn backend_receives_the_secrets_and_context_of_node_calls() {
    let bench = bench().await;
    let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    let stage = v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        volume_capability: Some(mount("")),
        secrets: map("call", "stage"),
        ..Default::default()
    };
    bench.call(stage).await.unwrap();
    let publish = |target: &str| v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        target_path: text(&bench.target(target)),
        volume_capability: Some(mount("")),
        volume_context: map("pod", "web-0"),
        secrets: map("call", "publish"),
        ..Default::default()
    };
    bench.call(publish("a")).await.unwrap();
    refused(bench.call(publish("forbidden")).await.map(drop), Code::InvalidArgument, "must not use");
    assert_eq!(bench.mount_at(&bench.target("forbidden")), None);
    let expand = v1::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: text(&bench.target("a")),
        secrets: map("call", "expand"),
        ..Default::default()
    };
    bench.call(expand).await.unwrap();
    let received = bench.images.received.lock().unwrap();
    for (method, secret, pod) in
        [("attach", "stage", None), ("before_publish", "publish", Some("web-0")), ("refresh", "expand", None)]
    {
        let expected = (Some(secret.to_owned()), pod.map(str::to_owned));
        assert_eq!(received.get(method), Some(&expected), "{method}");
    }
}
