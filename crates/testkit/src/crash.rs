//! A kernel that crashes the process on demand: it forwards to the real one, but right after the n-th call that
//! changes something the process kills itself with SIGKILL, as a power cut or the OOM killer would.
//!
//! Only calls with an effect count. Between two of them a driver only reads, so "right after call n" stands for
//! every moment until call n + 1. n = 0 crashes right before the first effect.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use wharf_linux::{
    BlockDevices, Error, Extent, FileBeneath, FileId, FileStat, Files, Filesystems, Frozen, FsCheck, FsError,
    FsType, FsUsage, Kernel, LoopDevice, LoopOptions, MakeFsRequest, MountRequest, MountTable, Mounts,
    PathBeneath, PathKind, ProbeResult, Result,
};

/// Every kernel call that changes something. A crash test is complete only if the driver crashed at each of them.
pub const EFFECTS: &[&str] = &[
    "mount",
    "bind",
    "unmount",
    "create_target_dir",
    "create_target_file",
    "remove_target",
    "loop_attach",
    "loop_hold",
    "loop_reset",
    "loop_refresh",
    "loop_detach",
    "loop_disable_discard",
    "make_fs",
    "check_fs",
    "grow_fs",
    "set_fs_uuid",
    "freeze",
    "frozen_thaw",
    "write_file",
    "sync",
    "rename",
    "exchange",
    "create_reserved",
    "overwrite",
    "create_dir",
    "remove_file",
    "remove_dir",
    "set_size",
    "allocate",
    "can_reflink",
    "reflink",
    "copy_range",
];

/// The real kernel with a planned crash.
pub struct CrashKernel {
    inner: Arc<dyn Kernel>,
    trigger: Arc<CrashTrigger>,
    copy_pause: Duration,
}

/// Counts effects and crashes after the n-th.
struct CrashTrigger {
    count: AtomicU64,
    crash_after: Option<u64>,
    /// Receives the name of each effect, in order; the last one is where the process crashed.
    trace: Mutex<Box<dyn FnMut(&'static str) + Send>>,
    refuse: Box<Refuse>,
}

/// Which effects fail, and with which errno.
type Refuse = dyn Fn(&'static str) -> Option<i32> + Send + Sync;

impl CrashKernel {
    /// Crashes right after effect number `crash_after` (counted from 1; 0: before the first one). `trace` receives
    /// the name of each effect before it happens.
    pub fn new(
        inner: Arc<dyn Kernel>,
        crash_after: Option<u64>,
        trace: impl FnMut(&'static str) + Send + 'static,
    ) -> Self {
        let trace: Box<dyn FnMut(&'static str) + Send> = Box::new(trace);
        Self::of(
            inner,
            CrashTrigger {
                count: AtomicU64::new(0),
                crash_after,
                trace: trace.into(),
                refuse: Box::new(|_| None),
            },
        )
    }

    /// Never crashes, but fails each effect for which `refuse` returns an errno; the effect does not happen then.
    /// `refuse` runs before effects are serialized, so a slow `refuse` blocks no other effect.
    pub fn refusing(
        inner: Arc<dyn Kernel>,
        refuse: impl Fn(&'static str) -> Option<i32> + Send + Sync + 'static,
    ) -> Self {
        let trace: Box<dyn FnMut(&'static str) + Send> = Box::new(|_| ());
        let refuse = Box::new(refuse);
        Self::of(
            inner,
            CrashTrigger { count: AtomicU64::new(0), crash_after: None, trace: trace.into(), refuse },
        )
    }

    fn of(inner: Arc<dyn Kernel>, trigger: CrashTrigger) -> Self {
        Self { inner, trigger: Arc::new(trigger), copy_pause: Duration::ZERO }
    }

    /// Pauses before each piece of a copy, so that a test can interrupt it.
    pub fn with_copy_pause(self, copy_pause: Duration) -> Self {
        Self { copy_pause, ..self }
    }
}

impl CrashTrigger {
    fn run_effect<T, E: From<Error>>(
        &self,
        effect: &'static str,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        debug_assert!(EFFECTS.contains(&effect), "{effect} is not in the list of effects");
        if let Some(errno) = (self.refuse)(effect) {
            let refused = io::Error::from_raw_os_error(errno);
            return Err(Error::call(effect, Path::new("(refused by the test)"), refused).into());
        }
        if self.crash_after == Some(0) {
            crash();
        }
        // One effect at a time, so that the counted effect is the one that happened last.
        let mut trace = self.trace.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        trace(effect);
        let result = call();
        if Some(self.count.fetch_add(1, Ordering::SeqCst) + 1) == self.crash_after {
            crash();
        }
        result
    }
}

fn crash() -> ! {
    loop {
        // A failure would mean that the process is already gone.
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

impl Mounts for CrashKernel {
    fn mount_table(&self) -> Result<MountTable> {
        self.inner.mount_table()
    }
    fn mount(&self, request: &MountRequest<'_>) -> Result<()> {
        self.trigger.run_effect("mount", || self.inner.mount(request))
    }
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<()> {
        self.trigger.run_effect("bind", || self.inner.bind(source, target, read_only))
    }
    fn unmount(&self, target: &Path) -> Result<()> {
        self.trigger.run_effect("unmount", || self.inner.unmount(target))
    }
    fn path_kind(&self, path: &Path) -> Result<Option<PathKind>> {
        self.inner.path_kind(path)
    }
    fn create_target_dir(&self, path: &Path) -> Result<()> {
        self.trigger.run_effect("create_target_dir", || self.inner.create_target_dir(path))
    }
    fn create_target_file(&self, path: &Path) -> Result<()> {
        self.trigger.run_effect("create_target_file", || self.inner.create_target_file(path))
    }
    fn remove_target(&self, path: &Path) -> Result<()> {
        self.trigger.run_effect("remove_target", || self.inner.remove_target(path))
    }
}

impl BlockDevices for CrashKernel {
    fn loop_attach(&self, image: &PathBeneath<'_>, options: &LoopOptions) -> Result<LoopDevice> {
        self.trigger.run_effect("loop_attach", || self.inner.loop_attach(image, options))
    }
    fn loop_devices(&self) -> Result<Vec<LoopDevice>> {
        self.inner.loop_devices()
    }
    fn loop_refresh(&self, device: &Path) -> Result<()> {
        self.trigger.run_effect("loop_refresh", || self.inner.loop_refresh(device))
    }
    fn loop_hold(&self, device: &Path, label: &str) -> Result<LoopDevice> {
        self.trigger.run_effect("loop_hold", || self.inner.loop_hold(device, label))
    }
    fn loop_reset(&self, device: &Path, label: &str) -> Result<()> {
        self.trigger.run_effect("loop_reset", || self.inner.loop_reset(device, label))
    }
    fn loop_detach(&self, device: &Path, image: Option<FileId>) -> Result<()> {
        self.trigger.run_effect("loop_detach", || self.inner.loop_detach(device, image))
    }
    fn loop_disable_discard(&self, device: &Path) -> Result<()> {
        self.trigger.run_effect("loop_disable_discard", || self.inner.loop_disable_discard(device))
    }
    fn device_size(&self, device: &Path) -> Result<u64> {
        self.inner.device_size(device)
    }
    fn device_number(&self, device: &Path) -> Result<(u32, u32)> {
        self.inner.device_number(device)
    }
    fn read_device(&self, device: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.inner.read_device(device, offset, buffer)
    }
}

impl Filesystems for CrashKernel {
    fn probe(&self, device: &Path) -> Result<ProbeResult> {
        self.inner.probe(device)
    }
    fn make_fs(&self, device: &Path, request: &MakeFsRequest<'_>) -> Result<()> {
        self.trigger.run_effect("make_fs", || self.inner.make_fs(device, request))
    }
    fn check_fs(&self, device: &Path, fs: FsType, check: FsCheck) -> std::result::Result<(), FsError> {
        self.trigger.run_effect("check_fs", || self.inner.check_fs(device, fs, check))
    }
    fn grow_fs(&self, device: &Path, fs: FsType, mounted_at: Option<&Path>) -> Result<()> {
        self.trigger.run_effect("grow_fs", || self.inner.grow_fs(device, fs, mounted_at))
    }
    fn can_grow_online(&self, fs: FsType) -> std::result::Result<(), String> {
        self.inner.can_grow_online(fs)
    }
    fn set_fs_uuid(&self, device: &Path, fs: FsType, uuid: &str, scratch: &Path) -> Result<()> {
        self.trigger.run_effect("set_fs_uuid", || self.inner.set_fs_uuid(device, fs, uuid, scratch))
    }
    fn usage(&self, path: &Path) -> Result<FsUsage> {
        self.inner.usage(path)
    }
    fn file_beneath(&self, path: &Path) -> Result<Option<FileBeneath>> {
        self.inner.file_beneath(path)
    }
    fn fs_error_count(&self, device: &Path, fs: FsType, mounted_at: &Path) -> Result<u64> {
        self.inner.fs_error_count(device, fs, mounted_at)
    }
    fn freeze(&self, mount_points: &[&Path], at_most: Duration) -> Result<Box<dyn Frozen>> {
        let frozen = self.trigger.run_effect("freeze", || self.inner.freeze(mount_points, at_most))?;
        Ok(Box::new(CrashFrozen { inner: frozen, trigger: self.trigger.clone() }))
    }
    fn thaw(&self, mount_point: &Path) -> Result<()> {
        // Only recovery after a crash calls this, so it is not counted.
        self.inner.thaw(mount_point)
    }
}

struct CrashFrozen {
    inner: Box<dyn Frozen>,
    trigger: Arc<CrashTrigger>,
}

impl Frozen for CrashFrozen {
    fn thaw(self: Box<Self>) -> Result<()> {
        let Self { inner, trigger } = *self;
        trigger.run_effect("frozen_thaw", || inner.thaw())
    }
}

impl Files for CrashKernel {
    fn read_file(&self, file: &PathBeneath<'_>) -> Result<Option<Vec<u8>>> {
        self.inner.read_file(file)
    }
    fn write_file(&self, file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()> {
        self.trigger.run_effect("write_file", || self.inner.write_file(file, bytes))
    }
    fn sync(&self, path: &PathBeneath<'_>) -> Result<()> {
        self.trigger.run_effect("sync", || self.inner.sync(path))
    }
    fn rename(&self, from: &PathBeneath<'_>, to: &PathBeneath<'_>) -> Result<()> {
        self.trigger.run_effect("rename", || self.inner.rename(from, to))
    }
    fn exchange(&self, one: &PathBeneath<'_>, other: &PathBeneath<'_>) -> Result<()> {
        self.trigger.run_effect("exchange", || self.inner.exchange(one, other))
    }
    fn create_reserved(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()> {
        self.trigger.run_effect("create_reserved", || self.inner.create_reserved(file, bytes))
    }
    fn overwrite(&self, file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()> {
        self.trigger.run_effect("overwrite", || self.inner.overwrite(file, bytes))
    }
    fn create_dir(&self, dir: &PathBeneath<'_>) -> Result<()> {
        self.trigger.run_effect("create_dir", || self.inner.create_dir(dir))
    }
    fn list_dir(&self, dir: &PathBeneath<'_>) -> Result<Vec<String>> {
        self.inner.list_dir(dir)
    }
    fn remove_file(&self, file: &PathBeneath<'_>) -> Result<()> {
        self.trigger.run_effect("remove_file", || self.inner.remove_file(file))
    }
    fn remove_dir(&self, dir: &PathBeneath<'_>) -> Result<()> {
        self.trigger.run_effect("remove_dir", || self.inner.remove_dir(dir))
    }
    fn stat(&self, file: &PathBeneath<'_>) -> Result<Option<FileStat>> {
        self.inner.stat(file)
    }
    fn set_size(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()> {
        self.trigger.run_effect("set_size", || self.inner.set_size(file, bytes))
    }
    fn allocate(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()> {
        self.trigger.run_effect("allocate", || self.inner.allocate(file, bytes))
    }
    fn can_reflink(&self, root: &Path) -> Result<bool> {
        self.trigger.run_effect("can_reflink", || self.inner.can_reflink(root))
    }
    fn reflink(&self, from: &PathBeneath<'_>, to: &PathBeneath<'_>) -> Result<()> {
        self.trigger.run_effect("reflink", || self.inner.reflink(from, to))
    }
    fn copy_range(
        &self,
        from: &PathBeneath<'_>,
        to: &PathBeneath<'_>,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        std::thread::sleep(self.copy_pause);
        self.trigger.run_effect("copy_range", || self.inner.copy_range(from, to, offset, length))
    }
    fn extents(&self, file: &PathBeneath<'_>) -> Result<Vec<Extent>> {
        self.inner.extents(file)
    }
    fn try_lock(&self, file: &PathBeneath<'_>) -> Result<Option<Box<dyn Send + Sync>>> {
        self.inner.try_lock(file)
    }
}
