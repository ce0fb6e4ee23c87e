//! A node's machine in memory: files that stay when the agent dies, and a mount table that is the driver's truth.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wharf_linux::{
    Beneath, Devices, Error, Extent, FileStat, Files, Filesystems, Frozen, FsError, FsType, LoopDevice,
    LoopOptions, MakeFs, MountRequest, MountTable, Mounts, PathKind, Probe, Result, Usage,
};

use crate::driver::{Truth, lock};

/// The machine of one node.
pub(crate) struct Memory {
    node: String,
    truth: Arc<Mutex<Truth>>,
    /// Files with what is in them, directories with nothing.
    files: Mutex<BTreeMap<PathBuf, Option<Vec<u8>>>>,
}

impl Memory {
    pub(crate) fn new(node: &str, truth: &Arc<Mutex<Truth>>) -> Arc<Self> {
        Arc::new(Self { node: node.to_owned(), truth: Arc::clone(truth), files: Mutex::default() })
    }

    /// Files that are there, without directories.
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

    /// Gone is success, and what is not empty stays.
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

/// Nothing on a node asks for it: that is the driver's work.
fn drivers<T>(call: &'static str) -> Result<T> {
    Err(Error::call(call, Path::new("/"), io::ErrorKind::Unsupported))
}

fn path(of: &Beneath<'_>) -> PathBuf {
    match of.path == Path::new(".") {
        true => of.root.to_owned(),
        false => of.root.join(of.path),
    }
}

impl Mounts for Memory {
    fn waits(&self) -> bool {
        false
    }
    fn mount_table(&self) -> Result<MountTable> {
        let truth = lock(&self.truth);
        let mut table = String::new();
        for volume in truth.volumes.values() {
            let staged = volume.staged.get(&self.node).into_iter();
            let published = volume.published.iter().filter(|(node, _)| *node == self.node);
            for at in staged.chain(published.map(|(_, at)| at)) {
                table += &format!("1 0 7:{} / {at} rw - ext4 /dev/sim{} rw\n", volume.minor, volume.minor);
            }
        }
        Ok(MountTable::parse(table.as_bytes()).expect("a table that we wrote"))
    }
    fn mount(&self, _: &MountRequest<'_>) -> Result<()> {
        drivers("mount")
    }
    fn bind(&self, _: &Path, _: &Path, _: bool) -> Result<()> {
        drivers("mount")
    }
    fn unmount(&self, _: &Path) -> Result<()> {
        drivers("umount")
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
        drivers("open")
    }
    fn remove_target(&self, path: &Path) -> Result<()> {
        self.remove(path)
    }
}

impl Files for Memory {
    fn read_file(&self, file: &Beneath<'_>) -> Result<Option<Vec<u8>>> {
        Ok(lock(&self.files).get(&path(file)).cloned().flatten())
    }
    fn write_file(&self, file: &Beneath<'_>, bytes: &[u8]) -> Result<()> {
        lock(&self.files).insert(path(file), Some(bytes.to_vec()));
        Ok(())
    }
    fn sync(&self, _: &Beneath<'_>) -> Result<()> {
        Ok(())
    }
    fn rename(&self, from: &Beneath<'_>, to: &Beneath<'_>) -> Result<()> {
        let mut files = lock(&self.files);
        let Some(content) = files.remove(&path(from)) else {
            return Err(Error::call("rename", &path(from), io::ErrorKind::NotFound));
        };
        files.insert(path(to), content);
        Ok(())
    }
    fn create_dir(&self, dir: &Beneath<'_>) -> Result<()> {
        self.make_dir(&path(dir));
        Ok(())
    }
    fn list_dir(&self, dir: &Beneath<'_>) -> Result<Vec<String>> {
        let dir = path(dir);
        let files = lock(&self.files);
        let inside = files.keys().filter(|path| path.parent() == Some(&*dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect())
    }
    fn remove_file(&self, file: &Beneath<'_>) -> Result<()> {
        lock(&self.files).remove(&path(file));
        Ok(())
    }
    fn remove_dir(&self, dir: &Beneath<'_>) -> Result<()> {
        self.remove(&path(dir))
    }
    fn stat(&self, _: &Beneath<'_>) -> Result<Option<FileStat>> {
        drivers("stat")
    }
    fn set_size(&self, _: &Beneath<'_>, _: u64) -> Result<()> {
        drivers("ftruncate")
    }
    fn allocate(&self, _: &Beneath<'_>, _: u64) -> Result<()> {
        drivers("fallocate")
    }
    fn can_reflink(&self, _: &Path) -> Result<bool> {
        drivers("ioctl")
    }
    fn reflink(&self, _: &Beneath<'_>, _: &Beneath<'_>) -> Result<()> {
        drivers("ioctl")
    }
    fn copy_range(&self, _: &Beneath<'_>, _: &Beneath<'_>, _: u64, _: u64) -> Result<u64> {
        drivers("copy_file_range")
    }
    fn extents(&self, _: &Beneath<'_>) -> Result<Vec<Extent>> {
        drivers("ioctl")
    }
    fn try_lock(&self, _: &Beneath<'_>) -> Result<Option<Box<dyn Send + Sync>>> {
        drivers("flock")
    }
}

impl Devices for Memory {
    fn loop_attach(&self, _: &Beneath<'_>, _: &LoopOptions) -> Result<LoopDevice> {
        drivers("ioctl")
    }
    fn loop_devices(&self) -> Result<Vec<LoopDevice>> {
        drivers("ioctl")
    }
    fn loop_refresh(&self, _: &Path) -> Result<()> {
        drivers("ioctl")
    }
    fn loop_detach(&self, _: &Path) -> Result<()> {
        drivers("ioctl")
    }
    fn device_size(&self, _: &Path) -> Result<u64> {
        drivers("ioctl")
    }
    fn device_number(&self, _: &Path) -> Result<(u32, u32)> {
        drivers("stat")
    }
    fn read_device(&self, _: &Path, _: u64, _: &mut [u8]) -> Result<()> {
        drivers("read")
    }
}

impl Filesystems for Memory {
    fn probe(&self, _: &Path) -> Result<Probe> {
        drivers("read")
    }
    fn make_fs(&self, _: &Path, _: &MakeFs<'_>) -> Result<()> {
        drivers("mkfs")
    }
    fn check_fs(&self, _: &Path, _: FsType) -> std::result::Result<(), FsError> {
        Ok(())
    }
    fn grow_fs(&self, _: &Path, _: FsType, _: Option<&Path>) -> Result<()> {
        drivers("resize")
    }
    fn can_grow_online(&self, _: FsType) -> std::result::Result<(), String> {
        Ok(())
    }
    fn set_fs_uuid(&self, _: &Path, _: FsType, _: &str, _: &Path) -> Result<()> {
        drivers("tune")
    }
    fn usage(&self, _: &Path) -> Result<Usage> {
        drivers("statvfs")
    }
    fn fs_error_count(&self, _: &Path, _: FsType, _: &Path) -> Result<u64> {
        Ok(0)
    }
    fn freeze(&self, _: &[&Path], _: Duration) -> Result<Box<dyn Frozen>> {
        drivers("ioctl")
    }
    fn thaw(&self, _: &Path) -> Result<()> {
        drivers("ioctl")
    }
}
