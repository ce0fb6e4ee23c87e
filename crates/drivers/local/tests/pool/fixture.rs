//! A pool on a temporary file system, with helpers for the tests.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wharf_driver::backend::{
    AccessMode, Capability, NewGroupSnapshot, NewSnapshot, NewVolume, SizeRange, Snapshot, Volume,
    VolumeContentSource,
};
use wharf_driver_local::{Config, Pool};
use wharf_linux::{FsType, Kernel, Linux};
use wharf_testkit::{CrashKernel, TestPool, loop_devices_on};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Runs a test on each file system that a pool can be on.
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        mod xfs { $(#[test] fn $name() { super::$name(wharf_linux::FsType::Xfs) })* }
        mod btrfs { $(#[test] fn $name() { super::$name(wharf_linux::FsType::Btrfs) })* }
        mod ext4 { $(#[test] fn $name() { super::$name(wharf_linux::FsType::Ext4) })* }
    };
}

/// Runs a test on each file system with reflinks.
macro_rules! on_reflink {
    ($($name:ident),* $(,)?) => {
        mod reflink_xfs { $(#[test] fn $name() { super::$name(wharf_linux::FsType::Xfs) })* }
        mod reflink_btrfs { $(#[test] fn $name() { super::$name(wharf_linux::FsType::Btrfs) })* }
    };
}

pub(crate) use {on_each, on_reflink};

/// An open pool.
pub(crate) struct Fixture {
    /// Declared before the disk, so that it is dropped first.
    pool: Option<Pool>,
    pub(crate) config: Config,
    pub(crate) disk: TestPool,
}

impl std::ops::Deref for Fixture {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }
}

impl Fixture {
    pub(crate) fn new(fs: FsType) -> Self {
        Self::with(fs, 4 * GIB, |_| ())
    }

    pub(crate) fn with(fs: FsType, size: u64, change: impl FnOnce(&mut Config)) -> Self {
        let disk = TestPool::new(fs, size);
        let mut config = Config { create_pool: true, ..Config::new("n1", disk.path()) };
        change(&mut config);
        let pool = Some(Pool::open(Arc::new(Linux::new()), config.clone()).unwrap());
        Self { pool, config, disk }
    }

    pub(crate) fn close(&mut self) {
        self.pool = None;
    }

    pub(crate) fn reopen(&mut self) {
        self.reopen_with(Arc::new(Linux::new()));
    }

    pub(crate) fn reopen_with(&mut self, kernel: Arc<dyn Kernel>) {
        self.close();
        self.pool = Some(Pool::open(kernel, self.config.clone()).unwrap());
    }

    pub(crate) fn path(&self, beneath: &str) -> PathBuf {
        self.disk.path().join(beneath)
    }

    pub(crate) fn image(&self, id: &str) -> PathBuf {
        let collection = if id.starts_with("snap-") { "snapshots" } else { "volumes" };
        self.path(&format!("{collection}/{id}/image"))
    }

    pub(crate) fn record(&self, id: &str) -> PathBuf {
        self.image(id).with_file_name("record.json")
    }

    pub(crate) fn volume(&self, name: &str, size: u64) -> Volume {
        self.create(&wanted(name, size)).unwrap()
    }

    pub(crate) fn raw_volume(&self, name: &str, size: u64) -> Volume {
        self.create(&wanted(name, size).capabilities(vec![block()])).unwrap()
    }

    pub(crate) fn take_snapshot(&self, name: &str, source: &str) -> Snapshot {
        self.create_snapshot(&snapshot(name, source)).unwrap()
    }

    /// Writes through the volume's device, as a pod would.
    pub(crate) fn write(&self, id: &str, offset: u64, bytes: &[u8]) {
        let device = self.attach(id, &block()).unwrap();
        let file = File::options().write(true).open(&device.path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        file.sync_all().unwrap();
        drop(file);
        self.detach(id).unwrap();
    }

    /// Fills the pool's file system to the last block; returns the file that does it.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.path("volumes/ballast");
        let file = File::create(&path).unwrap();
        let (mut at, mut step) = (0, 16 * MIB);
        while step >= 512 {
            match file.write_at(&vec![1; step as usize], at).and_then(|n| file.sync_all().map(|()| n)) {
                Ok(n) if n > 0 => at += n as u64,
                _ => step /= 2,
            }
        }
        path
    }

    pub(crate) fn read(&self, id: &str, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        File::open(self.image(id)).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    /// Waits until the trash is empty.
    pub(crate) fn wait_for_purge(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while fs::read_dir(self.path("trash")).unwrap().next().is_some() {
            assert!(Instant::now() < until, "the trash was not emptied");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asserts that nothing but the empty pool is left.
    pub(crate) fn assert_empty(&self) {
        self.wait_for_purge();
        for dir in ["volumes", "snapshots", "groups", "trash"] {
            let names: Vec<_> =
                fs::read_dir(self.path(dir)).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert!(names.is_empty(), "{dir}: {names:?}");
        }
        let unfinished: Vec<_> = fs::read_dir(self.disk.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".tmp") || name == "freeze.json")
            .collect();
        assert!(unfinished.is_empty(), "{unfinished:?}");
        assert_eq!(loop_devices_on(self.disk.path()), Vec::<String>::new());
    }
}

/// A kernel that calls `observe` before each effect.
pub(crate) fn observing(observe: impl FnMut(&'static str) + Send + 'static) -> Arc<dyn Kernel> {
    Arc::new(CrashKernel::new(Arc::new(Linux::new()), None, observe))
}

/// A kernel whose effects fail with the errno that `refuse` returns.
pub(crate) fn refusing(
    refuse: impl Fn(&'static str) -> Option<i32> + Send + Sync + 'static,
) -> Arc<dyn Kernel> {
    Arc::new(CrashKernel::refusing(Arc::new(Linux::new()), refuse))
}

pub(crate) const EIO: i32 = 5;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;

/// A kernel with slow copies.
pub(crate) fn slow_copies() -> Arc<dyn Kernel> {
    observing(|effect| {
        if effect == "copy_range" {
            std::thread::sleep(Duration::from_millis(900));
        }
    })
}

pub(crate) fn mount(fs_type: &str) -> Capability {
    Capability::mount(fs_type, AccessMode::SingleNodeWriter)
}

pub(crate) fn block() -> Capability {
    Capability::block(AccessMode::SingleNodeWriter)
}

pub(crate) fn wanted(name: &str, size: u64) -> NewVolume {
    NewVolume::new(name, vec![mount("")]).size(SizeRange { required: size, limit: None })
}

/// Like [`wanted`], for a raw device filled from `id`.
pub(crate) fn copy_of(name: &str, size: u64, id: &str) -> NewVolume {
    let source = match id.starts_with("snap-") {
        true => VolumeContentSource::Snapshot(id.to_owned()),
        false => VolumeContentSource::Volume(id.to_owned()),
    };
    wanted(name, size).source(source).capabilities(vec![block()])
}

pub(crate) fn snapshot(name: &str, source: &str) -> NewSnapshot {
    NewSnapshot::new(name, source)
}

pub(crate) fn group(name: &str, sources: &[&str]) -> NewGroupSnapshot {
    let mut sources: Vec<String> = sources.iter().map(|source| source.to_string()).collect();
    sources.sort();
    NewGroupSnapshot::new(name, sources)
}

pub(crate) fn run(program: &str, args: &[&Path]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A mount that is unmounted on drop.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Mounted {
    pub(crate) fn new(device: &Path, at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        run("mount", &[device, at]);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
