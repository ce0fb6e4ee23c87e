//! A long random workload: volumes, snapshots, clones and expansions in any order, with drivers that crash at any
//! effect, compared with a model of every file's content. `SOAK_SECONDS` (600) sets the duration, `SOAK_SEED`
//! repeats a run. `make test-all` runs it; the crash tests are its short and exhaustive counterpart.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use wharf_linux::FsType;
use wharf_testkit::{DriverOptions, MIB, Orchestrator, SeededRng, TestPool, leftovers, loop_devices_on};

const DRIVER: &str = env!("CARGO_BIN_EXE_test-driver");
const MOST_VOLUMES: usize = 6;
const MOST_SNAPSHOTS: usize = 6;

/// The expected state of a volume.
#[derive(Clone)]
struct Volume {
    fs: FsType,
    size: u64,
    mounted: bool,
    /// The content of its single file; `None` if there is none.
    content: Option<String>,
}

/// The expected content of a snapshot.
#[derive(Clone)]
struct Snapshot {
    volume: Volume,
}

struct Soak {
    co: Orchestrator,
    rng: SeededRng,
    names: u64,
    volumes: BTreeMap<String, Volume>,
    snapshots: BTreeMap<String, Snapshot>,
    done: BTreeMap<&'static str, u64>,
}

#[tokio::test]
#[ignore = "takes minutes: make test-all"]
async fn soak_on_a_pool_with_reflink() {
    soak(FsType::Xfs).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-all"]
async fn soak_on_a_pool_without_reflink() {
    soak(FsType::Ext4).await;
}

async fn soak(pool_fs: FsType) {
    let seconds = std::env::var("SOAK_SECONDS").map_or(600, |text| text.parse().unwrap());
    let rng = SeededRng::from_env("SOAK_SEED");
    let (pool, work) = (TestPool::new(pool_fs, 16 << 30), tempfile::tempdir().unwrap());
    let co = Orchestrator::start(Path::new(DRIVER), pool.path(), work.path(), &DriverOptions::default());
    let mut soak = Soak {
        co,
        rng,
        names: 0,
        volumes: BTreeMap::new(),
        snapshots: BTreeMap::new(),
        done: BTreeMap::new(),
    };
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        soak.step(pool_fs).await;
    }
    let crashes = soak.co.crashes;
    println!("{pool_fs} pool: {:?}, {crashes} crashes", soak.done);
    soak.clean_up().await;
    while fs::read_dir(pool.path().join("trash")).unwrap().next().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    soak.co.driver.stop();
    assert_eq!(leftovers(pool.path(), work.path()), Vec::<String>::new());
    assert_eq!(loop_devices_on(pool.path()), Vec::<String>::new());
}

impl Soak {
    /// One random action; actions that do not apply are skipped.
    async fn step(&mut self, pool_fs: FsType) {
        let what = match self.rng.below(10) {
            0 | 1 if self.volumes.len() < MOST_VOLUMES => self.create().await,
            2 if self.snapshots.len() < MOST_SNAPSHOTS => self.snapshot(pool_fs).await,
            3 | 4 => self.mount().await,
            5 => self.unmount().await,
            6 => self.write(),
            7 => self.expand().await,
            8 => match self.rng.below(2) {
                0 => self.delete_volume().await,
                _ => self.delete_snapshot().await,
            },
            _ => self.kill(),
        };
        if let Some(what) = what {
            *self.done.entry(what).or_default() += 1;
        }
    }

    async fn create(&mut self) -> Option<&'static str> {
        self.names += 1;
        let name = format!("volume-{}", self.names);
        let from = match self.rng.below(3) {
            0 => None,
            1 => self.rng.pick(&self.snapshots).map(|(id, snapshot)| (id, snapshot.volume)),
            // A pool without reflink copies only unused volumes.
            _ => self.rng.pick(&self.volumes).filter(|(_, volume)| !volume.mounted),
        };
        let fs = [FsType::Ext4, FsType::Xfs, FsType::Btrfs][self.rng.below(3)];
        let fresh = Volume { fs, size: fs.minimum_size().max(16 * MIB), mounted: false, content: None };
        let (source, volume) = match from {
            Some((id, volume)) => (Some(id), Volume { mounted: false, ..volume }),
            None => (None, fresh),
        };
        let id = self.co.create(&name, volume.size, volume.fs.as_str(), source.as_deref()).await;
        self.volumes.insert(id, volume);
        Some(if source.is_some() { "copied" } else { "created" })
    }

    async fn snapshot(&mut self, pool_fs: FsType) -> Option<&'static str> {
        let (id, volume) = self.rng.pick(&self.volumes)?;
        if volume.mounted && pool_fs == FsType::Ext4 {
            return None;
        }
        self.names += 1;
        let snapshot = self.co.snapshot(&format!("snapshot-{}", self.names), &id).await;
        self.snapshots.insert(snapshot, Snapshot { volume });
        Some("snapshotted")
    }

    async fn mount(&mut self) -> Option<&'static str> {
        let (id, mut volume) = self.rng.pick(&self.volumes)?;
        self.co.stage(&id, volume.fs.as_str()).await;
        let at = self.co.publish(&id, volume.fs.as_str(), "pod").await;
        let found = fs::read_to_string(at.join("file")).ok();
        assert_eq!(found, volume.content, "{id}\n{}", self.co.driver.log());
        volume.mounted = true;
        self.volumes.insert(id, volume);
        Some("mounted")
    }

    async fn unmount(&mut self) -> Option<&'static str> {
        let (id, mut volume) = self.rng.pick(&self.volumes)?;
        self.co.unpublish(&id, "pod").await;
        self.co.unstage(&id).await;
        volume.mounted = false;
        self.volumes.insert(id, volume);
        Some("unmounted")
    }

    fn write(&mut self) -> Option<&'static str> {
        let (id, mut volume) = self.rng.pick(&self.volumes).filter(|(_, volume)| volume.mounted)?;
        let content = format!("{}-", self.rng.below(1 << 40)).repeat(1 + self.rng.below(5000));
        let path = self.co.target_path(&id, "pod").join("file");
        fs::write(&path, &content).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        volume.content = Some(content);
        self.volumes.insert(id, volume);
        Some("written")
    }

    async fn expand(&mut self) -> Option<&'static str> {
        let (id, mut volume) = self.rng.pick(&self.volumes)?;
        // At most four times the initial size, so that the pool is never overcommitted.
        if volume.size >= volume.fs.minimum_size().max(16 * MIB) * 4 {
            return None;
        }
        volume.size = (volume.size * 2).max(volume.fs.minimum_grown_size());
        self.co.expand(&id, volume.size).await;
        self.volumes.insert(id, volume);
        Some("expanded")
    }

    async fn delete_volume(&mut self) -> Option<&'static str> {
        let (id, _) = self.rng.pick(&self.volumes)?;
        self.co.unpublish(&id, "pod").await;
        self.co.unstage(&id).await;
        self.co.delete(&id).await;
        self.volumes.remove(&id);
        Some("deleted")
    }

    async fn delete_snapshot(&mut self) -> Option<&'static str> {
        let (id, _) = self.rng.pick(&self.snapshots)?;
        self.co.delete_snapshot(&id).await;
        self.snapshots.remove(&id);
        Some("snapshots deleted")
    }

    /// Kills the driver with SIGKILL; the next driver crashes too, some effects later.
    fn kill(&mut self) -> Option<&'static str> {
        self.co.driver.kill();
        self.co.crashes += 1;
        let crash_after = Some(1 + self.rng.below(60) as u64);
        self.co.driver.restart(&DriverOptions { crash_after, ..self.co.restart_with.clone() });
        Some("killed")
    }

    async fn clean_up(&mut self) {
        for id in std::mem::take(&mut self.volumes).into_keys() {
            self.co.unpublish(&id, "pod").await;
            self.co.unstage(&id).await;
            self.co.delete(&id).await;
        }
        for id in std::mem::take(&mut self.snapshots).into_keys() {
            self.co.delete_snapshot(&id).await;
        }
        assert!(self.co.listed().await.is_empty());
    }
}
