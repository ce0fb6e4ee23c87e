//! Takeover of volumes, attachments and mounts of the existing driver.

use std::collections::BTreeMap;
use std::path::Path;

use tonic::Code;
use wharf_driver_digitalocean::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME};
use wharf_fake_digitalocean::{Attachment, Volume};

use crate::support::{Bench, GIB, HERE, REGION, THERE, block, mount, refused, run, text};

const ID: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";
const NAME: &str = "pvc-0213d7f4-bf2c-4bf5-a9a4-7c2c8d7c9f11";

/// A volume that the existing driver created and attached here.
fn create_existing_volume(bench: &Bench) {
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

/// The publish context in its VolumeAttachment.
fn attachment(driver: &str) -> BTreeMap<String, String> {
    [(format!("{driver}/volume-name"), NAME.to_owned())].into()
}

fn mount_as_existing_driver(device: &Path, staging: &Path, target: &Path) {
    for path in [staging, target] {
        std::fs::create_dir_all(path).unwrap();
    }
    run("mount", &["-t", "xfs", "-o", "nouuid", &text(device), &text(staging)]);
    run("mount", &["--bind", &text(staging), &text(target)]);
}

#[tokio::test]
async fn staged_and_published_volume_keeps_working() {
    let bench = Bench::new().await;
    create_existing_volume(&bench);
    let device = bench.device(NAME).await;
    run("mkfs.xfs", &["-q", &text(&device)]);
    mount_as_existing_driver(&device, &bench.staging(ID), &bench.target("old"));
    std::fs::write(bench.target("old").join("file"), "data").unwrap();

    // Kubelet calls without having staged the volume with this driver.
    let old = attachment(DRIVER_NAME);
    assert!(!bench.stats(ID, &bench.target("old")).await.unwrap().is_empty());
    assert_eq!(bench.expand(ID, 2 * GIB).await.unwrap(), 2 * GIB);
    assert_eq!(bench.expand_on_node(ID, 2 * GIB).await.unwrap(), 2 * GIB);
    assert!(bench.stats(ID, &bench.staging(ID)).await.unwrap()[0].total > 3 * GIB / 2);
    bench.publish(ID, "new", &mount("xfs"), old.clone()).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.target("new").join("file")).unwrap(), "data");
    refused(bench.unstage(ID).await, Code::FailedPrecondition, "still published");

    // The rest of the lifecycle works.
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

/// The existing driver expanded a claim to 2.5 GiB by resizing the volume to 2 GiB, and NodeExpandVolume is still pending.
#[tokio::test]
async fn rounded_down_expansion_is_completed_on_the_node() {
    let bench = Bench::new().await;
    create_existing_volume(&bench);
    let device = bench.device(NAME).await;
    run("mkfs.xfs", &["-q", &text(&device)]);
    mount_as_existing_driver(&device, &bench.staging(ID), &bench.target("old"));
    assert_eq!(bench.expand(ID, 2 * GIB).await.unwrap(), 2 * GIB);
    assert_eq!(bench.expand_on_node(ID, 5 * GIB / 2).await.unwrap(), 2 * GIB);
    assert!(bench.stats(ID, &bench.staging(ID)).await.unwrap()[0].total > 3 * GIB / 2);
    // A device that is a whole GiB smaller is not accepted.
    refused(bench.expand_on_node(ID, 3 * GIB).await, Code::Unavailable, "cannot be used");
}

#[tokio::test]
async fn staged_only_volume_is_unstaged() {
    let bench = Bench::new().await;
    create_existing_volume(&bench);
    let device = bench.device(NAME).await;
    run("mkfs.xfs", &["-q", &text(&device)]);
    mount_as_existing_driver(&device, &bench.staging(ID), &bench.target("old"));
    bench.unpublish(ID, "old").await.unwrap();
    bench.unstage(ID).await.unwrap();
    bench.detach(ID, &HERE.to_string()).await.unwrap();
    bench.delete(ID).await.unwrap();
    bench.assert_empty();
}

#[tokio::test]
async fn blank_volume_is_formatted() {
    let bench = Bench::with(|config| config.driver_name = LEGACY_DRIVER_NAME.to_owned()).await;
    create_existing_volume(&bench);
    let context = attachment(LEGACY_DRIVER_NAME);
    bench.stage(ID, &mount("ext4"), context.clone()).await.unwrap();
    std::fs::write(bench.staging(ID).join("file"), "data").unwrap();
    bench.unstage(ID).await.unwrap();
    bench.stage(ID, &mount("ext4"), context).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.staging(ID).join("file")).unwrap(), "data");
    bench.unstage(ID).await.unwrap();
    // The key of the other driver name is not recognized.
    let other = attachment(DRIVER_NAME);
    refused(bench.stage(ID, &mount("ext4"), other).await, Code::InvalidArgument, "--driver-name");
}

/// A volume with a `noformat` key, or with bytes that are not zero, is neither formatted nor reformatted.
#[tokio::test]
async fn noformat_or_nonzero_volume_is_never_formatted() {
    let bench = Bench::new().await;
    create_existing_volume(&bench);
    let (device, context) = (bench.device(NAME).await, attachment(DRIVER_NAME));
    for key in [
        "dobs.csi.digitalocean.com/noformat",
        "com.digitalocean.csi.dobs/noformat",
        "com.digitalocean.csi/noformat",
    ] {
        let volume = [(key.to_owned(), "true".to_owned())].into();
        let staged = bench.stage_with(ID, &mount("ext4"), context.clone(), volume).await;
        refused(staged, Code::FailedPrecondition, "disables formatting");
    }
    // No signature, but data.
    run(
        "dd",
        &["if=/dev/urandom", &format!("of={}", text(&device)), "bs=1M", "count=1", "seek=100", "conv=fsync"],
    );
    run("dd", &["if=/dev/urandom", &format!("of={}", text(&device)), "bs=4k", "count=1", "conv=fsync"]);
    refused(bench.stage(ID, &mount("ext4"), context).await, Code::FailedPrecondition, "not zero");
    assert_eq!(bench.record_count(), 0, "a failed stage must leave no record");
}

#[tokio::test]
async fn published_raw_volume_keeps_working() {
    let bench = Bench::new().await;
    create_existing_volume(&bench);
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
