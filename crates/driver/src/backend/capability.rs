//! How a volume is used: CSI's VolumeCapability, validated.

use std::fmt;

/// CSI's access modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// One node, any number of writers on it (for older orchestrators).
    SingleNodeWriter,
    /// One node, readers only.
    SingleNodeReaderOnly,
    /// Many nodes, readers only.
    MultiNodeReaderOnly,
    /// Many nodes, one writer.
    MultiNodeSingleWriter,
    /// Many nodes, many writers.
    MultiNodeMultiWriter,
    /// One node, one pod: ReadWriteOncePod.
    SingleNodeSingleWriter,
    /// One node, many pods.
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// Whether the volume is used by at most one node at a time.
    pub fn is_single_node(self) -> bool {
        !matches!(self, Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter)
    }

    /// Whether the mode allows no writes.
    pub fn is_reader_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }
}

/// How a pod accesses a volume: CSI's access type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeAccess {
    /// As a raw block device.
    Block,
    /// As a mounted file system.
    Mount(MountAccess),
}

/// How a file system is mounted: CSI's MountVolume.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountAccess {
    /// The requested file system type; empty for the driver's default.
    pub fs_type: String,
    /// `mount -o` options; can contain secrets, so they are never printed.
    pub flags: Vec<String>,
    /// The group that must be able to use the volume: the pod's fsGroup. Only for backends that declare
    /// [`Shares::mount_group`](super::Shares::mount_group).
    pub mount_group: Option<u32>,
}

impl MountAccess {
    /// A mount of this type without options.
    pub fn new(fs_type: impl Into<String>) -> Self {
        Self { fs_type: fs_type.into(), ..Self::default() }
    }

    /// Sets the `mount -o` options.
    pub fn flags(mut self, flags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.flags = flags.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the group that must be able to use the volume.
    pub fn mount_group(mut self, mount_group: impl Into<Option<u32>>) -> Self {
        self.mount_group = mount_group.into();
        self
    }
}

impl fmt::Debug for MountAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fs_type, flags, mount_group } = self;
        f.debug_struct("MountAccess")
            .field("fs_type", fs_type)
            .field("flags", &format_args!("{} flags", flags.len()))
            .field("mount_group", mount_group)
            .finish()
    }
}

/// One way in which a volume is used: CSI's VolumeCapability.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capability {
    /// Block device or file system.
    pub access: VolumeAccess,
    /// The access mode: how many nodes and pods use the volume.
    pub mode: AccessMode,
}

impl Capability {
    /// A capability.
    pub fn new(access: VolumeAccess, mode: AccessMode) -> Self {
        Self { access, mode }
    }

    /// A raw block device.
    pub fn block(mode: AccessMode) -> Self {
        Self::new(VolumeAccess::Block, mode)
    }

    /// A file system of this type, mounted without options. An empty type is the driver's default.
    pub fn mount(fs_type: impl Into<String>, mode: AccessMode) -> Self {
        Self::new(VolumeAccess::Mount(MountAccess::new(fs_type)), mode)
    }
}
