//! Volumes, attachments and mounts as the existing driver leaves them.

use std::collections::BTreeMap;
use std::path::Path;

use tonic::Code;
use wharf_driver_digitalocean::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME};
use wharf_fake_digitalocean::{Attachment, Volume};

use crate::support::{Bench, GIB, HERE, REGION, THERE, block, mount, refused, run, text};

const ID: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";
const NAME: &str = "pvc-0213d7f4-bf2c-4bf5-a9a4-7c2c8d7c9f11";

/// A volume that the existing driver made and attached here.
fn leave_volume(bench: &Bench) {
    bench.fake.change(|state, now| {
        let volume = Volume {
            id: ID.into(),
            name: NAME.into(),
            region: REGION.into(),
            size_gigabytes: 1,
            description: DESCRIPTION.into(),
            filesystem_type: String::new(),
            filesystem_label: String::new(),
            tags: vec![],
            created: now,
            attached: Some(Attachment { droplet: HERE, since: now }),
            snapshotted: None,
        };
        state.volumes.insert(ID.into(), volume);
    });
}

/// What its VolumeAttachment says.
fn attachment(driver: &str) -> BTreeMap<String, String> {
    [(format!("{driver}/volume-name"), NAME.to_owned())].into()
}

fn mounted_by_hand(device: &Path, staging: &Path, target: &Path) {
    for path in [staging, target] {
        std::fs::create_dir_all(path).unwrap();
    }
    run("mount", &["-t", "xfs", "-o", "nouuid", &text(device), &text(staging)]);
    run("mount", &["--bind", &text(staging), &text(target)]);
}

#[tokio::test]
async fn what_it_staged_and_published_goes_on() {
    let bench = Bench::new().await;
    leave_volume(&bench);
    let device = bench.device(NAME).await;
    run("mkfs.xfs", &["-q", &text(&device)]);
    mounted_by_hand(&device, &bench.staging(ID), &bench.target("old"));
    std::fs::write(bench.target("old").join("file"), "data").unwrap();

    // Kubelet asks without ever having staged it with us.
    let old = attachment(DRIVER_NAME);
    assert!(!bench.stats(ID, &bench.target("old")).await.unwrap().is_empty());
    assert_eq!(bench.expand(ID, 2 * GIB).await.unwrap(), 2 * GIB);
    assert_eq!(bench.expand_on_node(ID, 2 * GIB).await.unwrap(), 2 * GIB);
    assert!(bench.stats(ID, &bench.staging(ID)).await.unwrap()[0].total > 3 * GIB / 2);
    bench.publish(ID, "new", &mount("xfs"), old.clone()).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.target("new").join("file")).unwrap(), "data");
    refused(bench.unstage(ID).await, Code::FailedPrecondition, "still published");

    // And it goes its ways.
    let snapshot = bench.snapshot("snapshot-1", ID).await.unwrap();
    bench.unpublish(ID, "old").await.unwrap();
    bench.unpublish(ID, "new").await.unwrap();
    bench.unstage(ID).await.unwrap();
    bench.stage(ID, &mount("xfs"), old).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.staging(ID).join("file")).unwrap(), "data");
    bench.unstage(ID).await.unwrap();
    bench.detach(ID, &HERE.to_string()).await.unwrap();
    bench.attach(ID, &THERE.to_string()).await.unwrap();
    bench.detach(ID, &THERE.to_string()).await.unwrap();
    bench.delete(ID).await.unwrap();
    bench.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    bench.assert_empty();
}

/// B1: it expanded a claim to 2.5 GiB by growing the volume to 2, and the node half of that is still to be done.
#[tokio::test]
async fn an_expansion_that_it_rounded_down_comes_to_its_end() {
    let bench = Bench::new().await;
    leave_volume(&bench);
    let device = bench.device(NAME).await;
    run("mkfs.xfs", &["-q", &text(&device)]);
    mounted_by_hand(&device, &bench.staging(ID), &bench.target("old"));
    assert_eq!(bench.expand(ID, 2 * GIB).await.unwrap(), 2 * GIB);
    assert_eq!(bench.expand_on_node(ID, 5 * GIB / 2).await.unwrap(), 2 * GIB);
    assert!(bench.stats(ID, &bench.staging(ID)).await.unwrap()[0].total > 3 * GIB / 2);
    // What is missing a whole GiB is not yet there.
    refused(bench.expand_on_node(ID, 3 * GIB).await, Code::Unavailable, "cannot be used");
}

#[tokio::test]
async fn what_it_only_staged_is_let_go_of_at_once() {
    let bench = Bench::new().await;
    leave_volume(&bench);
    let device = bench.device(NAME).await;
    run("mkfs.xfs", &["-q", &text(&device)]);
    mounted_by_hand(&device, &bench.staging(ID), &bench.target("old"));
    bench.unpublish(ID, "old").await.unwrap();
    bench.unstage(ID).await.unwrap();
    bench.detach(ID, &HERE.to_string()).await.unwrap();
    bench.delete(ID).await.unwrap();
    bench.assert_empty();
}

#[tokio::test]
async fn a_volume_that_it_never_formatted_is_formatted_on_proof() {
    let bench = Bench::with(|config| config.driver_name = LEGACY_DRIVER_NAME.to_owned()).await;
    leave_volume(&bench);
    let context = attachment(LEGACY_DRIVER_NAME);
    bench.stage(ID, &mount("ext4"), context.clone()).await.unwrap();
    std::fs::write(bench.staging(ID).join("file"), "data").unwrap();
    bench.unstage(ID).await.unwrap();
    bench.stage(ID, &mount("ext4"), context).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.staging(ID).join("file")).unwrap(), "data");
    bench.unstage(ID).await.unwrap();
    // By the other name's key it is not known.
    let other = attachment(DRIVER_NAME);
    refused(bench.stage(ID, &mount("ext4"), other).await, Code::InvalidArgument, "--driver-name");
}

/// B7, and B6's worse half: neither made anew, nor made at all.
#[tokio::test]
async fn what_must_not_be_formatted_is_not() {
    let bench = Bench::new().await;
    leave_volume(&bench);
    let (device, context) = (bench.device(NAME).await, attachment(DRIVER_NAME));
    for key in [
        "dobs.csi.digitalocean.com/noformat",
        "com.digitalocean.csi.dobs/noformat",
        "com.digitalocean.csi/noformat",
    ] {
        let volume = [(key.to_owned(), "true".to_owned())].into();
        let staged = bench.stage_with(ID, &mount("ext4"), context.clone(), volume).await;
        refused(staged, Code::FailedPrecondition, "none is to be made");
    }
    // No signature, but somebody's data.
    run(
        "dd",
        &["if=/dev/urandom", &format!("of={}", text(&device)), "bs=1M", "count=1", "seek=100", "conv=fsync"],
    );
    run("dd", &["if=/dev/urandom", &format!("of={}", text(&device)), "bs=4k", "count=1", "conv=fsync"]);
    refused(bench.stage(ID, &mount("ext4"), context).await, Code::FailedPrecondition, "not zero");
    assert_eq!(bench.notes(), 0, "a stage that failed leaves no note");
}

#[tokio::test]
async fn a_raw_volume_that_it_published_goes_on() {
    let bench = Bench::new().await;
    leave_volume(&bench);
    let (device, context) = (bench.device(NAME).await, attachment(DRIVER_NAME));
    std::fs::write(bench.target("old"), "").unwrap();
    run("mount", &["--bind", &text(&device), &text(&bench.target("old"))]);
    assert_eq!(bench.stats(ID, &bench.target("old")).await.unwrap()[0].total, GIB);
    bench.publish(ID, "new", &block(), context).await.unwrap();
    for target in ["old", "new"] {
        bench.unpublish(ID, target).await.unwrap();
    }
    bench.unstage(ID).await.unwrap();
    bench.detach(ID, &HERE.to_string()).await.unwrap();
    bench.delete(ID).await.unwrap();
    bench.assert_empty();
}
