//! Volumes that another driver staged, of which the backend has no note: they are known by what is mounted.

use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_driver::backend::Format;

use crate::images::{IMAGE, NO_FORMAT};
use crate::support::{Bench, MIB, block, mount, refused, run, text};

/// Enough for xfs, which grows mounted on every kernel.
const SIZE: u64 = 320 * MIB;

async fn staged() -> Bench {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, Format::Blank);
    bench.stage("v", &mount("xfs")).await.unwrap();
    bench
}

#[tokio::test]
async fn each_call_works_as_the_first_one_without_a_note() {
    let bench = staged().await;
    let staging = bench.staging("v");
    bench.images.lose_note("v");
    assert!(!bench.stats("v", &staging).await.unwrap().is_empty());

    bench.images.lose_note("v");
    bench.images.grow("v", 2 * SIZE);
    let request = v1::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: text(&staging),
        ..Default::default()
    };
    assert_eq!(bench.call(request).await.unwrap().capacity_bytes, 2 * SIZE as i64);

    bench.images.lose_note("v");
    bench.publish("v", "pod", &mount("xfs"), false).await.unwrap();
    bench.images.lose_note("v");
    refused(bench.unstage("v").await, Code::FailedPrecondition, &text(&bench.target("pod")));
    bench.images.lose_note("v");
    bench.unpublish("v", "pod").await.unwrap();
    assert_eq!(bench.mount_at(&bench.target("pod")), None);

    bench.images.lose_note("v");
    bench.stage("v", &mount("xfs")).await.unwrap();
    bench.images.lose_note("v");
    bench.unstage("v").await.unwrap();
    assert_eq!((bench.mount_at(&staging), bench.images.device("v")), (None, None));
}

/// Pods run on what another driver staged: a stage with us that fails must not take it away.
#[tokio::test]
async fn a_stage_that_fails_leaves_what_was_staged() {
    let bench = staged().await;
    bench.publish("v", "pod", &mount("xfs"), false).await.unwrap();
    for _ in 0..2 {
        bench.images.lose_note("v");
        refused(bench.stage("v", &mount("ext4")).await, Code::AlreadyExists, "xfs");
        assert!(bench.mount_at(&bench.staging("v")).is_some(), "it is still staged");
    }
    bench.images.lose_note("v");
    bench.unpublish("v", "pod").await.unwrap();
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.images.device("v"), None);
}

/// Whatever the backend knows of it: a file system that is mounted elsewhere is in use.
#[tokio::test]
async fn a_volume_that_nobody_knows_is_not_unstaged_under_its_pods() {
    let bench = staged().await;
    bench.publish("v", "pod", &mount("xfs"), false).await.unwrap();
    bench.images.forget("v");
    refused(bench.unstage("v").await, Code::FailedPrecondition, &text(&bench.target("pod")));
    assert!(bench.mount_at(&bench.staging("v")).is_some(), "it is still staged");
    bench.unpublish("v", "pod").await.unwrap();
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.mount_at(&bench.staging("v")), None);
}

#[tokio::test]
async fn another_volume_s_mount_is_no_trace() {
    let bench = staged().await;
    bench.images.create("other", SIZE, Format::Blank);
    let answer = bench.stats("other", &bench.staging("v")).await;
    assert_eq!(answer.unwrap_err().code(), Code::NotFound);
    bench.unstage("v").await.unwrap();
}

#[tokio::test]
async fn a_raw_volume_is_known_by_what_it_was_attached_with() {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, Format::Blank);
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
    bench.images.lose_note("v");
    let unknown = bench.call(publish("one", "w")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::FailedPrecondition, "{unknown}");
    bench.call(publish("one", "v")).await.unwrap();

    bench.images.lose_note("v");
    assert_eq!(bench.stats("v", &bench.target("one")).await.unwrap()[0].total, SIZE as i64);
    bench.images.lose_note("v");
    bench.unpublish("v", "one").await.unwrap();
    bench.unstage("v").await.unwrap();
    assert_eq!(bench.images.device("v"), None);
}

#[tokio::test]
async fn two_copies_of_one_xfs_are_mounted_side_by_side() {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, Format::Blank);
    bench.stage("v", &mount("xfs")).await.unwrap();
    std::fs::write(bench.staging("v").join("file"), "data").unwrap();
    run("sync", &["-f", &text(&bench.staging("v"))]);
    bench.unstage("v").await.unwrap();
    bench.images.copy("v", "one", Format::Blank);
    bench.images.copy("v", "two", Format::Blank);
    for copy in ["one", "two"] {
        bench.stage(copy, &mount("xfs")).await.unwrap();
        assert_eq!(std::fs::read_to_string(bench.staging(copy).join("file")).unwrap(), "data");
    }
    for copy in ["one", "two"] {
        bench.unstage(copy).await.unwrap();
    }
}

#[tokio::test]
async fn where_the_user_says_so_nothing_is_made_and_what_is_there_is_mounted() {
    let bench = Bench::without_records().await;
    bench.images.create("v", SIZE, Format::Blank);
    let stage = || v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: text(&bench.staging("v")),
        volume_capability: Some(mount("")),
        volume_context: [(NO_FORMAT.to_owned(), String::new())].into(),
        ..Default::default()
    };
    refused(bench.call(stage()).await.map(drop), Code::FailedPrecondition, "none is to be made");
    let used = std::fs::metadata(bench.images.image("v")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&used), 0, "not one byte was written");

    run("mkfs.ext4", &["-q", "-F", &text(&bench.images.image("v"))]);
    bench.call(stage()).await.unwrap();
    bench.unstage("v").await.unwrap();
}
