//! Block volumes on this node: a device of the backend, staged as a file system or used as a raw device.
//!
//! The operations are in `stage.rs` (attach, prepare, mount and the reverse), `prepare.rs` (safe format), `publish.rs`
//! (bind), `expand.rs`, `stats.rs` and `health.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::FsType;

use super::blocking_kernel::BlockingKernel;
use super::error::NodeError;
use super::mounts::{ExpectedMount, VolumeMode, device_of_mount};
use crate::backend::{AdoptionHint, Device, DeviceError, Devices, MountAccess, NodeVolume, VolumeAccess};

/// The key in the volume context under which CreateVolume stores the mkfs options.
const MKFS_OPTIONS: &str = "mkfsOptions";

/// The node part of a block backend.
#[derive(Clone)]
pub(crate) struct Block {
    pub(super) kernel: BlockingKernel,
    pub(super) devices: Arc<dyn Devices>,
}

/// The file system options of a request.
#[derive(Clone)]
pub(super) struct FsRequest {
    /// The type; `None` accepts an existing file system, and ext4 on a blank device.
    pub(super) fs: Option<FsType>,
    /// Arguments for mkfs.
    pub(super) mkfs_options: Vec<String>,
    /// `mount -o` options. Can contain secrets.
    pub(super) flags: Vec<String>,
    /// Mount read-only.
    pub(super) read_only: bool,
}

impl FsRequest {
    /// `None` for a raw volume.
    pub(super) fn from_volume(volume: &NodeVolume) -> Result<Option<Self>, NodeError> {
        let VolumeAccess::Mount(MountAccess { fs_type, flags, .. }) = &volume.capability.access else {
            return Ok(None);
        };
        let fs = fs_type_of(fs_type)?;
        let options = volume.volume_context.get(MKFS_OPTIONS).map(String::as_str).unwrap_or_default();
        let mkfs_options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        wharf_linux::check_mkfs_options(fs.unwrap_or(FsType::Ext4), &mkfs_options)
            .map_err(|problem| NodeError::Invalid(format!("volume_context.{MKFS_OPTIONS}: {problem}")))?;
        let read_only = volume.capability.mode.is_reader_only() || flags.iter().any(|flag| flag == "ro");
        Ok(Some(Self { fs, mkfs_options, flags: flags.clone(), read_only }))
    }

    /// The mount that fulfils the request.
    pub(super) fn expected_mount(&self) -> ExpectedMount {
        ExpectedMount { mode: VolumeMode::Filesystem, fs: self.fs, read_only: self.read_only }
    }
}

/// The requested file system type; `None` if the request does not specify one.
pub(super) fn fs_type_of(name: &str) -> Result<Option<FsType>, NodeError> {
    match name {
        "" => Ok(None),
        name => name
            .parse()
            .map(Some)
            .map_err(|error: wharf_linux::UnknownFsType| NodeError::Invalid(error.to_string())),
    }
}

/// A directory beneath the staging path for mounts that are needed while a volume is prepared. Not the staging path itself:
/// after a crash a half-prepared volume there would be taken for a staged one.
pub(super) fn scratch_dir(staging: &Path) -> PathBuf {
    staging.join(".wharf-scratch")
}

impl Block {
    /// The device of a volume that is attached on this node; `None` if it is not attached or does not exist.
    pub(super) async fn find_attached(&self, id: &str) -> Result<Option<Device>, NodeError> {
        match self.devices.find(id).await {
            Err(DeviceError::NotFound(_)) => Ok(None),
            result => Ok(result?),
        }
    }

    /// Like [`Self::find_attached`], for a volume that should be mounted at `path`: if the backend has no record of the
    /// device, the mount identifies it.
    pub(super) async fn find_attached_at(&self, id: &str, path: &Path) -> Result<Option<Device>, NodeError> {
        match self.find_at(id, path).await {
            Err(NodeError::Device(DeviceError::NotFound(_))) => Ok(None),
            result => result,
        }
    }

    /// Like [`Self::find_attached_at`], but fails if the volume does not exist.
    pub(super) async fn find_at(&self, id: &str, path: &Path) -> Result<Option<Device>, NodeError> {
        if let Some(device) = self.devices.find(id).await? {
            return Ok(Some(device));
        }
        let at = path.to_owned();
        let mounted = self.kernel.run(move |kernel| {
            let at = kernel.resolve(&at)?;
            Ok(kernel.mount_table()?.at(&at).and_then(|mount| device_of_mount(kernel, mount)))
        });
        match mounted.await? {
            Some(device) => Ok(self.devices.adopt(id, AdoptionHint::Mounted(&device)).await?),
            None => Ok(None),
        }
    }
}
