//! Volumes that another driver staged and of which the backend has no record: their mounts identify them.

use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_driver::backend::FormatState;

use crate::images::{IMAGE, NO_FORMAT};
use crate::support::{Bench, MIB, block, mount, refused, run, text};

/// Large enough for xfs, which every kernel can grow while it is mounted.
const SIZE: u64 = 320 * MIB;

async fn staged() -> Bench {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    bench.stage("v", &mount("xfs")).await.unwrap();
    bench
}

#[tokio::test]
async fn each_call_works_without_a_backend_record() {
    let bench = staged().await;
    let staging = bench.staging("v");
    bench.images.drop_attachment_record("v");
    assert!(!bench.stats("v", &staging).await.unwrap().is_empty());

    bench.images.drop_attachment_record("v");
    bench.images.grow("v", 2 * SIZE);
    let request = v1::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: text(&staging),
        ..Default::default()
    };
    assert_eq!(bench.call(request).await.unwrap().capacity_bytes, 2 * SIZE as i64);

    bench.images.drop_attachment_record("v");
    bench.publish("v", "pod", &mount("xfs"), false).await.unwrap();
    bench.images.drop_attachment_record("v");
    refused(bench.unstage("v").await, Code::FailedPrecondition, &text(&bench.target("pod")));
    bench.images.drop_attachment_record("v");
    bench.unpublish("v", "pod").await.unwrap();
    assert_eq!(bench.mount_at(&bench.target("pod")), None);

    bench.images.drop_attachment_record("v");
    bench.stage("v", &mount("xfs")).await.unwrap();
    bench.images.drop_attachment_record("v");
    bench.unstage("v").await.unwrap();
    assert_eq!((bench.mount_at(&staging), bench.images.device("v")), (None, None));
}

/// Pods may use what another driver staged: a failed stage must not unmount it.
#[tokio::test]
async fn failed_stage_keeps_an_existing_mount() {
    let bench = staged().await;
    bench.publish("v", "pod", &mount("xfs"), false).await.unwrap();
    for _ in 0..2 {
        bench.images.drop_attachment_record("v");
        refused(bench.stage("v", &mount("ext4")).await, Code::AlreadyExists, "xfs");
        assert!(bench.mount_at(&bench.staging("v")).is_some(), "it is still staged");
    }
    bench.images.drop_attachment_record("v");
    bench.unpublish("v", "pod").await.unwrap();
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.images.device("v"), None);
}

/// A file system that is mounted elsewhere is in use, whether or not the backend knows the volume.
#[tokio::test]
async fn unknown_volume_is_not_unstaged_while_published() {
    let bench = staged().await;
    bench.publish("v", "pod", &mount("xfs"), false).await.unwrap();
    bench.images.drop_record("v");
    refused(bench.unstage("v").await, Code::FailedPrecondition, &text(&bench.target("pod")));
    assert!(bench.mount_at(&bench.staging("v")).is_some(), "it is still staged");
    bench.unpublish("v", "pod").await.unwrap();
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.mount_at(&bench.staging("v")), None);
}

#[tokio::test]
async fn mount_of_another_volume_does_not_identify_the_device() {
    let bench = staged().await;
    bench.images.create("other", SIZE, FormatState::Blank);
    let result = bench.stats("other", &bench.staging("v")).await;
    assert_eq!(result.unwrap_err().code(), Code::NotFound);
    bench.unstage("v").await.unwrap();
}

#[tokio::test]
async fn raw_volume_is_identified_by_its_publish_context() {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    let raw = block(Mode::SingleNodeMultiWriter);
    bench.stage("v", &raw).await.unwrap();
    let publish = |target: &str, image: &str| v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        target_path: text(&bench.target(target)),
        volume_capability: Some(raw.clone()),
        publish_context: [(IMAGE.to_owned(), image.to_owned())].into(),
        ..Default::default()
    };
    bench.images.drop_attachment_record("v");
    let unknown = bench.call(publish("one", "w")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::FailedPrecondition, "{unknown}");
    bench.call(publish("one", "v")).await.unwrap();

    bench.images.drop_attachment_record("v");
    assert_eq!(bench.stats("v", &bench.target("one")).await.unwrap()[0].total, SIZE as i64);
    bench.images.drop_attachment_record("v");
    bench.unpublish("v", "one").await.unwrap();
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.images.device("v"), None);
}

#[tokio::test]
async fn two_copies_of_one_xfs_mount_at_the_same_time() {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    bench.stage("v", &mount("xfs")).await.unwrap();
    std::fs::write(bench.staging("v").join("file"), "data").unwrap();
    run("sync", &["-f", &text(&bench.staging("v"))]);
    bench.unstage("v").await.unwrap();
    bench.images.copy("v", "one", FormatState::Blank);
    bench.images.copy("v", "two", FormatState::Blank);
    for copy in ["one", "two"] {
        bench.stage(copy, &mount("xfs")).await.unwrap();
        assert_eq!(std::fs::read_to_string(bench.staging(copy).join("file")).unwrap(), "data");
    }
    for copy in ["one", "two"] {
        bench.unstage(copy).await.unwrap();
    }
}

#[tokio::test]
async fn disabled_formatting_mounts_only_an_existing_file_system() {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    let stage = || v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        volume_capability: Some(mount("")),
        volume_context: [(NO_FORMAT.to_owned(), String::new())].into(),
        ..Default::default()
    };
    refused(bench.call(stage()).await.map(drop), Code::FailedPrecondition, "disables formatting");
    let used = std::fs::metadata(bench.images.image("v")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&used), 0, "not one byte was written");

    run("mkfs.ext4", &["-q", "-F", &text(&bench.images.image("v"))]);
    bench.call(stage()).await.unwrap();
    bench.unstage("v").await.unwrap();
}
