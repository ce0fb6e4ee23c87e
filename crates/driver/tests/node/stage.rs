//! Stage and unstage: idempotent, safe with foreign mounts, and based on the mount table alone.

use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_driver::backend::FormatState;

use crate::support::{Bench, MIB, block, mount, mount_with, refused, run, text};

const SIZE: u64 = 32 * MIB;

async fn bench() -> Bench {
    let bench = Bench::new().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    bench
}

#[tokio::test]
async fn repeated_stage_succeeds_and_incompatible_stage_fails() {
    let bench = bench().await;
    for _ in 0..3 {
        bench.stage("v", &mount("ext4")).await.unwrap();
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(table.lines().filter(|line| line.contains(&text(&bench.staging("v")))).count(), 1);
    let reader = mount_with("ext4", &[], Mode::SingleNodeReaderOnly);
    refused(bench.stage("v", &reader).await, Code::AlreadyExists, "read-only");
    refused(bench.stage("v", &block(Mode::SingleNodeWriter)).await, Code::AlreadyExists, "raw device");
    for _ in 0..3 {
        bench.unstage("v").await.unwrap();
    }
    assert_eq!(bench.mount_at(&bench.staging("v")), None);
    assert_eq!(bench.images.device("v"), None);
}

#[tokio::test]
async fn mount_and_mkfs_options_are_applied() {
    let bench = bench().await;
    let request = |options: &str, flags: &[&str]| v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        volume_capability: Some(mount_with("ext4", flags, Mode::SingleNodeMultiWriter)),
        volume_context: [("mkfsOptions".to_owned(), options.to_owned())].into(),
        ..Default::default()
    };
    let status = bench.call(request("-F /dev/sda", &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert_eq!(bench.images.format_of("v"), FormatState::Blank);

    bench.call(request("-L labelled -m 5", &["noatime", "nosuid", "commit=17"])).await.unwrap();
    let mount = bench.mount_at(&bench.staging("v")).unwrap();
    for option in ["noatime", "nosuid"] {
        assert!(mount.options.iter().any(|found| found == option), "{mount:?}");
    }
    assert!(mount.super_options.iter().any(|found| found == "commit=17"), "{mount:?}");
    assert_eq!(run("e2label", &[&text(&bench.images.device("v").unwrap().path)]), "labelled");
}

#[tokio::test]
async fn foreign_mount_is_neither_covered_nor_unmounted() {
    let bench = bench().await;
    let staging = bench.staging("v");
    std::fs::create_dir(&staging).unwrap();
    run("mount", &["-t", "tmpfs", "foreign", &text(&staging)]);
    refused(bench.stage("v", &mount("ext4")).await, Code::FailedPrecondition, "foreign");
    assert_eq!(bench.images.device("v"), None, "a failed stage must leave nothing attached");

    // A crash can leave the device attached while a foreign mount is at the path.
    run("umount", &[&text(&staging)]);
    bench.stage("v", &mount("ext4")).await.unwrap();
    run("mount", &["-t", "tmpfs", "foreign", &text(&staging)]);
    refused(bench.unstage("v").await, Code::FailedPrecondition, "foreign");
    assert_eq!(bench.mount_at(&staging).unwrap().source, "foreign");
    run("umount", &[&text(&staging)]);
    bench.unstage("v").await.unwrap();
}

#[tokio::test]
async fn volume_is_staged_at_one_path_only() {
    let bench = bench().await;
    bench.stage("v", &mount("ext4")).await.unwrap();
    let elsewhere = |path: &str| v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.path(path)),
        volume_capability: Some(mount("ext4")),
        ..Default::default()
    };
    let status = bench.call(elsewhere("stage/second")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains(&text(&bench.staging("v"))), "{status}");
    assert!(bench.mount_at(&bench.staging("v")).is_some(), "the first mount must stay");

    bench.publish("v", "pod", &mount("ext4"), false).await.unwrap();
    refused(bench.unstage("v").await, Code::FailedPrecondition, &text(&bench.target("pod")));
    bench.unpublish("v", "pod").await.unwrap();
    bench.unstage("v").await.unwrap();
}

#[tokio::test]
async fn driver_restart_keeps_all_mounts() {
    let mut bench = bench().await;
    bench.stage("v", &mount("ext4")).await.unwrap();
    bench.publish("v", "pod", &mount("ext4"), false).await.unwrap();
    let file = bench.target("pod").join("file");
    std::fs::write(&file, "before").unwrap();
    bench.restart().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
    bench.stage("v", &mount("ext4")).await.unwrap();
    bench.publish("v", "pod", &mount("ext4"), false).await.unwrap();
    refused(bench.unstage("v").await, Code::FailedPrecondition, "pod");
    bench.unpublish("v", "pod").await.unwrap();
    bench.unstage("v").await.unwrap();
    assert!(!bench.target("pod").exists());
    assert_eq!(bench.images.device("v"), None);
}

#[tokio::test]
async fn mounts_of_a_deleted_volume_can_be_removed() {
    let bench = bench().await;
    bench.stage("v", &mount("ext4")).await.unwrap();
    bench.publish("v", "pod", &mount("ext4"), false).await.unwrap();
    bench.images.drop_record("v");
    bench.unpublish("v", "pod").await.unwrap();
    assert!(!bench.target("pod").exists());
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.mount_at(&bench.staging("v")), None);
    bench.unstage("never-was").await.unwrap();
    bench.unpublish("never-was", "nowhere").await.unwrap();
}

#[tokio::test]
async fn symlinks_in_staging_paths_are_resolved() {
    let bench = bench().await;
    std::os::unix::fs::symlink(bench.path("stage"), bench.path("link")).unwrap();
    let staging = text(&bench.path("link").join("v"));
    for _ in 0..2 {
        let request = v1::NodeStageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: staging.clone(),
            volume_capability: Some(mount("ext4")),
            ..Default::default()
        };
        bench.call(request).await.unwrap();
    }
    bench.stage("v", &mount("ext4")).await.unwrap();
    let request = v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: staging };
    bench.call(request).await.unwrap();
    assert_eq!(bench.mount_at(&bench.staging("v")), None);

    std::fs::remove_dir(bench.staging("v")).unwrap();
    std::os::unix::fs::symlink(bench.path("pods"), bench.staging("v")).unwrap();
    assert!(bench.stage("v", &mount("ext4")).await.is_err(), "the staging path itself is a symlink");
    assert_eq!(bench.mount_at(&bench.path("pods")), None);
}

#[tokio::test]
async fn malformed_stage_requests_are_invalid() {
    let bench = bench().await;
    let good = v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        volume_capability: Some(mount("ext4")),
        ..Default::default()
    };
    let bad = [
        v1::NodeStageVolumeRequest { volume_id: String::new(), ..good.clone() },
        v1::NodeStageVolumeRequest { volume_id: "v\0".into(), ..good.clone() },
        v1::NodeStageVolumeRequest { staging_target_path: String::new(), ..good.clone() },
        v1::NodeStageVolumeRequest { staging_target_path: "relative".into(), ..good.clone() },
        v1::NodeStageVolumeRequest { staging_target_path: "/".into(), ..good.clone() },
        v1::NodeStageVolumeRequest { staging_target_path: "/a/../b".into(), ..good.clone() },
        v1::NodeStageVolumeRequest { volume_capability: None, ..good.clone() },
    ];
    for request in bad {
        assert_eq!(bench.call(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(bench.images.device("v"), None);
}
