//! Block volumes on this node: a device of the backend's, staged as a file system or left raw.
//!
//! The story of one is told in `stage.rs` (attach, prepare, mount, and back), `prepare.rs` (safe format),
//! `publish.rs` (bind), `expand.rs`, `stats.rs` and `health.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::FsType;

use super::error::NodeError;
use super::machine::Machine;
use super::mounts::{Kind, Wanted, shown_by};
use crate::backend::{Device, DeviceError, Devices, StageVolume, Trace, VolumeAccess};

/// Key of the volume context under which options for mkfs are handed down from CreateVolume.
const MKFS_OPTIONS: &str = "mkfsOptions";

/// The node half of a block backend.
#[derive(Clone)]
pub(crate) struct Block {
    pub(super) machine: Machine,
    pub(super) devices: Arc<dyn Devices>,
}

/// What of a request concerns the file system.
#[derive(Clone)]
pub(super) struct FsRequest {
    /// The type; `None` takes what is there, and ext4 where there is nothing.
    pub(super) fs: Option<FsType>,
    /// Words for mkfs.
    pub(super) mkfs_options: Vec<String>,
    /// `mount -o` options. May hold secrets.
    pub(super) flags: Vec<String>,
    /// Mount read-only.
    pub(super) read_only: bool,
}

impl FsRequest {
    /// `None` for a raw volume.
    pub(super) fn of(volume: &StageVolume) -> Result<Option<Self>, NodeError> {
        let VolumeAccess::Mount { fs_type, flags } = &volume.capability.access else { return Ok(None) };
        let fs = fs_type_of(fs_type)?;
        let words = volume.volume_context.get(MKFS_OPTIONS).map(String::as_str).unwrap_or_default();
        let mkfs_options: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        wharf_linux::check_mkfs_options(fs.unwrap_or(FsType::Ext4), &mkfs_options)
            .map_err(|problem| NodeError::Invalid(format!("volume_context.{MKFS_OPTIONS}: {problem}")))?;
        let read_only = volume.capability.mode.is_reader_only() || flags.iter().any(|flag| flag == "ro");
        Ok(Some(Self { fs, mkfs_options, flags: flags.clone(), read_only }))
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted { kind: Kind::Filesystem, fs: self.fs, read_only: self.read_only }
    }
}

/// The type asked for; `None` for no wish.
pub(super) fn fs_type_of(name: &str) -> Result<Option<FsType>, NodeError> {
    match name {
        "" => Ok(None),
        name => name
            .parse()
            .map(Some)
            .map_err(|error: wharf_linux::UnknownFsType| NodeError::Invalid(error.to_string())),
    }
}

/// A directory of our own beneath the staging path, for what must be mounted before the volume may be: not
/// the staging path itself, where a half-prepared volume would be taken for a staged one after a crash.
pub(super) fn scratch_of(staging: &Path) -> PathBuf {
    staging.join(".wharf-scratch")
}

impl Block {
    /// The device of a volume that is attached here; `None` if it is not, or if there is no such volume.
    pub(super) async fn attached(&self, id: &str) -> Result<Option<Device>, NodeError> {
        match self.devices.find(id).await {
            Err(DeviceError::NotFound(_)) => Ok(None),
            answer => Ok(answer?),
        }
    }

    /// Likewise of a volume that should be at this path: what is mounted there may tell what the backend has no
    /// note of.
    pub(super) async fn attached_at(&self, id: &str, path: &Path) -> Result<Option<Device>, NodeError> {
        match self.find_at(id, path).await {
            Err(NodeError::Device(DeviceError::NotFound(_))) => Ok(None),
            answer => answer,
        }
    }

    /// The same, of a volume that must exist.
    pub(super) async fn find_at(&self, id: &str, path: &Path) -> Result<Option<Device>, NodeError> {
        if let Some(device) = self.devices.find(id).await? {
            return Ok(Some(device));
        }
        let at = path.to_owned();
        let shown = self.machine.run(move |kernel| {
            let at = kernel.resolve(&at)?;
            Ok(kernel.mount_table()?.at(&at).and_then(|mount| shown_by(kernel, mount)))
        });
        match shown.await? {
            Some(shown) => Ok(self.devices.adopt(id, Trace::Mounted(&shown)).await?),
            None => Ok(None),
        }
    }
}
