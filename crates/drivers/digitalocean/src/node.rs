//! The node service's devices: finds a volume's device on this droplet by the volume's name, without an API token.
//!
//! A device is returned only when it is fully attached (see [`device`]), with its real size; until then the driver
//! waits. State that must survive a restart is stored in [`records`]. Volumes staged by the previous driver have no
//! record and are found by their mounts.

mod device;
mod records;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use wharf_driver::backend::{
    AdoptionHint, BackendError, Device, DeviceError, Devices, FormatRecords, FormatState, NodeVolume,
    RefreshDevice,
};
use wharf_linux::Kernel;

use self::device::{Assessment, DevicePaths, Observed, assess};
use self::records::{Disk, Formatting, NodeRecord, NodeRecords};
#[cfg(feature = "fuzzing")]
pub use self::records::{node_record_file, rewrite_node_record};
use self::watch::Watch;
use crate::names::{PublishKeys, never_formats};
use crate::size;

/// How long to wait for an attached volume's device. Kubelet waits two minutes for NodeStageVolume.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait until the kernel shows an expansion.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval without change notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Options of the node service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOptions {
    /// The driver's name, the prefix of the publish context's keys.
    pub driver_name: String,
    /// The directory with the links to devices: `/dev/disk/by-id`.
    pub device_dir: PathBuf,
    /// The directory for the records of volumes; created if it does not exist.
    pub state_dir: PathBuf,
}

/// Finds the block devices of volumes on this droplet.
#[derive(Clone)]
pub struct NodeDevices {
    kernel: Arc<dyn Kernel>,
    records: NodeRecords,
    paths: DevicePaths,
    keys: PublishKeys,
    boot: String,
}

impl NodeDevices {
    /// Creates the directory for the records.
    pub fn new(kernel: Arc<dyn Kernel>, options: NodeOptions) -> Result<Self, NodeSetupError> {
        let NodeOptions { driver_name, device_dir, state_dir } = options;
        let failed = |source| NodeSetupError { state_dir: state_dir.clone(), source };
        std::fs::create_dir_all(&state_dir).map_err(failed)?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Self {
            records: NodeRecords::new(kernel.clone(), state_dir),
            kernel,
            paths: DevicePaths { links: device_dir, devices: "/dev".into(), sysfs: "/sys".into() },
            keys: PublishKeys::of(&driver_name),
            boot: boot.trim().to_owned(),
        })
    }

    /// Runs `steps` on a blocking thread. They run to completion even if the caller is cancelled.
    async fn run<T: Send + 'static>(
        &self,
        steps: impl FnOnce(&Self) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let this = self.clone();
        let aborted = |error| Err(internal(format!("the operation did not complete: {error}")));
        tokio::task::spawn_blocking(move || steps(&this)).await.unwrap_or_else(aborted)
    }

    /// Waits until the volume's device can be used and has at least `at_least` bytes.
    async fn wait_for_device(
        &self,
        name: &str,
        at_least: u64,
        timeout: Duration,
    ) -> Result<Device, DeviceError> {
        let end = Instant::now() + timeout;
        let watch = Watch::new();
        loop {
            watch.add(&self.paths.links);
            let wanted = name.to_owned();
            let seen = self.run(move |this| Ok(this.paths.inspect(&*this.kernel, &wanted))).await?;
            let reason = match (assess(&seen, at_least), seen) {
                (Assessment::Usable(size), Observed::Device(info)) => {
                    return Ok(Device { path: info.path, size, read_only: info.read_only, reader: None });
                }
                (Assessment::TooSmall(reason), Observed::Device(info)) => {
                    self.run(move |this| {
                        this.paths.rescan(&info.path);
                        Ok(())
                    })
                    .await?;
                    reason
                }
                (Assessment::Invalid(reason), _) => {
                    return Err(DeviceError::WrongDevice(format!(
                        "{}: {reason}; nothing was written to it",
                        self.paths.link_of(name).display()
                    )));
                }
                (Assessment::NotReady(reason) | Assessment::TooSmall(reason), _) => reason,
                (Assessment::Usable(_), _) => "it is not a device".to_owned(),
            };
            if Instant::now() >= end {
                return Err(BackendError::Unavailable(format!(
                    "{} cannot be used after {} s: {reason}; the next call retries; check whether the \
                     volume is attached to this droplet",
                    self.paths.link_of(name).display(),
                    timeout.as_secs()
                ))
                .into());
            }
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(POLL_INTERVAL.min(end - Instant::now())) => {}
            }
        }
    }

    /// The volume's name from the publish context.
    fn name_in(&self, context: &BTreeMap<String, String>) -> Result<String, DeviceError> {
        let key = &self.keys.volume_name;
        let name = context.get(key).map(String::as_str).unwrap_or_default();
        if name.is_empty() || name.contains(['/', '\0']) || name.len() > 200 {
            return Err(DeviceError::Invalid(format!(
                "publish_context.{key} must be the name of a DigitalOcean volume, but is {name:?}: check whether the \
                 volume was attached by a driver with another name (see --driver-name)"
            )));
        }
        Ok(name.to_owned())
    }

    /// The volume's size at attach time; 0 for attachments of the existing driver, which does not report it.
    fn size_in(&self, context: &BTreeMap<String, String>) -> Result<u64, DeviceError> {
        let key = &self.keys.size;
        context.get(key).map_or(Ok(0), |size| {
            size.parse().map_err(|_| {
                DeviceError::Invalid(format!(
                    "publish_context.{key} is {size:?}, which is not a number of bytes"
                ))
            })
        })
    }

    /// Writes the volume's name to its record, and preserves the rest of the record if it is for the same name.
    fn write_record(&self, id: &str, name: &str) -> Result<(), DeviceError> {
        let existing = self.records.read(id).map_err(failed)?.filter(|record| record.name == name);
        let record = existing.unwrap_or_else(|| NodeRecord::new(name));
        match self.records.write(id, &record).map_err(failed)? {
            true => Ok(()),
            false => Err(DeviceError::NotFound(format!("{id:?} is not the ID of a DigitalOcean volume"))),
        }
    }

    /// The device with this name in any state: a detach does not need a usable device.
    fn current_device(&self, name: &str) -> Option<Device> {
        match self.paths.inspect(&*self.kernel, name) {
            Observed::Device(info) => {
                let size = info.size.unwrap_or(0);
                Some(Device { path: info.path, size, read_only: info.read_only, reader: None })
            }
            Observed::Missing | Observed::Unknown(_) | Observed::NotADevice(_) | Observed::WrongDevice(_) => {
                None
            }
        }
    }

    /// The volume's record, and its device if it is present.
    fn read_record(&self, id: &str) -> Result<Option<(NodeRecord, Option<Device>)>, DeviceError> {
        let record = self.records.read(id).map_err(failed)?;
        Ok(record.map(|record| {
            let device = self.current_device(&record.name);
            (record, device)
        }))
    }

    /// Identifies this attachment of the disk, if the kernel supports it.
    fn disk(&self, device: &Path) -> Option<Disk> {
        let sequence = self.paths.sequence_of(device)?;
        (!self.boot.is_empty()).then(|| Disk { boot: self.boot.clone(), sequence })
    }

    /// The format that was started on this same attachment of the disk.
    fn interrupted_format<'a>(
        &self,
        record: &'a NodeRecord,
        device: Option<&Device>,
    ) -> Option<&'a Formatting> {
        let disk = device.and_then(|device| self.disk(&device.path))?;
        record.formatting.as_ref().filter(|formatting| formatting.disk == disk)
    }
}

#[async_trait]
impl Devices for NodeDevices {
    async fn attach(&self, volume: &NodeVolume) -> Result<Device, DeviceError> {
        let name = self.name_in(&volume.publish_context)?;
        let at_least = self.size_in(&volume.publish_context)?;
        let (id, recorded_name) = (volume.id.clone(), name.clone());
        self.run(move |this| this.write_record(&id, &recorded_name)).await?;
        self.wait_for_device(&name, at_least, DEVICE_TIMEOUT).await
    }

    async fn find(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let id = id.to_owned();
        self.run(move |this| Ok(this.read_record(&id)?.and_then(|(_, device)| device))).await
    }

    async fn adopt(&self, id: &str, hint: AdoptionHint<'_>) -> Result<Option<Device>, DeviceError> {
        let (id, hint) = match hint {
            AdoptionHint::Published(context) => (id.to_owned(), Ok(self.name_in(context)?)),
            AdoptionHint::Mounted(device) => (id.to_owned(), Err(device.to_owned())),
            _ => return Ok(None),
        };
        self.run(move |this| {
            let name = match hint {
                Ok(name) => Some(name),
                // Without a link to this device, it is not a DigitalOcean volume.
                Err(device) => this.paths.volume_name_of(&device).unwrap_or_default(),
            };
            let Some(name) = name else { return Ok(None) };
            if let Some(other) = this.records.other_of(&name, &id).map_err(failed)? {
                tracing::warn!(
                    volume_handle = id,
                    volume_name = name,
                    other_volume_handle = other,
                    "did not adopt device: the record of another volume has the same volume name"
                );
                return Ok(None);
            }
            let Some(device) = this.current_device(&name) else { return Ok(None) };
            this.write_record(&id, &name)?;
            tracing::info!(volume_handle = id, name, device = %device.path.display(), "adopted volume staged by another driver");
            Ok(Some(device))
        })
        .await
    }

    async fn detach(&self, id: &str) -> Result<(), DeviceError> {
        let id = id.to_owned();
        self.run(move |this| match this.read_record(&id)? {
            // An interrupted format can be repeated only as long as its record exists.
            Some((record, device)) if this.interrupted_format(&record, device.as_ref()).is_some() => Ok(()),
            Some(_) | None => this.records.remove(&id).map_err(failed),
        })
        .await
    }

    async fn refresh(&self, request: &RefreshDevice) -> Result<Device, DeviceError> {
        let (id, at_least) = (&request.id, request.at_least);
        let (volume, not_staged) =
            (id.clone(), || DeviceError::NotFound(format!("volume {id} is not staged on this node")));
        let found = self.run(move |this| this.read_record(&volume)).await?;
        let (record, device) = found.ok_or_else(not_staged)?;
        let device = device.ok_or_else(not_staged)?;
        self.run(move |this| {
            this.paths.rescan(&device.path);
            Ok(())
        })
        .await?;
        let rounded_down = self.minimum_device_size(at_least);
        match self.wait_for_device(&record.name, at_least, RESIZE_TIMEOUT).await {
            // The previous driver requested only the rounded-down size, so the device will not become larger.
            Err(error) if rounded_down < at_least => {
                let device = self
                    .wait_for_device(&record.name, rounded_down, Duration::ZERO)
                    .await
                    .map_err(|_| error)?;
                tracing::warn!(
                    volume_handle = id,
                    size = device.size,
                    requested = at_least,
                    "accepted a smaller device: the previous driver rounded the size down; expand the volume again"
                );
                Ok(device)
            }
            result => result,
        }
    }

    fn minimum_device_size(&self, required: u64) -> u64 {
        size::rounded_down(required)
    }

    fn formatting_disabled(&self, volume: &NodeVolume) -> bool {
        never_formats(&volume.volume_context)
    }

    fn format_records(&self) -> Option<&dyn FormatRecords> {
        Some(self)
    }
}

/// Only a started format is recorded, so that it can be repeated after a crash. The volume's history is unknown: it may
/// have been formatted by the previous driver, or on another node.
#[async_trait]
impl FormatRecords for NodeDevices {
    async fn format(&self, id: &str) -> Result<Option<FormatState>, DeviceError> {
        let id = id.to_owned();
        self.run(move |this| {
            let Some((record, device)) = this.read_record(&id)? else { return Ok(None) };
            let format = this.interrupted_format(&record, device.as_ref());
            Ok(format.map(|format| FormatState::Formatting { fs: format.fs, uuid: format.uuid.clone() }))
        })
        .await
    }

    async fn set_format(&self, id: &str, format: &FormatState) -> Result<(), DeviceError> {
        let (id, format) = (id.to_owned(), format.clone());
        self.run(move |this| {
            let Some((record, device)) = this.read_record(&id)? else {
                return Err(internal(format!("volume {id} has no record, although attach writes it first")));
            };
            let formatting = match format {
                FormatState::Formatting { fs, uuid } => device
                    .and_then(|device| this.disk(&device.path))
                    .map(|disk| Formatting { fs, uuid, disk }),
                FormatState::Formatted { .. }
                | FormatState::Blank
                | FormatState::Copied { .. }
                | FormatState::Raw => None,
            };
            this.records.write(&id, &NodeRecord { formatting, ..record }).map_err(failed).map(drop)
        })
        .await
    }
}

fn failed(error: wharf_linux::Error) -> DeviceError {
    internal(error.to_string())
}

fn internal(message: String) -> DeviceError {
    BackendError::Internal(message).into()
}

/// The node's state directory could not be created.
#[derive(Debug, thiserror::Error)]
#[error("failed to create the state directory {}: {source}", state_dir.display())]
pub struct NodeSetupError {
    state_dir: PathBuf,
    source: std::io::Error,
}
