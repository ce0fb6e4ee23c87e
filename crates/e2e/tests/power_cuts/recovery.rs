//! What must hold on the disk as it was at a cut of the power: a fresh driver starts on it, everything acknowledged is
//! there, nothing deleted is, interrupted calls can be repeated, and everything can be deleted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wharf_driver_local::{Pool, Severity};
use wharf_linux::{FsType, Linux};
use wharf_testkit::{DriverOptions, Orchestrator, TestPool, check_image, leftovers};

use crate::content;
use crate::model::{Bounds, Model, Phase, Volume};
use crate::workload::create;

/// A copy of the disk, and what the caller knew right before and right after it was taken.
pub(crate) struct Cut {
    pub(crate) disk: PathBuf,
    pub(crate) before: Model,
    pub(crate) after: Model,
}

impl Cut {
    /// Whether the object existed at the cut: created before it, and its deletion not started after it.
    fn existed(&self, name: &str) -> bool {
        self.before.phase_of(name) == Some(Phase::Live) && self.after.phase_of(name) == Some(Phase::Live)
    }

    /// The bounds of a value at the cut, from those right before and right after it.
    fn bounds(before: Bounds, after: Bounds) -> Bounds {
        Bounds { acknowledged: before.acknowledged, started: after.started }
    }

    pub(crate) async fn check(&self, pool_fs: FsType) {
        // The mount replays the log of the pool's file system.
        let (pool, work) = (TestPool::open(&self.disk, pool_fs), tempfile::tempdir().unwrap());
        let options = DriverOptions::default();
        let mut co = Orchestrator::start(Path::new(crate::DRIVER), pool.path(), work.path(), &options);
        self.check_objects(&mut co).await;
        assert_consistent(pool.path());
        // Before the checks, which change the contents of the sources.
        let mut volumes = Vec::new();
        for (name, volume) in &self.after.volumes {
            if let Some(id) = self.finish_create(&mut co, name, volume).await {
                volumes.push((name, volume, id));
            }
        }
        self.finish_snapshots(&mut co).await;
        for (name, volume, id) in volumes {
            self.check_volume(&mut co, pool.path(), name, volume, &id).await;
        }
        for id in co.listed().await.into_keys() {
            match id.starts_with("snap-") {
                true => co.delete_snapshot(&id).await,
                false => co.delete(&id).await,
            }
        }
        let until = Instant::now() + Duration::from_secs(20);
        while std::fs::read_dir(pool.path().join("trash")).unwrap().next().is_some() {
            assert!(Instant::now() < until, "the trash was not purged:\n{}", co.driver.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        co.driver.stop();
        let left = leftovers(pool.path(), work.path());
        assert!(left.is_empty(), "left over: {left:#?}");
    }

    /// What was acknowledged is listed, with its size; what was deleted is not.
    async fn check_objects(&self, co: &mut Orchestrator) {
        let listed = co.listed().await;
        for (name, volume) in &self.after.volumes {
            let size = volume.id.as_ref().and_then(|id| listed.get(id));
            if self.existed(name) {
                let size = *size.unwrap_or_else(|| panic!("{name} is lost:\n{}", co.driver.log()));
                let bounds = Self::bounds(self.before.volumes[name].size, volume.size);
                let holds = bounds.acknowledged <= size && size <= bounds.started;
                assert!(holds, "{name} has {size} bytes, not {bounds:?}");
            }
            if self.before.phase_of(name) == Some(Phase::Deleted) {
                assert_eq!(size, None, "{name} was deleted");
            }
        }
        for (name, snapshot) in &self.after.snapshots {
            let size = snapshot.id.as_ref().and_then(|id| listed.get(id));
            if self.existed(name) {
                assert!(size.is_some(), "{name} is lost:\n{}", co.driver.log());
            }
            if self.before.phase_of(name) == Some(Phase::Deleted) {
                assert_eq!(size, None, "{name} was deleted");
            }
        }
    }

    /// Repeats a CreateVolume that may have been interrupted. Returns the ID of a volume that must exist now.
    async fn finish_create(&self, co: &mut Orchestrator, name: &str, volume: &Volume) -> Option<String> {
        if self.existed(name) {
            return volume.id.clone();
        }
        let creating = matches!(volume.phase, Phase::Creating | Phase::Live);
        let source_exists = volume.from.as_ref().is_none_or(|from| self.existed(from));
        if !creating || !source_exists {
            return None;
        }
        let source = volume.from.as_ref().map(|from| self.after.id_of(from).unwrap());
        Some(create(co, name, volume, source.as_deref()).await)
    }

    /// Its file system is clean, and its content is that of the cut.
    async fn check_volume(&self, co: &mut Orchestrator, pool: &Path, name: &str, volume: &Volume, id: &str) {
        co.stage(id, volume.fs).await;
        let target = co.publish(id, volume.fs, "pod").await;
        let count = content::read(&target, volume.fs);
        let bounds = match self.before.volumes.get(name) {
            Some(before) => Self::bounds(before.content, volume.content),
            None => Bounds { acknowledged: self.content_of_source(volume), ..volume.content },
        };
        let holds = bounds.acknowledged <= count && count <= bounds.started;
        assert!(holds, "{name} contains {count}, not {bounds:?}:\n{}", co.driver.log());
        content::write(&target, volume.fs, count + 1);
        co.unpublish(id, "pod").await;
        co.unstage(id).await;
        if let Some(fs) =
            [FsType::Ext4, FsType::Xfs, FsType::Btrfs].into_iter().find(|fs| fs.as_str() == volume.fs)
        {
            check_image(fs, &pool.join("volumes").join(id).join("image"));
        }
    }

    /// The least content of a volume whose creation started after `before`.
    fn content_of_source(&self, volume: &Volume) -> u64 {
        let Some(from) = &volume.from else { return 0 };
        let of_volume = self.before.volumes.get(from).map(|volume| volume.content.acknowledged);
        let of_snapshot = self.before.snapshots.get(from).map(|snapshot| snapshot.content.acknowledged);
        of_volume.or(of_snapshot).unwrap_or(0)
    }

    /// Repeats each CreateSnapshot that may have been interrupted.
    async fn finish_snapshots(&self, co: &mut Orchestrator) {
        for (name, snapshot) in &self.after.snapshots {
            if snapshot.phase == Phase::Creating && self.existed(&snapshot.of) {
                co.snapshot(name, &self.after.id_of(&snapshot.of).unwrap()).await;
            }
        }
    }
}

fn assert_consistent(pool: &Path) {
    let inspection = Pool::open_read_only(Arc::new(Linux::new()), pool).unwrap();
    let findings: Vec<_> =
        inspection.check().into_iter().filter(|finding| finding.severity > Severity::Info).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}
