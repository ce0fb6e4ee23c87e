//! kill -9 after every effect: the n-th run crashes after its n-th effect, until a run completes without a crash.
//! After each crash the driver is restarted and the orchestrator retries the interrupted call. In the end every
//! call has succeeded and nothing is left over.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use wharf_csi::v1::*;
use wharf_linux::FsType;
use wharf_testkit::{DriverOptions, EFFECTS, MIB, Orchestrator, TestPool, leftovers};

const DRIVER: &str = env!("CARGO_BIN_EXE_test-driver");

/// Effects that occur only on one kind of pool.
const ONLY_WITH_REFLINK: &[&str] = &["reflink", "freeze", "frozen_thaw"];
const ONLY_WITHOUT_REFLINK: &[&str] = &["copy_range"];

#[test]
fn crash_after_every_effect_recovers_with_reflink() {
    let reached = enumerate(FsType::Xfs, |co| Box::pin(workload_with_reflink(co)));
    assert_all_reached(&reached, ONLY_WITHOUT_REFLINK);
}

#[test]
fn crash_after_every_effect_recovers_without_reflink() {
    let reached = enumerate(FsType::Ext4, |co| Box::pin(workload_without_reflink(co)));
    assert_all_reached(&reached, ONLY_WITH_REFLINK);
}

type Workload<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// How many workloads run at the same time, each on a pool of its own: most of their time they wait for the disk.
const LANES: usize = 3;

/// Repeats the same workload and crashes one effect later each time. Returns the effects at which it crashed.
fn enumerate(
    pool_fs: FsType,
    workload: impl for<'a> Fn(&'a mut Orchestrator) -> Workload<'a> + Sync,
) -> BTreeSet<String> {
    let workload = &workload;
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|first| scope.spawn(move || crash_at_every_nth(pool_fs, first, LANES, workload)))
            .collect();
        // `join` fails with the panic of the lane, which fails the test.
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    })
}

/// Crashes after the effects `first`, `first + step`, and so on.
fn crash_at_every_nth(
    pool_fs: FsType,
    first: usize,
    step: usize,
    workload: &impl for<'a> Fn(&'a mut Orchestrator) -> Workload<'a>,
) -> BTreeSet<String> {
    let pool = TestPool::new(pool_fs, 4 << 30);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut died_at = BTreeSet::new();
    for crash_after in (first as u64..).step_by(step) {
        let work = tempfile::tempdir().unwrap();
        let options = DriverOptions { crash_after: Some(crash_after), ..Default::default() };
        let (crashes, trace) = runtime.block_on(async {
            let mut co = Orchestrator::start(Path::new(DRIVER), pool.path(), work.path(), &options);
            workload(&mut co).await;
            assert!(
                co.listed().await.is_empty(),
                "crash after effect {crash_after}: {:?}",
                co.listed().await
            );
            // Purging continues in the background and may trigger the crash.
            wait_for_purge(pool.path(), &mut co);
            if co.driver.has_exited() {
                co.restart_driver();
            }
            co.driver.stop();
            (co.crashes, co.driver.trace())
        });
        let left = leftovers(pool.path(), work.path());
        assert!(
            left.is_empty(),
            "crash after effect {crash_after} ({:?}) left {left:#?}",
            trace.get(crash_after as usize)
        );
        if crashes == 0 {
            println!("{pool_fs} pool: {crash_after} crashes at {} kinds of effects", died_at.len());
            return died_at;
        }
        assert_eq!(crashes, 1);
        if crash_after > 0 {
            died_at.insert(trace[crash_after as usize - 1].clone());
        }
    }
    unreachable!("the workload completes")
}

/// Waits until the trash is empty; restarts the driver if it crashes meanwhile.
fn wait_for_purge(pool: &Path, co: &mut Orchestrator) {
    let until = Instant::now() + Duration::from_secs(10);
    while fs::read_dir(pool.join("trash")).unwrap().next().is_some() {
        assert!(Instant::now() < until, "the trash was not purged:\n{}", co.driver.log());
        if co.driver.has_exited() {
            co.restart_driver();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An effect at which the driver never crashed fails the test.
fn assert_all_reached(reached: &BTreeSet<String>, elsewhere: &[&str]) {
    let missed: Vec<_> =
        EFFECTS.iter().filter(|effect| !reached.contains(**effect) && !elsewhere.contains(effect)).collect();
    assert!(missed.is_empty(), "no crash at {missed:?}");
}

async fn workload_with_reflink(co: &mut Orchestrator) {
    // A file system volume, a snapshot while it is mounted, and a restore into a larger volume that is mounted at
    // the same time.
    let (source, target) = co.create_and_mount("source", 32 * MIB, "ext4", None).await;
    write(&target.join("file"), "precious");
    let snapshot = co.snapshot("snapshot", &source).await;
    let group = create_group(co, "group", &[&source]).await;
    let (restored, copy) = co.create_and_mount("restored", 48 * MIB, "ext4", Some(&snapshot)).await;
    assert_eq!(fs::read_to_string(copy.join("file")).unwrap(), "precious");
    write(&copy.join("file"), "changed");
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "precious");
    co.unmount_and_delete(&restored).await;
    delete_group(co, &group).await;
    co.delete_snapshot(&snapshot).await;

    // Offline expansion.
    co.unpublish(&source, "pod").await;
    co.unstage(&source).await;
    co.expand(&source, 64 * MIB).await;
    co.stage(&source, "ext4").await;
    let target = co.publish(&source, "ext4", "pod").await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "precious");
    co.unmount_and_delete(&source).await;

    block_workload(co).await;
}

async fn workload_without_reflink(co: &mut Orchestrator) {
    let (source, target) = co.create_and_mount("source", 16 * MIB, "ext4", None).await;
    write(&target.join("file"), "precious");
    co.unpublish(&source, "pod").await;
    co.unstage(&source).await;
    let snapshot = co.snapshot("snapshot", &source).await;
    let (restored, copy) = co.create_and_mount("restored", 24 * MIB, "ext4", Some(&snapshot)).await;
    assert_eq!(fs::read_to_string(copy.join("file")).unwrap(), "precious");
    co.unmount_and_delete(&restored).await;
    let clone = co.create("clone", 16 * MIB, "ext4", Some(&source)).await;
    co.delete(&source).await;
    co.delete_snapshot(&snapshot).await;
    co.stage(&clone, "ext4").await;
    let target = co.publish(&clone, "ext4", "pod").await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "precious");
    co.unmount_and_delete(&clone).await;

    block_workload(co).await;
}

/// A thick raw block volume, expanded while it is published.
async fn block_workload(co: &mut Orchestrator) {
    let raw = co.create_with("raw", 8 * MIB, "", None, &[("type", "thick")]).await;
    co.stage(&raw, "").await;
    let device = co.publish(&raw, "", "pod").await;
    write_block(&device);
    // The pod detaches its device, which only marks it; a second pod reads through a device of its own.
    let status = std::process::Command::new("losetup").arg("--detach").arg(&device).status().unwrap();
    assert!(status.success());
    let reader = co.publish_as(&raw, "", "other", true).await;
    assert_eq!(fs::read(&reader).unwrap()[..4096], [7; 4096]);
    let written = fs::File::options().write(true).open(&reader).and_then(|mut file| {
        use std::io::Write as _;
        file.write_all(&[1; 4096]).and_then(|()| file.sync_all())
    });
    assert!(written.is_err(), "the reader's device is read-only");
    co.unpublish(&raw, "other").await;
    co.expand(&raw, 16 * MIB).await;
    let request = co.node_expand_request(&raw, "", 16 * MIB);
    co.retry_until_ok("node expand", request, async |c, r| c.node().node_expand_volume(r).await).await;
    co.unmount_and_delete(&raw).await;
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
    let response = co
        .retry_until_ok("create group", request, async |c, r| {
            c.group_controller().create_volume_group_snapshot(r).await
        })
        .await;
    response.group_snapshot.unwrap()
}

async fn delete_group(co: &mut Orchestrator, group: &VolumeGroupSnapshot) {
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: group.snapshots.iter().map(|s| s.snapshot_id.clone()).collect(),
        ..Default::default()
    };
    co.retry_until_ok("delete group", request, async |c, r| {
        c.group_controller().delete_volume_group_snapshot(r).await
    })
    .await;
}
