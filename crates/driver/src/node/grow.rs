//! The end of a stage: checks the file system, mounts it, and grows it to the size of its device.
//!
//! A file system grows while it is mounted where the kernel can do that: an interruption is harmless then, because the kernel
//! grows it in transactions. Offline, resize2fs moves metadata, and its interruption can leave damage that a check repairs only
//! if it may discard data. So the backend's record says that an offline growth is in progress, from after a full check without
//! findings until the result was checked: damage found in between is repaired. All other damage is reported and not touched.

use std::path::Path;

use wharf_linux::{FsCheck, FsError, FsType, Kernel, MountRequest};

use super::block::{Block, FsRequest};
use super::error::NodeError;
use super::fs_size::can_grow;
use super::prepare::Prepared;
use super::stage::mount_verified;
use crate::backend::Device;

/// Lets xfs mount a file system while another one with the same UUID is mounted.
const NO_UUID: &str = "nouuid";

impl Block {
    /// Checks the file system, mounts it, and grows it to the size of its device.
    pub(super) async fn mount(
        &self,
        id: &str,
        device: &Device,
        Prepared { fs, own_uuid }: Prepared,
        staging: &Path,
        request: &FsRequest,
    ) -> Result<(), NodeError> {
        if !device.read_only {
            self.check(id, device, fs).await?;
        }
        let (found, wanted) = (device.clone(), !request.read_only);
        let grows = self.kernel.run(move |kernel| Growth::of(kernel, &found, fs, wanted)).await?;
        if grows == Growth::Offline {
            self.grow_offline(id, device, fs).await?;
        }
        let mount = |grows_online| {
            let (device, staging, request) = (device.clone(), staging.to_owned(), request.clone());
            let mut options = request.flags.clone();
            if fs == FsType::Xfs && !own_uuid && !options.iter().any(|option| option == NO_UUID) {
                options.push(NO_UUID.to_owned());
            }
            self.kernel.run(move |kernel| {
                let request = MountOptions { options, read_only: request.read_only, grows_online };
                mount(kernel, &device, fs, &staging, &request)
            })
        };
        if mount(grows == Growth::Online).await? == Mounted::NotGrown {
            self.grow_offline(id, device, fs).await?;
            mount(false).await?;
        }
        Ok(())
    }

    /// Repairs what an interrupted offline growth left, and nothing else.
    async fn check(&self, id: &str, device: &Device, fs: FsType) -> Result<(), NodeError> {
        let records = self.devices.format_records();
        let growing = match records {
            Some(records) => records.is_growing_offline(id).await?,
            None => false,
        };
        let (path, volume) = (device.path.clone(), id.to_owned());
        self.kernel.run(move |kernel| check(kernel, &volume, &path, fs, growing)).await?;
        match records.filter(|_| growing) {
            Some(records) => Ok(records.set_growing_offline(id, false).await?),
            None => Ok(()),
        }
    }

    /// The full check is first: resize2fs requires it, and damage that it finds does not come from growing.
    async fn grow_offline(&self, id: &str, device: &Device, fs: FsType) -> Result<(), NodeError> {
        let path = device.path.clone();
        self.kernel.run(move |kernel| Ok(kernel.check_fs(&path, fs, FsCheck::Full)?)).await?;
        let records = self.devices.format_records();
        if let Some(records) = records {
            records.set_growing_offline(id, true).await?;
        }
        let path = device.path.clone();
        self.kernel.run(move |kernel| Ok(kernel.grow_fs(&path, fs, None)?)).await?;
        match records {
            Some(records) => Ok(records.set_growing_offline(id, false).await?),
            None => Ok(()),
        }
    }
}

/// How a file system that is not mounted gets the size of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    NotNeeded,
    /// After the mount.
    Online,
    /// Before the mount.
    Offline,
}

impl Growth {
    fn of(kernel: &dyn Kernel, device: &Device, fs: FsType, wanted: bool) -> Result<Self, NodeError> {
        if !wanted || !can_grow(kernel, &device.path, fs)? {
            return Ok(Self::NotNeeded);
        }
        Ok(if kernel.can_grow_online(fs).is_ok() { Self::Online } else { Self::Offline })
    }
}

fn check(kernel: &dyn Kernel, id: &str, device: &Path, fs: FsType, growing: bool) -> Result<(), NodeError> {
    if !growing {
        return Ok(kernel.check_fs(device, fs, FsCheck::BeforeMount)?);
    }
    match kernel.check_fs(device, fs, FsCheck::Full) {
        Err(FsError::Damaged { details, .. }) => {
            tracing::warn!(
                volume_handle = id,
                device = %device.display(),
                details,
                "growing the file system was interrupted; repairing it"
            );
            Ok(kernel.check_fs(device, fs, FsCheck::Repair)?)
        }
        result => Ok(result?),
    }
}

/// The result of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mounted {
    Complete,
    /// Not mounted, because the file system has to grow offline.
    NotGrown,
}

/// How a file system is mounted.
struct MountOptions {
    options: Vec<String>,
    read_only: bool,
    /// Grow it after the mount.
    grows_online: bool,
}

fn mount(
    kernel: &dyn Kernel,
    device: &Device,
    fs: FsType,
    staging: &Path,
    request: &MountOptions,
) -> Result<Mounted, NodeError> {
    kernel.create_target_dir(staging)?;
    let staging = kernel.resolve(staging)?;
    let mount = MountRequest {
        source: &device.path.to_string_lossy(),
        target: &staging,
        fs_type: fs.as_str(),
        options: &request.options,
        read_only: request.read_only,
    };
    mount_verified(kernel, device, &mount)?;
    if !request.grows_online {
        return Ok(Mounted::Complete);
    }
    match kernel.grow_fs(&device.path, fs, Some(&staging)) {
        Ok(()) => Ok(Mounted::Complete),
        Err(error) if fs == FsType::Ext4 => {
            tracing::warn!(%error, "failed to grow mounted file system; growing it offline");
            kernel.unmount(&staging)?;
            Ok(Mounted::NotGrown)
        }
        Err(error) => Err(error.into()),
    }
}
