//! Finds a volume's mounts in the mount table. The Node service holds no state, so these rules determine, also after a
//! restart, where a volume is staged and published.

use std::path::{Path, PathBuf};

use wharf_linux::{FsType, Kernel, Mount, MountTable};

use super::error::NodeError;
use crate::backend::{Device, MountSource};

/// What identifies the mounts of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountIdentity {
    /// A block volume is identified by its device.
    Device(DeviceNode),
    /// A mounted share is identified by its type and source.
    Source {
        /// File system type.
        fs_type: String,
        /// The source passed to the kernel.
        source: String,
    },
    /// A bound directory is identified by its file system and path.
    Directory {
        /// Device number of the file system.
        device: (u32, u32),
        /// The directory within it.
        root: PathBuf,
    },
}

/// A volume's device node with its device number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceNode {
    pub(crate) path: PathBuf,
    /// `(major, minor)`.
    pub(crate) number: (u32, u32),
    /// The node of the volume's second device, for readers: it is only bound, never mounted.
    pub(crate) reader: Option<PathBuf>,
}

/// How a volume is mounted at a path; Kubernetes' volumeMode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VolumeMode {
    /// A mounted file system.
    Filesystem,
    /// A bound device node.
    Block,
}

/// How a volume should be mounted at a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedMount {
    pub(crate) mode: VolumeMode,
    /// The requested file system type, if any.
    pub(crate) fs: Option<FsType>,
    /// Whether the mount must be read-only.
    pub(crate) read_only: bool,
}

/// The state of a mount target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TargetState<'a> {
    /// Nothing is mounted.
    NotMounted,
    /// The volume is mounted as expected.
    Matches,
    /// The volume is mounted differently; the text describes the difference.
    Incompatible(String),
    /// Something else is mounted.
    Foreign(&'a Mount),
}

impl DeviceNode {
    /// Reads the device number from the kernel.
    pub(crate) fn of(kernel: &dyn Kernel, device: &Device) -> wharf_linux::Result<Self> {
        let number = kernel.device_number(&device.path)?;
        Ok(Self { path: device.path.clone(), number, reader: device.reader.clone() })
    }

    /// The volume mode of a mount of this device; `None` for other mounts.
    pub(crate) fn mode_of(&self, mount: &Mount) -> Option<VolumeMode> {
        // btrfs does not have its device's number in the mount table, since it can span several devices.
        let by_source = mount.fs_type == "btrfs" && Path::new(&mount.source) == self.path;
        if mount.device == self.number || by_source {
            return Some(VolumeMode::Filesystem);
        }
        let bound =
            |path: &Path| path.file_name().is_some_and(|name| mount.root == Path::new("/").join(name));
        let mut nodes = [Some(self.path.as_path()), self.reader.as_deref()].into_iter().flatten();
        (mount.fs_type == "devtmpfs" && nodes.any(bound)).then_some(VolumeMode::Block)
    }

    /// All mounts of the device: of its file system and of its node.
    pub(crate) fn mounts_in<'a>(&'a self, table: &'a MountTable) -> impl Iterator<Item = &'a Mount> {
        table.mounts().iter().filter(|mount| self.mode_of(mount).is_some())
    }
}

/// All mounts of the file system at a path, if the path shows the whole file system of a device. For volumes whose device is
/// not known.
pub(crate) fn same_filesystem<'a>(table: &'a MountTable, path: &Path) -> Vec<&'a Mount> {
    let whole = table.at(path).filter(|mount| mount.device.0 != 0 && mount.root == Path::new("/"));
    let same = |mount: &&Mount| whole.is_some_and(|whole| whole.device == mount.device);
    table.mounts().iter().filter(same).collect()
}

/// The device of a mount, of a file system or of a device node; `None` if it cannot be determined with certainty.
pub(crate) fn device_of_mount(kernel: &dyn Kernel, mount: &Mount) -> Option<PathBuf> {
    let name = mount.root.strip_prefix("/").ok().filter(|name| name.components().count() == 1);
    let (path, raw) = match (mount.fs_type.as_str(), name) {
        ("devtmpfs", name) => (Path::new("/dev").join(name?), true),
        _ => (PathBuf::from(&mount.source), false),
    };
    let number = kernel.device_number(&path).ok()?;
    (raw || number == mount.device).then_some(path)
}

impl MountIdentity {
    /// The identity that a share has after it is mounted.
    pub(crate) fn of_share(source: &MountSource, table: &MountTable) -> Result<Self, NodeError> {
        if !source.fs_type.is_empty() {
            return Ok(Self::Source { fs_type: source.fs_type.clone(), source: source.source.clone() });
        }
        let path = Path::new(&source.source);
        let holds = table
            .mounts()
            .iter()
            .filter(|mount| path.starts_with(&mount.mount_point))
            .max_by_key(|mount| mount.mount_point.components().count());
        let within = holds.and_then(|mount| Some((mount, path.strip_prefix(&mount.mount_point).ok()?)));
        match within {
            Some((mount, rest)) => {
                Ok(Self::Directory { device: mount.device, root: clean(&mount.root.join(rest)) })
            }
            None => Err(NodeError::Precondition(format!(
                "the directory {} is not on a mounted file system",
                path.display()
            ))),
        }
    }

    /// The identity of this mount and all its binds.
    pub(crate) fn of_mount(mount: &Mount) -> Self {
        Self::Directory { device: mount.device, root: mount.root.clone() }
    }

    /// The volume mode of a mount of this volume; `None` for other mounts.
    pub(crate) fn mode_of(&self, mount: &Mount) -> Option<VolumeMode> {
        let shows = match self {
            Self::Device(node) => return node.mode_of(mount),
            // The kernel can report a more specific type than requested (nfs: nfs4).
            Self::Source { fs_type, source } => {
                mount.fs_type.starts_with(fs_type.as_str()) && mount.source == *source
            }
            Self::Directory { device, root } => mount.device == *device && mount.root == *root,
        };
        shows.then_some(VolumeMode::Filesystem)
    }

    /// Compares the mount at a path with the expected one.
    pub(crate) fn at<'a>(
        &self,
        table: &'a MountTable,
        path: &Path,
        expected: &ExpectedMount,
    ) -> TargetState<'a> {
        let Some(mount) = table.at(path) else { return TargetState::NotMounted };
        let Some(mode) = self.mode_of(mount) else { return TargetState::Foreign(mount) };
        if mode != expected.mode {
            return TargetState::Incompatible(match mode {
                VolumeMode::Filesystem => "it is mounted as a file system, not as a raw device".into(),
                VolumeMode::Block => "it is a raw device, not a file system".into(),
            });
        }
        if let Some(fs) = expected.fs.filter(|fs| fs.as_str() != mount.fs_type) {
            return TargetState::Incompatible(format!("it is mounted as {}, not as {fs}", mount.fs_type));
        }
        match (is_read_only(mount), expected.read_only) {
            (true, false) => {
                TargetState::Incompatible("it is read-only, but read-write was requested".into())
            }
            (false, true) => {
                TargetState::Incompatible("it is read-write, but read-only was requested".into())
            }
            (true, true) | (false, false) => TargetState::Matches,
        }
    }
}

/// Whether this mount was created read-only. Unlike [`Mount::is_read_only`] this ignores a file system that became read-only
/// under a writable mount: that is an error of the file system, not a mount option.
pub(crate) fn is_read_only(mount: &Mount) -> bool {
    has(&mount.options, "ro")
}

/// Whether the file system became read-only under this writable mount, as happens after errors.
pub(crate) fn became_read_only(mount: &Mount) -> bool {
    !is_read_only(mount) && (has(&mount.super_options, "ro") || has(&mount.super_options, "emergency_ro"))
}

fn has(options: &[String], expected: &str) -> bool {
    options.iter().any(|option| option == expected)
}

/// Whether the device of a mount no longer exists, so that it can neither be read nor written. A volume that is attached
/// again gets another device, so nothing uses the old mounts. `exists` looks up a device number.
pub(crate) fn is_orphaned<E>(
    mount: &Mount,
    exists: impl FnOnce((u32, u32)) -> Result<bool, E>,
) -> Result<bool, E> {
    // The kernel marks the mount of a removed device node like this.
    if mount.fs_type == "devtmpfs" {
        return Ok(mount.root.as_os_str().as_encoded_bytes().ends_with(b"//deleted"));
    }
    // File systems without a device have major number 0.
    Ok(mount.device.0 != 0 && !exists(mount.device)?)
}

/// Describes a mount in a message.
pub(crate) fn describe(mount: &Mount) -> String {
    format!("{} from {} ({})", mount.fs_type, mount.source, mount.root.display())
}

/// Lists mount points in a message.
pub(crate) fn mount_points<'a>(mounts: impl IntoIterator<Item = &'a Mount>) -> String {
    let points: Vec<String> =
        mounts.into_iter().map(|mount| mount.mount_point.display().to_string()).collect();
    points.join(", ")
}

fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 0:6 / /dev rw - devtmpfs devtmpfs rw
30 20 7:1 / /stage/1 rw - ext4 /dev/loop1 rw
31 20 7:1 / /pod/1 ro - ext4 /dev/loop1 rw
32 20 0:50 / /stage/2 rw - btrfs /dev/loop2 rw,subvolid=5
33 20 0:6 /loop3 /pod/3 rw - devtmpfs devtmpfs rw
34 20 7:4 / /stage/4 rw - ext4 /dev/loop4 ro
35 20 0:60 / /stage/5 rw - tmpfs vol-5 rw
36 20 254:0 /srv/share /stage/6 rw - ext4 /dev/vda rw
37 20 0:70 / /stage/7 rw - nfs4 server:/export rw
";

    fn table() -> MountTable {
        MountTable::parse(TABLE.as_bytes()).unwrap()
    }

    fn device(minor: u32) -> MountIdentity {
        let path = format!("/dev/loop{minor}").into();
        MountIdentity::Device(DeviceNode { path, number: (7, minor), reader: None })
    }

    const MOUNT: ExpectedMount = ExpectedMount { mode: VolumeMode::Filesystem, fs: None, read_only: false };
    const BLOCK: ExpectedMount = ExpectedMount { mode: VolumeMode::Block, fs: None, read_only: false };

    #[test]
    fn target_state_compares_volume_mode_type_and_read_only() {
        let table = table();
        let at = |identity: &MountIdentity, path: &str, expected: ExpectedMount| match identity.at(
            &table,
            Path::new(path),
            &expected,
        ) {
            TargetState::NotMounted => "nothing",
            TargetState::Matches => "same",
            TargetState::Incompatible(_) => "incompatible",
            TargetState::Foreign(_) => "foreign",
        };
        let ext4 = ExpectedMount { fs: Some(FsType::Ext4), ..MOUNT };
        let xfs = ExpectedMount { fs: Some(FsType::Xfs), ..MOUNT };
        let ro = ExpectedMount { read_only: true, ..MOUNT };
        for (minor, path, mount, expected) in [
            (1, "/stage/0", MOUNT, "nothing"),
            (1, "/stage/1", MOUNT, "same"),
            (1, "/stage/1", ext4, "same"),
            (1, "/stage/1", xfs, "incompatible"),
            (1, "/stage/1", ro, "incompatible"),
            (1, "/stage/1", BLOCK, "incompatible"),
            (1, "/pod/1", ro, "same"),
            (1, "/pod/1", MOUNT, "incompatible"),
            (1, "/stage/2", MOUNT, "foreign"),
            (2, "/stage/2", MOUNT, "same"),
            (3, "/pod/3", BLOCK, "same"),
            (3, "/pod/3", MOUNT, "incompatible"),
            (2, "/pod/3", BLOCK, "foreign"),
            (4, "/stage/4", MOUNT, "same"),
        ] {
            assert_eq!(at(&device(minor), path, mount), expected, "loop{minor} at {path}, {mount:?}");
        }
    }

    #[test]
    fn mounts_of_a_device_include_file_system_and_node() {
        let table = table();
        for (minor, expected) in
            [(1, "/stage/1, /pod/1"), (2, "/stage/2"), (3, "/pod/3"), (4, "/stage/4"), (9, "")]
        {
            let MountIdentity::Device(node) = device(minor) else { unreachable!() };
            assert_eq!(mount_points(node.mounts_in(&table)), expected);
        }
    }

    #[test]
    fn same_filesystem_finds_all_mounts_of_a_device_file_system() {
        let table = table();
        for (path, expected) in [
            ("/stage/0", ""),
            ("/stage/1", "/stage/1, /pod/1"),
            ("/stage/4", "/stage/4"),
            // Without a device, and a directory of another file system.
            ("/stage/5", ""),
            ("/stage/6", ""),
        ] {
            assert_eq!(mount_points(same_filesystem(&table, Path::new(path))), expected, "{path}");
        }
    }

    /// Device 7:4 does not exist, all others do.
    #[test]
    fn mount_without_its_device_is_orphaned() {
        const MORE: &str = "38 20 0:6 /loop9//deleted /pod/9 rw - devtmpfs devtmpfs rw\n";
        let table = MountTable::parse(format!("{TABLE}{MORE}").as_bytes()).unwrap();
        let exists = |number| Ok::<_, ()>(number != (7, 4) && number != (0, 60));
        let lost: Vec<&Mount> =
            table.mounts().iter().filter(|mount| is_orphaned(mount, exists).unwrap()).collect();
        assert_eq!(mount_points(lost), "/stage/4, /pod/9");
        // If the lookup fails, the result is an error.
        assert!(is_orphaned(table.at(Path::new("/stage/1")).unwrap(), |_| Err(())).is_err());
    }

    #[test]
    fn shares_are_identified_by_type_and_source() {
        let table = table();
        let share = |fs_type: &str, source: &str| {
            let (fs_type, source) = (fs_type.to_owned(), source.to_owned());
            MountIdentity::of_share(&MountSource { source, fs_type, options: Vec::new() }, &table).unwrap()
        };
        let same = |identity: MountIdentity, path: &str| {
            identity.at(&table, Path::new(path), &MOUNT) == TargetState::Matches
        };
        assert!(same(share("tmpfs", "vol-5"), "/stage/5"));
        assert!(!same(share("tmpfs", "vol-6"), "/stage/5"));
        assert!(same(share("nfs", "server:/export"), "/stage/7"));
        assert!(same(share("", "/srv/share"), "/stage/6"));
        assert!(same(share("", "/srv/share/"), "/stage/6"));
        assert!(!same(share("", "/srv/other"), "/stage/6"));
        assert!(!same(share("", "/stage/1"), "/stage/6"));
        assert!(same(share("", "/stage/1"), "/stage/1"), "the root of a file system that is mounted");
    }

    #[test]
    fn became_read_only_excludes_read_only_mounts() {
        let table = table();
        let turned = |path: &str| became_read_only(table.at(Path::new(path)).unwrap());
        assert!(turned("/stage/4"));
        assert!(!turned("/pod/1") && !turned("/stage/1"));
    }
}
