//! What the mount table says of a volume. Pure: the node half keeps no state of its own, so these rules are
//! how it knows, also after a restart, what is staged and published where.

use std::path::{Path, PathBuf};

use wharf_linux::{FsType, Kernel, Mount, MountTable};

use super::error::NodeError;
use crate::backend::{Device, MountSource};

/// By what a volume's mounts are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A block volume: its device.
    Device(DeviceNode),
    /// A share that is mounted: what was mounted.
    Source {
        /// File system type.
        fs_type: String,
        /// As it was given to the kernel.
        source: String,
    },
    /// A directory of a file system, wherever it is bound.
    Directory {
        /// Device number of the file system.
        device: (u32, u32),
        /// The directory within it.
        root: PathBuf,
    },
}

/// A device node and the number behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceNode {
    /// The node.
    pub(crate) path: PathBuf,
    /// `(major, minor)`.
    pub(crate) number: (u32, u32),
}

/// The two ways in which a volume can be at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As a file system.
    Filesystem,
    /// As a device node.
    Raw,
}

/// How a volume should be at a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Device or file system.
    pub(crate) kind: Kind,
    /// The file system's type, if one was asked for.
    pub(crate) fs: Option<FsType>,
    /// Nothing may be written through that path.
    pub(crate) read_only: bool,
}

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum At<'a> {
    /// No mount.
    Nothing,
    /// The volume, as it should be.
    Same,
    /// The volume, but otherwise: what the difference is.
    Incompatible(String),
    /// Something else.
    Foreign(&'a Mount),
}

impl DeviceNode {
    /// Asks the kernel for the device's number.
    pub(crate) fn of(kernel: &dyn Kernel, device: &Device) -> wharf_linux::Result<Self> {
        Ok(Self { path: device.path.clone(), number: kernel.device_number(&device.path)? })
    }

    /// How this mount shows the device, if it does.
    pub(crate) fn kind_of(&self, mount: &Mount) -> Option<Kind> {
        // btrfs has no device number of its own in the mount table, since it may span several devices.
        let by_source = mount.fs_type == "btrfs" && Path::new(&mount.source) == self.path;
        if mount.device == self.number || by_source {
            return Some(Kind::Filesystem);
        }
        let node = self.path.file_name().map(|name| Path::new("/").join(name));
        (mount.fs_type == "devtmpfs" && Some(&mount.root) == node.as_ref()).then_some(Kind::Raw)
    }

    /// All mounts of the device, whether of its file system or of its node.
    pub(crate) fn uses<'a>(&'a self, table: &'a MountTable) -> impl Iterator<Item = &'a Mount> {
        table.mounts().iter().filter(|mount| self.kind_of(mount).is_some())
    }
}

/// All mounts of the file system that is at a path, if that is the whole file system of a device: what a volume looks
/// like whose device is not known.
pub(crate) fn same_filesystem<'a>(table: &'a MountTable, path: &Path) -> Vec<&'a Mount> {
    let whole = table.at(path).filter(|mount| mount.device.0 != 0 && mount.root == Path::new("/"));
    let same = |mount: &&Mount| whole.is_some_and(|whole| whole.device == mount.device);
    table.mounts().iter().filter(same).collect()
}

/// The device that a mount shows, as a file system or as a node; `None` where no device here is certain to be it.
pub(crate) fn shown_by(kernel: &dyn Kernel, mount: &Mount) -> Option<PathBuf> {
    let name = mount.root.strip_prefix("/").ok().filter(|name| name.components().count() == 1);
    let (path, raw) = match (mount.fs_type.as_str(), name) {
        ("devtmpfs", name) => (Path::new("/dev").join(name?), true),
        _ => (PathBuf::from(&mount.source), false),
    };
    let number = kernel.device_number(&path).ok()?;
    (raw || number == mount.device).then_some(path)
}

impl Identity {
    /// How a share will look once it is mounted.
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
                "the directory {} is on no mounted file system",
                path.display()
            ))),
        }
    }

    /// What is mounted here, wherever else it may be bound.
    pub(crate) fn of_mount(mount: &Mount) -> Self {
        Self::Directory { device: mount.device, root: mount.root.clone() }
    }

    /// How this mount shows the volume, if it does.
    pub(crate) fn kind_of(&self, mount: &Mount) -> Option<Kind> {
        let shows = match self {
            Self::Device(node) => return node.kind_of(mount),
            // The kernel may answer with a more exact type than it was asked for (nfs: nfs4).
            Self::Source { fs_type, source } => {
                mount.fs_type.starts_with(fs_type.as_str()) && mount.source == *source
            }
            Self::Directory { device, root } => mount.device == *device && mount.root == *root,
        };
        shows.then_some(Kind::Filesystem)
    }

    /// Whether the volume is at a path, and as it should be.
    pub(crate) fn at<'a>(&self, table: &'a MountTable, path: &Path, wanted: &Wanted) -> At<'a> {
        let Some(mount) = table.at(path) else { return At::Nothing };
        let Some(kind) = self.kind_of(mount) else { return At::Foreign(mount) };
        if kind != wanted.kind {
            return At::Incompatible(match kind {
                Kind::Filesystem => "it is mounted there as a file system, not as a raw device".into(),
                Kind::Raw => "it is there as a raw device, not as a file system".into(),
            });
        }
        if let Some(fs) = wanted.fs.filter(|fs| fs.as_str() != mount.fs_type) {
            return At::Incompatible(format!("it is mounted there as {}, not as {fs}", mount.fs_type));
        }
        match (is_read_only(mount), wanted.read_only) {
            (true, false) => At::Incompatible("it is read-only there, and is asked for writable".into()),
            (false, true) => At::Incompatible("it is writable there, and is asked for read-only".into()),
            (true, true) | (false, false) => At::Same,
        }
    }
}

/// Whether this mount was made read-only. Unlike [`Mount::is_read_only`] it does not count a file system that
/// became read-only under a writable mount: that is an error of the file system, not how it was mounted.
pub(crate) fn is_read_only(mount: &Mount) -> bool {
    has(&mount.options, "ro")
}

/// Whether the file system became read-only by itself under this writable mount, as it does after errors.
pub(crate) fn turned_read_only(mount: &Mount) -> bool {
    !is_read_only(mount) && (has(&mount.super_options, "ro") || has(&mount.super_options, "emergency_ro"))
}

fn has(options: &[String], wanted: &str) -> bool {
    options.iter().any(|option| option == wanted)
}

/// Whether the device that a mount shows is gone, so that nobody can read or write through it any more. A volume
/// that comes back does so as another device, and its old mounts are nobody's. `exists` is asked for a number.
pub(crate) fn is_lost<E>(
    mount: &Mount,
    exists: impl FnOnce((u32, u32)) -> Result<bool, E>,
) -> Result<bool, E> {
    // A device node that was removed; the kernel marks it so.
    if mount.fs_type == "devtmpfs" {
        return Ok(mount.root.as_os_str().as_encoded_bytes().ends_with(b"//deleted"));
    }
    // With major 0 are file systems that are on no device.
    Ok(mount.device.0 != 0 && !exists(mount.device)?)
}

/// A mount, for a message.
pub(crate) fn describe(mount: &Mount) -> String {
    format!("{} from {} ({})", mount.fs_type, mount.source, mount.root.display())
}

/// Mount points, for a message.
pub(crate) fn list<'a>(mounts: impl IntoIterator<Item = &'a Mount>) -> String {
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

    fn device(minor: u32) -> Identity {
        Identity::Device(DeviceNode { path: format!("/dev/loop{minor}").into(), number: (7, minor) })
    }

    const MOUNT: Wanted = Wanted { kind: Kind::Filesystem, fs: None, read_only: false };
    const RAW: Wanted = Wanted { kind: Kind::Raw, fs: None, read_only: false };

    #[test]
    fn what_is_at_a_path() {
        let table = table();
        let at = |identity: &Identity, path: &str, wanted: Wanted| match identity.at(
            &table,
            Path::new(path),
            &wanted,
        ) {
            At::Nothing => "nothing",
            At::Same => "same",
            At::Incompatible(_) => "incompatible",
            At::Foreign(_) => "foreign",
        };
        let ext4 = Wanted { fs: Some(FsType::Ext4), ..MOUNT };
        let xfs = Wanted { fs: Some(FsType::Xfs), ..MOUNT };
        let ro = Wanted { read_only: true, ..MOUNT };
        for (minor, path, wanted, expected) in [
            (1, "/stage/0", MOUNT, "nothing"),
            (1, "/stage/1", MOUNT, "same"),
            (1, "/stage/1", ext4, "same"),
            (1, "/stage/1", xfs, "incompatible"),
            (1, "/stage/1", ro, "incompatible"),
            (1, "/stage/1", RAW, "incompatible"),
            (1, "/pod/1", ro, "same"),
            (1, "/pod/1", MOUNT, "incompatible"),
            (1, "/stage/2", MOUNT, "foreign"),
            (2, "/stage/2", MOUNT, "same"),
            (3, "/pod/3", RAW, "same"),
            (3, "/pod/3", MOUNT, "incompatible"),
            (2, "/pod/3", RAW, "foreign"),
            (4, "/stage/4", MOUNT, "same"),
        ] {
            assert_eq!(at(&device(minor), path, wanted), expected, "loop{minor} at {path}, {wanted:?}");
        }
    }

    #[test]
    fn all_uses_of_a_device() {
        let table = table();
        for (minor, expected) in
            [(1, "/stage/1, /pod/1"), (2, "/stage/2"), (3, "/pod/3"), (4, "/stage/4"), (9, "")]
        {
            let Identity::Device(node) = device(minor) else { unreachable!() };
            assert_eq!(list(node.uses(&table)), expected);
        }
    }

    #[test]
    fn a_volume_without_a_known_device_is_in_use_where_its_file_system_is() {
        let table = table();
        for (path, expected) in [
            ("/stage/0", ""),
            ("/stage/1", "/stage/1, /pod/1"),
            ("/stage/4", "/stage/4"),
            // On no device, and a directory of somebody else's file system.
            ("/stage/5", ""),
            ("/stage/6", ""),
        ] {
            assert_eq!(list(same_filesystem(&table, Path::new(path))), expected, "{path}");
        }
    }

    /// 7:4 is gone, and all the others are there.
    #[test]
    fn a_mount_whose_device_is_gone_is_lost() {
        const MORE: &str = "38 20 0:6 /loop9//deleted /pod/9 rw - devtmpfs devtmpfs rw\n";
        let table = MountTable::parse(format!("{TABLE}{MORE}").as_bytes()).unwrap();
        let exists = |number| Ok::<_, ()>(number != (7, 4) && number != (0, 60));
        let lost: Vec<&Mount> =
            table.mounts().iter().filter(|mount| is_lost(mount, exists).unwrap()).collect();
        assert_eq!(list(lost), "/stage/4, /pod/9");
        // Who cannot tell does not say that it is.
        assert!(is_lost(table.at(Path::new("/stage/1")).unwrap(), |_| Err(())).is_err());
    }

    #[test]
    fn shares_are_known_by_what_was_mounted() {
        let table = table();
        let share = |fs_type: &str, source: &str| {
            let (fs_type, source) = (fs_type.to_owned(), source.to_owned());
            Identity::of_share(&MountSource { source, fs_type, options: Vec::new() }, &table).unwrap()
        };
        let same = |identity: Identity, path: &str| identity.at(&table, Path::new(path), &MOUNT) == At::Same;
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
    fn an_error_that_made_a_file_system_read_only_is_told_from_a_read_only_mount() {
        let table = table();
        let turned = |path: &str| turned_read_only(table.at(Path::new(path)).unwrap());
        assert!(turned("/stage/4"));
        assert!(!turned("/pod/1") && !turned("/stage/1"));
    }
}
