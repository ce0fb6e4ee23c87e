//! A simulated kernel: files that survive the agent, and a mount table derived from the driver's state.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wharf_linux::{
    BlockDevices, Error, Extent, FileBeneath, FileId, FileStat, Files, Filesystems, Frozen, FsCheck, FsError,
    FsType, FsUsage, LoopDevice, LoopOptions, MakeFsRequest, MountRequest, MountTable, Mounts, PathBeneath,
    PathKind, ProbeResult, Result,
};

use crate::driver::{DriverState, lock};

/// The kernel of one node.
pub(crate) struct SimKernel {
    node: String,
    driver_state: Arc<Mutex<DriverState>>,
    /// Files with their content, directories without.
    files: Mutex<BTreeMap<PathBuf, Option<Vec<u8>>>>,
}

impl SimKernel {
    pub(crate) fn new(node: &str, driver_state: &Arc<Mutex<DriverState>>) -> Arc<Self> {
        Arc::new(Self {
            node: node.to_owned(),
            driver_state: Arc::clone(driver_state),
            files: Mutex::default(),
        })
    }

    /// All files, without directories.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let files = lock(&self.files);
        files.iter().filter(|(_, content)| content.is_some()).map(|(path, _)| path.clone()).collect()
    }

    fn make_dir(&self, path: &Path) {
        let mut files = lock(&self.files);
        for above in path.ancestors() {
            files.entry(above.to_owned()).or_default();
        }
    }

    /// A missing path is success; a directory that is not empty remains.
    fn remove(&self, path: &Path) -> Result<()> {
        let mut files = lock(&self.files);
        let inside = files.keys().any(|other| other != path && other.starts_with(path));
        if inside {
            return Err(Error::call("rmdir", path, io::ErrorKind::DirectoryNotEmpty));
        }
        files.remove(path);
        Ok(())
    }
}

/// The node agent never makes these calls; they are the driver's.
fn unsupported<T>(call: &'static str) -> Result<T> {
    Err(Error::call(call, Path::new("/"), io::ErrorKind::Unsupported))
}

fn path(of: &PathBeneath<'_>) -> PathBuf {
    match of.path == Path::new(".") {
        true => of.root.to_owned(),
        false => of.root.join(of.path),
    }
}

impl Mounts for SimKernel {
    fn may_block(&self) -> bool {
        false
    }
    fn mount_table(&self) -> Result<MountTable> {
        let driver_state = lock(&self.driver_state);
        let mut table = String::new();
        for volume in driver_state.volumes.values() {
            let staged = volume.staged.get(&self.node).into_iter();
            let published = volume.published.iter().filter(|(node, _)| *node == self.node);
            for at in staged.chain(published.map(|(_, at)| at)) {
                table += &format!("1 0 7:{} / {at} rw - ext4 /dev/sim{} rw\n", volume.minor, volume.minor);
            }
        }
        Ok(MountTable::parse(table.as_bytes()).expect("a table that we wrote"))
    }
    fn mount(&self, _: &MountRequest<'_>) -> Result<()> {
        unsupported("mount")
    }
    fn bind(&self, _: &Path, _: &Path, _: bool) -> Result<()> {
        unsupported("mount")
    }
    fn unmount(&self, _: &Path) -> Result<()> {
        unsupported("umount")
    }
    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        Ok(path.to_owned())
    }
    fn path_kind(&self, path: &Path) -> Result<Option<PathKind>> {
        let kind = |content: &Option<Vec<u8>>| match content {
            Some(_) => PathKind::File,
            None => PathKind::Directory,
        };
        Ok(lock(&self.files).get(path).map(kind))
    }
    fn create_target_dir(&self, path: &Path) -> Result<()> {
        self.make_dir(path);
        Ok(())
    }
    fn create_target_file(&self, _: &Path) -> Result<()> {
        unsupported("open")
    }
    fn remove_target(&self, path: &Path) -> Result<()> {
        self.remove(path)
    }
}

impl Files for SimKernel {
    fn read_file(&self, file: &PathBeneath<'_>) -> Result<Option<Vec<u8>>> {
        Ok(lock(&self.files).get(&path(file)).cloned().flatten())
    }
    fn write_file(&self, file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()> {
        lock(&self.files).insert(path(file), Some(bytes.to_vec()));
        Ok(())
    }
    fn sync(&self, _: &PathBeneath<'_>) -> Result<()> {
        Ok(())
    }
    fn rename(&self, from: &PathBeneath<'_>, to: &PathBeneath<'_>) -> Result<()> {
        let mut files = lock(&self.files);
        let Some(content) = files.remove(&path(from)) else {
            return Err(Error::call("rename", &path(from), io::ErrorKind::NotFound));
        };
        files.insert(path(to), content);
        Ok(())
    }
    fn exchange(&self, _: &PathBeneath<'_>, _: &PathBeneath<'_>) -> Result<()> {
        unsupported("rename")
    }
    fn create_reserved(&self, _: &PathBeneath<'_>, _: u64) -> Result<()> {
        unsupported("write")
    }
    fn overwrite(&self, _: &PathBeneath<'_>, _: &[u8]) -> Result<()> {
        unsupported("write")
    }
    fn create_dir(&self, dir: &PathBeneath<'_>) -> Result<()> {
        self.make_dir(&path(dir));
        Ok(())
    }
    fn list_dir(&self, dir: &PathBeneath<'_>) -> Result<Vec<String>> {
        let dir = path(dir);
        let files = lock(&self.files);
        let inside = files.keys().filter(|path| path.parent() == Some(&*dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect())
    }
    fn remove_file(&self, file: &PathBeneath<'_>) -> Result<()> {
        lock(&self.files).remove(&path(file));
        Ok(())
    }
    fn remove_dir(&self, dir: &PathBeneath<'_>) -> Result<()> {
        self.remove(&path(dir))
    }
    fn stat(&self, _: &PathBeneath<'_>) -> Result<Option<FileStat>> {
        unsupported("stat")
    }
    fn set_size(&self, _: &PathBeneath<'_>, _: u64) -> Result<()> {
        unsupported("ftruncate")
    }
    fn allocate(&self, _: &PathBeneath<'_>, _: u64) -> Result<()> {
        unsupported("fallocate")
    }
    fn can_reflink(&self, _: &Path) -> Result<bool> {
        unsupported("ioctl")
    }
    fn reflink(&self, _: &PathBeneath<'_>, _: &PathBeneath<'_>) -> Result<()> {
        unsupported("ioctl")
    }
    fn copy_range(&self, _: &PathBeneath<'_>, _: &PathBeneath<'_>, _: u64, _: u64) -> Result<u64> {
        unsupported("copy_file_range")
    }
    fn extents(&self, _: &PathBeneath<'_>) -> Result<Vec<Extent>> {
        unsupported("ioctl")
    }
    fn try_lock(&self, _: &PathBeneath<'_>) -> Result<Option<Box<dyn Send + Sync>>> {
        unsupported("flock")
    }
}

impl BlockDevices for SimKernel {
    fn loop_attach(&self, _: &PathBeneath<'_>, _: &LoopOptions) -> Result<LoopDevice> {
        unsupported("ioctl")
    }
    fn loop_devices(&self) -> Result<Vec<LoopDevice>> {
        unsupported("ioctl")
    }
    fn loop_hold(&self, _: &Path, _: &str) -> Result<LoopDevice> {
        unsupported("ioctl")
    }
    fn loop_reset(&self, _: &Path, _: &str) -> Result<()> {
        unsupported("ioctl")
    }
    fn loop_refresh(&self, _: &Path) -> Result<()> {
        unsupported("ioctl")
    }
    fn loop_detach(&self, _: &Path, _: Option<FileId>) -> Result<()> {
        unsupported("ioctl")
    }
    fn loop_disable_discard(&self, _: &Path) -> Result<()> {
        unsupported("open")
    }
    fn device_size(&self, _: &Path) -> Result<u64> {
        unsupported("ioctl")
    }
    fn device_number(&self, _: &Path) -> Result<(u32, u32)> {
        unsupported("stat")
    }
    fn read_device(&self, _: &Path, _: u64, _: &mut [u8]) -> Result<()> {
        unsupported("read")
    }
}

impl Filesystems for SimKernel {
    fn probe(&self, _: &Path) -> Result<ProbeResult> {
        unsupported("read")
    }
    fn make_fs(&self, _: &Path, _: &MakeFsRequest<'_>) -> Result<()> {
        unsupported("mkfs")
    }
    fn check_fs(&self, _: &Path, _: FsType, _: FsCheck) -> std::result::Result<(), FsError> {
        Ok(())
    }
    fn grow_fs(&self, _: &Path, _: FsType, _: Option<&Path>) -> Result<()> {
        unsupported("resize")
    }
    fn can_grow_online(&self, _: FsType) -> std::result::Result<(), String> {
        Ok(())
    }
    fn set_fs_uuid(&self, _: &Path, _: FsType, _: &str, _: &Path) -> Result<()> {
        unsupported("tune")
    }
    fn usage(&self, _: &Path) -> Result<FsUsage> {
        unsupported("statvfs")
    }
    fn file_beneath(&self, _: &Path) -> Result<Option<FileBeneath>> {
        Ok(None)
    }
    fn fs_error_count(&self, _: &Path, _: FsType, _: &Path) -> Result<u64> {
        Ok(0)
    }
    fn freeze(&self, _: &[&Path], _: Duration) -> Result<Box<dyn Frozen>> {
        unsupported("ioctl")
    }
    fn thaw(&self, _: &Path) -> Result<()> {
        unsupported("ioctl")
    }
}
