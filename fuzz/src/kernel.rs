//! A kernel that has a mount table and directories in memory, and nothing else: no call reaches the machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use wharf_linux::*;

#[derive(Default)]
struct State {
    /// Lines of the mount table with their mount points.
    mounts: Vec<(PathBuf, String)>,
    targets: Vec<(PathBuf, PathKind)>,
}

/// The kernel.
#[derive(Default)]
pub struct Memory(Mutex<State>);

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic is survived")
    }

    fn add(&self, target: &Path, source: &str, fs_type: &str, read_only: bool) -> Result<()> {
        let mode = if read_only { "ro" } else { "rw" };
        let (at, source) = (escaped(&target.to_string_lossy()), escaped(source));
        let line = format!("1 0 0:7 / {at} {mode} - {} {source} {mode}\n", escaped(fs_type));
        self.state().mounts.push((target.to_owned(), line));
        Ok(())
    }

    fn create(&self, path: &Path, kind: PathKind) -> Result<()> {
        let mut state = self.state();
        state.targets.retain(|(target, _)| target != path);
        state.targets.push((path.to_owned(), kind));
        Ok(())
    }
}

/// As the kernel writes it in the mount table. An empty field is written as `none`.
pub fn escaped(text: &str) -> String {
    let field: String = text
        .chars()
        .map(|c| if " \t\n\\#".contains(c) { format!("\\{:03o}", u32::from(c)) } else { c.to_string() })
        .collect();
    if field.is_empty() { "none".into() } else { field }
}

impl Mounts for Memory {
    fn may_block(&self) -> bool {
        false
    }
    fn mount_table(&self) -> Result<MountTable> {
        let lines: String = self.state().mounts.iter().map(|(_, line)| line.as_str()).collect();
        Ok(MountTable::parse(lines.as_bytes()).expect("what the kernel wrote is parsed"))
    }
    fn mount(&self, request: &MountRequest<'_>) -> Result<()> {
        self.add(request.target, request.source, request.fs_type, request.read_only)
    }
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<()> {
        self.add(target, &source.to_string_lossy(), "tmpfs", read_only)
    }
    fn unmount(&self, target: &Path) -> Result<()> {
        let mut state = self.state();
        let topmost = state.mounts.iter().rposition(|(at, _)| at == target);
        topmost.map(|index| state.mounts.remove(index));
        Ok(())
    }
    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        Ok(path.to_owned())
    }
    fn path_kind(&self, path: &Path) -> Result<Option<PathKind>> {
        Ok(self.state().targets.iter().find(|(target, _)| target == path).map(|(_, kind)| *kind))
    }
    fn create_target_dir(&self, path: &Path) -> Result<()> {
        self.create(path, PathKind::Directory)
    }
    fn create_target_file(&self, path: &Path) -> Result<()> {
        self.create(path, PathKind::File)
    }
    fn remove_target(&self, path: &Path) -> Result<()> {
        self.state().targets.retain(|(target, _)| target != path);
        Ok(())
    }
}

/// Methods that a driver of shares does not call.
macro_rules! unsupported {
    ($($name:ident($($argument:ty),*) -> $output:ty;)*) => {
        $(fn $name(&self, $(_: $argument),*) -> $output {
            Err(Error::call(stringify!($name), Path::new("/"), ErrorKind::Unsupported).into())
        })*
    };
}

impl BlockDevices for Memory {
    unsupported! {
        loop_attach(&PathBeneath<'_>, &LoopOptions) -> Result<LoopDevice>;
        loop_devices() -> Result<Vec<LoopDevice>>;
        loop_hold(&Path, &str) -> Result<LoopDevice>;
        loop_reset(&Path, &str) -> Result<()>;
        loop_refresh(&Path) -> Result<()>;
        loop_detach(&Path, Option<FileId>) -> Result<()>;
        loop_disable_discard(&Path) -> Result<()>;
        device_size(&Path) -> Result<u64>;
        device_number(&Path) -> Result<(u32, u32)>;
        device_exists((u32, u32)) -> Result<bool>;
        read_device(&Path, u64, &mut [u8]) -> Result<()>;
    }
}

impl Filesystems for Memory {
    unsupported! {
        probe(&Path) -> Result<ProbeResult>;
        make_fs(&Path, &MakeFsRequest<'_>) -> Result<()>;
        check_fs(&Path, FsType, FsCheck) -> std::result::Result<(), FsError>;
        grow_fs(&Path, FsType, Option<&Path>) -> Result<()>;
        set_fs_uuid(&Path, FsType, &str, &Path) -> Result<()>;
        file_beneath(&Path) -> Result<Option<FileBeneath>>;
        fs_error_count(&Path, FsType, &Path) -> Result<u64>;
        freeze(&[&Path], Duration) -> Result<Box<dyn Frozen>>;
        thaw(&Path) -> Result<()>;
    }
    fn can_grow_online(&self, _: FsType) -> std::result::Result<(), String> {
        Ok(())
    }
    fn usage(&self, _: &Path) -> Result<FsUsage> {
        Ok(FsUsage {
            total_bytes: 3,
            used_bytes: 1,
            available_bytes: 2,
            total_inodes: 3,
            used_inodes: 1,
            available_inodes: 2,
            read_only: false,
        })
    }
}

impl Files for Memory {
    unsupported! {
        read_file(&PathBeneath<'_>) -> Result<Option<Vec<u8>>>;
        write_file(&PathBeneath<'_>, &[u8]) -> Result<()>;
        sync(&PathBeneath<'_>) -> Result<()>;
        rename(&PathBeneath<'_>, &PathBeneath<'_>) -> Result<()>;
        exchange(&PathBeneath<'_>, &PathBeneath<'_>) -> Result<()>;
        create_reserved(&PathBeneath<'_>, u64) -> Result<()>;
        overwrite(&PathBeneath<'_>, &[u8]) -> Result<()>;
        create_dir(&PathBeneath<'_>) -> Result<()>;
        list_dir(&PathBeneath<'_>) -> Result<Vec<String>>;
        remove_file(&PathBeneath<'_>) -> Result<()>;
        remove_dir(&PathBeneath<'_>) -> Result<()>;
        stat(&PathBeneath<'_>) -> Result<Option<FileStat>>;
        set_size(&PathBeneath<'_>, u64) -> Result<()>;
        allocate(&PathBeneath<'_>, u64) -> Result<()>;
        can_reflink(&Path) -> Result<bool>;
        reflink(&PathBeneath<'_>, &PathBeneath<'_>) -> Result<()>;
        copy_range(&PathBeneath<'_>, &PathBeneath<'_>, u64, u64) -> Result<u64>;
        extents(&PathBeneath<'_>) -> Result<Vec<Extent>>;
        try_lock(&PathBeneath<'_>) -> Result<Option<Box<dyn Send + Sync>>>;
    }
}
