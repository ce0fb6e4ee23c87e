//! kill -9 after every effect. The seam is enumerated: the n-th run dies after its n-th effect, until a run
//! gets through alive. Each time the driver is started again, the orchestrator repeats the call that broke,
//! and goes on; in the end everything has worked and nothing is left over.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use wharf_csi::v1::*;
use wharf_linux::FsType;
use wharf_testkit::{DriverOptions, EFFECTS, MIB, Orchestrator, TestPool, leftovers};

const DRIVER: &str = env!("CARGO_BIN_EXE_test-driver");

/// What happens only on one kind of pool.
const ONLY_WITH_REFLINK: &[&str] = &["reflink", "freeze", "frozen_thaw"];
const ONLY_WITHOUT_REFLINK: &[&str] = &["copy_range"];

#[test]
fn dies_after_every_effect_on_a_pool_with_reflink() {
    let seen = enumerate(FsType::Xfs, |co| Box::pin(life_with_reflink(co)));
    assert_all_seen(&seen, ONLY_WITHOUT_REFLINK);
}

#[test]
fn dies_after_every_effect_on_a_pool_without_reflink() {
    let seen = enumerate(FsType::Ext4, |co| Box::pin(life_without_reflink(co)));
    assert_all_seen(&seen, ONLY_WITH_REFLINK);
}

type Life<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Lives the same life again and again, dying one effect later each time. Answers where it died.
fn enumerate(pool_fs: FsType, life: impl for<'a> Fn(&'a mut Orchestrator) -> Life<'a>) -> BTreeSet<String> {
    let pool = TestPool::new(pool_fs, 4 << 30);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut died_at = BTreeSet::new();
    for die_after in 0.. {
        let work = tempfile::tempdir().unwrap();
        let options = DriverOptions { die_after: Some(die_after), ..Default::default() };
        let (deaths, trace) = runtime.block_on(async {
            let mut co = Orchestrator::start(Path::new(DRIVER), pool.path(), work.path(), &options);
            life(&mut co).await;
            assert!(co.listed().await.is_empty(), "death after effect {die_after}: {:?}", co.listed().await);
            // Purging goes on in the background, and may be what it dies of.
            wait_for_purge(pool.path(), &mut co);
            if co.driver.died() {
                co.revive();
            }
            co.driver.stop();
            (co.deaths, co.driver.trace())
        });
        let left = leftovers(pool.path(), work.path());
        assert!(
            left.is_empty(),
            "death after effect {die_after} ({:?}) left {left:#?}",
            trace.get(die_after as usize)
        );
        if deaths == 0 {
            println!("{pool_fs} pool: {die_after} deaths, at {} kinds of effects", died_at.len());
            return died_at;
        }
        assert_eq!(deaths, 1);
        if die_after > 0 {
            died_at.insert(trace[die_after as usize - 1].clone());
        }
    }
    unreachable!("a life has an end")
}

/// Waits until the trash is empty, starting the driver again if it dies meanwhile.
fn wait_for_purge(pool: &Path, co: &mut Orchestrator) {
    let until = Instant::now() + Duration::from_secs(10);
    while fs::read_dir(pool.join("trash")).unwrap().next().is_some() {
        assert!(Instant::now() < until, "the trash is not purged:\n{}", co.driver.log());
        if co.driver.died() {
            co.revive();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A point that is never reached fails the test.
fn assert_all_seen(seen: &BTreeSet<String>, elsewhere: &[&str]) {
    let missed: Vec<_> =
        EFFECTS.iter().filter(|effect| !seen.contains(**effect) && !elsewhere.contains(effect)).collect();
    assert!(missed.is_empty(), "no death at {missed:?}");
}

async fn life_with_reflink(co: &mut Orchestrator) {
    // A file system, snapshot under a mount, restore into a larger volume beside its source.
    let (source, target) = co.mounted("source", 32 * MIB, "ext4", None).await;
    write(&target.join("file"), "precious");
    let snapshot = co.snapshot("snapshot", &source).await;
    let group = create_group(co, "group", &[&source]).await;
    let (restored, copy) = co.mounted("restored", 48 * MIB, "ext4", Some(&snapshot)).await;
    assert_eq!(fs::read_to_string(copy.join("file")).unwrap(), "precious");
    write(&copy.join("file"), "changed");
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "precious");
    co.removed(&restored).await;
    delete_group(co, &group).await;
    co.delete_snapshot(&snapshot).await;

    // Offline expansion.
    co.unpublish(&source, "pod").await;
    co.unstage(&source).await;
    co.expand(&source, 64 * MIB).await;
    co.stage(&source, "ext4").await;
    let target = co.publish(&source, "ext4", "pod").await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "precious");
    co.removed(&source).await;

    block_life(co).await;
}

async fn life_without_reflink(co: &mut Orchestrator) {
    let (source, target) = co.mounted("source", 16 * MIB, "ext4", None).await;
    write(&target.join("file"), "precious");
    co.unpublish(&source, "pod").await;
    co.unstage(&source).await;
    let snapshot = co.snapshot("snapshot", &source).await;
    let (restored, copy) = co.mounted("restored", 24 * MIB, "ext4", Some(&snapshot)).await;
    assert_eq!(fs::read_to_string(copy.join("file")).unwrap(), "precious");
    co.removed(&restored).await;
    let clone = co.create("clone", 16 * MIB, "ext4", Some(&source)).await;
    co.delete(&source).await;
    co.delete_snapshot(&snapshot).await;
    co.stage(&clone, "ext4").await;
    let target = co.publish(&clone, "ext4", "pod").await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "precious");
    co.removed(&clone).await;

    block_life(co).await;
}

/// A thick raw volume, grown while it is published.
async fn block_life(co: &mut Orchestrator) {
    let raw = co.create_with("raw", 8 * MIB, "", None, &[("type", "thick")]).await;
    co.stage(&raw, "").await;
    let device = co.publish(&raw, "", "pod").await;
    write_block(&device);
    co.expand(&raw, 16 * MIB).await;
    let request = co.node_expand_request(&raw, "", 16 * MIB);
    co.must("node expand", request, async |c, r| c.node().node_expand_volume(r).await).await;
    co.removed(&raw).await;
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

fn write_block(device: &Path) {
    use std::io::Write as _;
    let mut device = fs::File::options().write(true).open(device).unwrap();
    device.write_all(&[7; 4096]).unwrap();
    device.sync_all().unwrap();
}

async fn create_group(co: &mut Orchestrator, name: &str, sources: &[&str]) -> VolumeGroupSnapshot {
    let request = CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(|s| s.to_string()).collect(),
        ..Default::default()
    };
    let answer = co
        .must("create group", request, async |c, r| {
            c.group_controller().create_volume_group_snapshot(r).await
        })
        .await;
    answer.group_snapshot.unwrap()
}

async fn delete_group(co: &mut Orchestrator, group: &VolumeGroupSnapshot) {
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: group.snapshots.iter().map(|s| s.snapshot_id.clone()).collect(),
        ..Default::default()
    };
    co.must("delete group", request, async |c, r| c.group_controller().delete_volume_group_snapshot(r).await)
        .await;
}
