//! A test directory with the devices and mounts created for the test. All are removed when the test passes or fails.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use wharf_linux::{
    BlockDevices as _, Files as _, Filesystems as _, FsType, Linux, LoopOptions, MakeFsRequest, MountRequest,
    Mounts as _, PathBeneath,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ALL_FS_TYPES: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

pub(crate) struct Bench {
    pub(crate) linux: Linux,
    dir: Option<tempfile::TempDir>,
    /// In order of creation; removed in reverse order.
    resources: RefCell<Vec<Resource>>,
}

enum Resource {
    Loop(PathBuf),
    Mount(PathBuf),
}

impl Bench {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("wharf-linux-").tempdir().unwrap();
        Self { linux: Linux::new(), dir: Some(dir), resources: RefCell::default() }
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn file<'a>(&'a self, name: &'a str) -> PathBeneath<'a> {
        PathBeneath::new(self.root(), Path::new(name))
    }

    /// A directory to mount on.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        self.linux.create_target_dir(&path).unwrap();
        path
    }

    /// An image of zeroes.
    pub(crate) fn image(&self, name: &str, size: u64) {
        self.linux.set_size(&self.file(name), size).unwrap();
    }

    /// The device of an image.
    pub(crate) fn attach(&self, name: &str) -> PathBuf {
        let options = LoopOptions { read_only: false, label: name.to_owned() };
        let device = self.linux.loop_attach(&self.file(name), &options).unwrap().path;
        self.detach_on_drop(&device);
        device
    }

    /// An image of zeroes, attached.
    pub(crate) fn device(&self, name: &str, size: u64) -> PathBuf {
        self.image(name, size);
        self.attach(name)
    }

    /// An attached image with a file system on it.
    pub(crate) fn formatted(&self, name: &str, fs: FsType) -> PathBuf {
        let device = self.device(name, fs.minimum_size().max(16 * MIB));
        self.linux.make_fs(&device, &MakeFsRequest { fs, uuid: &new_uuid(), options: &[] }).unwrap();
        device
    }

    pub(crate) fn mount(&self, device: &Path, fs_type: &str, name: &str) -> PathBuf {
        self.mount_with(device.to_str().unwrap(), fs_type, name, &[])
    }

    pub(crate) fn mount_with(&self, source: &str, fs_type: &str, name: &str, options: &[&str]) -> PathBuf {
        let target = self.target(name);
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let request = MountRequest { source, target: &target, fs_type, options: &options, read_only: false };
        self.linux.mount(&request).unwrap();
        self.unmount_on_drop(&target);
        target
    }

    /// A mounted file system of this type: a pool of its own.
    pub(crate) fn pool(&self, fs: FsType) -> PathBuf {
        let name = format!("pool-{fs}");
        let device = self.formatted(&format!("{name}.img"), fs);
        self.mount(&device, fs.as_str(), &name)
    }

    pub(crate) fn detach_on_drop(&self, device: &Path) {
        self.resources.borrow_mut().push(Resource::Loop(device.to_owned()));
    }

    pub(crate) fn unmount_on_drop(&self, target: &Path) {
        self.resources.borrow_mut().push(Resource::Mount(target.to_owned()));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for resource in self.resources.get_mut().drain(..).rev() {
            let undone = match &resource {
                Resource::Loop(device) => self.linux.loop_detach(device, None),
                Resource::Mount(target) => {
                    let _ = self.linux.thaw(target);
                    self.linux.unmount(target)
                }
            };
            if let Err(error) = undone {
                eprintln!("failed to clean up: {error}");
            }
        }
        // Removing the directory must not delete the files of a file system that is still mounted.
        let left = self.linux.mount_table().unwrap();
        let root = self.root().to_owned();
        if left.mounts().iter().any(|mount| mount.mount_point.starts_with(&root)) {
            let kept = self.dir.take().unwrap().keep();
            eprintln!("directory not removed: {}", kept.display());
        }
    }
}

/// A UUID that is unique on this machine.
pub(crate) fn new_uuid() -> String {
    wharf_linux::random_uuid().unwrap()
}

/// Runs a program and returns its standard output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
