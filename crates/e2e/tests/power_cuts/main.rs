//! Power cuts: while a driver works, the disk beneath its pool is copied at random instants. A copy has what a disk has
//! after a cut of the power: everything that was written to it, and nothing that is only in the page cache. A fresh
//! driver must recover on each copy. `CUT_SEED` repeats a run.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod content;
mod model;
mod recovery;
mod workload;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use recovery::Cut;
use wharf_linux::{Files as _, FsType, Linux, PathBeneath};
use wharf_testkit::{SeededRng, TestPool};
use workload::Workload;

const DRIVER: &str = env!("CARGO_BIN_EXE_test-driver");
const MOST_STEPS_BETWEEN_CUTS: usize = 4;

#[test]
fn pool_on_xfs_recovers_from_power_cuts() {
    cut_power(FsType::Xfs, 25);
}

#[test]
fn pool_on_btrfs_recovers_from_power_cuts() {
    cut_power(FsType::Btrfs, 15);
}

#[test]
fn pool_on_ext4_recovers_from_power_cuts() {
    cut_power(FsType::Ext4, 10);
}

#[test]
#[ignore = "takes minutes: make test-all"]
fn pools_recover_from_500_power_cuts() {
    cut_power(FsType::Xfs, 250);
    cut_power(FsType::Btrfs, 150);
    cut_power(FsType::Ext4, 100);
}

/// Cuts the power `cuts` times during one random workload, and checks each copy afterwards: a copy has the UUID of the
/// original, so the two cannot be mounted together.
fn cut_power(pool_fs: FsType, cuts: usize) {
    let mut rng = SeededRng::from_env("CUT_SEED");
    let disks = TestPool::new(FsType::Xfs, 64 << 30);
    let taken = work_and_cut(&disks, pool_fs, cuts, &mut rng);
    let mut failed = 0;
    for cut in &taken {
        let checked = std::panic::catch_unwind(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(cut.check(pool_fs));
        });
        // The panic has printed the reason.
        failed += usize::from(checked.is_err());
        std::fs::remove_file(&cut.disk).unwrap();
    }
    assert_eq!(failed, 0, "cuts of {} on {pool_fs} that were not recovered from", taken.len());
}

fn work_and_cut(disks: &TestPool, pool_fs: FsType, cuts: usize, rng: &mut SeededRng) -> Vec<Cut> {
    let pool = TestPool::create_in(&disks.path().join("disk"), pool_fs, 4 << 30);
    let (model, stop, steps) = (Arc::new(Mutex::default()), AtomicBool::new(false), AtomicUsize::new(0));
    let reflink = pool_fs != FsType::Ext4;
    let work_seed = SeededRng::new(rng.below(usize::MAX) as u64);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let work = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let workload =
                    Workload::start(pool.path(), work.path(), reflink, work_seed, Arc::clone(&model));
                workload.run(&stop, &steps).await;
            });
        });
        let mut taken = Vec::new();
        while taken.len() < cuts && !working.is_finished() {
            wait_for_instant(&steps, rng, || working.is_finished());
            let name = format!("cut-{}", taken.len());
            let before = model.lock().unwrap().clone();
            let disk = |name| PathBeneath::new(disks.path(), Path::new(name));
            Linux::new().reflink(&disk("disk"), &disk(&name)).unwrap();
            let after = model.lock().unwrap().clone();
            taken.push(Cut { disk: disks.path().join(name), before, after });
        }
        stop.store(true, Ordering::Relaxed);
        working.join().unwrap();
        println!("{pool_fs}: {} cuts during {} steps", taken.len(), steps.load(Ordering::Relaxed));
        taken
    })
}

/// Waits until a random number of steps has ended, and then for a random part of a step.
fn wait_for_instant(steps: &AtomicUsize, rng: &mut SeededRng, ended: impl Fn() -> bool) {
    let started = Instant::now();
    let first = steps.load(Ordering::Relaxed);
    let wanted = 1 + rng.below(MOST_STEPS_BETWEEN_CUTS);
    while steps.load(Ordering::Relaxed) < first + wanted && !ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let step = started.elapsed() / wanted as u32;
    std::thread::sleep(step * rng.below(100) as u32 / 100);
}
