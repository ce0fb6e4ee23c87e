//! The node half: a volume's device on this droplet, found by the volume's name, without a token.
//!
//! What it promises: a device is answered only if it is whole (see [`device`]), and is waited for until it is; its
//! true size is told. What must not be forgotten is noted on the disk ([`notes`]); what the existing driver staged
//! before us has no note, and is found by what is mounted.

mod device;
mod notes;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use wharf_driver::backend::{
    BackendError, Device, DeviceError, Devices, Format, FormatRecords, StageVolume, Trace,
};
use wharf_linux::Kernel;

use self::device::{Places, Seen, Verdict, judge};
use self::notes::{Disk, Formatting, Note, Notes};
use self::watch::Watch;
use crate::names::{PublishKeys, never_formats};
use crate::size;

/// How long an attached volume's device may take to appear. Kubelet waits two minutes for a stage.
const APPEARS_WITHIN: Duration = Duration::from_secs(60);
/// How long the kernel may take to tell of an expansion.
const GROWS_WITHIN: Duration = Duration::from_secs(10);
/// How often is looked where no news comes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How the node half is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOptions {
    /// The driver's name, of which the publish context's keys are made.
    pub driver_name: String,
    /// Where links to devices are: `/dev/disk/by-id`.
    pub device_dir: PathBuf,
    /// Where notes are kept; made if it is not there.
    pub state_dir: PathBuf,
}

/// Volumes as devices of this droplet.
#[derive(Clone)]
pub struct NodeDevices {
    kernel: Arc<dyn Kernel>,
    notes: Notes,
    places: Places,
    keys: PublishKeys,
    boot: String,
}

impl NodeDevices {
    /// Makes the directory for the notes.
    pub fn new(kernel: Arc<dyn Kernel>, options: NodeOptions) -> Result<Self, NodeSetupError> {
        let NodeOptions { driver_name, device_dir, state_dir } = options;
        let failed = |source| NodeSetupError { state_dir: state_dir.clone(), source };
        std::fs::create_dir_all(&state_dir).map_err(failed)?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Self {
            notes: Notes::new(kernel.clone(), state_dir),
            kernel,
            places: Places { links: device_dir, devices: "/dev".into(), sysfs: "/sys".into() },
            keys: PublishKeys::of(&driver_name),
            boot: boot.trim().to_owned(),
        })
    }

    /// Does some steps where they may block. They run to their end even if nobody waits for them any more.
    async fn run<T: Send + 'static>(
        &self,
        steps: impl FnOnce(&Self) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let this = self.clone();
        let broke_off = |error| Err(internal(format!("the operation broke off: {error}")));
        tokio::task::spawn_blocking(move || steps(&this)).await.unwrap_or_else(broke_off)
    }

    /// Waits until the volume's device can be used, and is as large as this.
    async fn usable(&self, name: &str, at_least: u64, within: Duration) -> Result<Device, DeviceError> {
        let end = Instant::now() + within;
        let watch = Watch::new();
        loop {
            watch.add(&self.places.links);
            let wanted = name.to_owned();
            let seen = self.run(move |this| Ok(this.places.look(&*this.kernel, &wanted))).await?;
            let why = match (judge(&seen, at_least), seen) {
                (Verdict::Usable(size), Seen::Device(look)) => {
                    return Ok(Device { path: look.path, size, read_only: look.read_only });
                }
                (Verdict::TooSmall(why), Seen::Device(look)) => {
                    self.run(move |this| {
                        this.places.rescan(&look.path);
                        Ok(())
                    })
                    .await?;
                    why
                }
                (Verdict::Never(why), _) => {
                    return Err(DeviceError::NotOurs(format!(
                        "{}: {why}; nothing was written to it",
                        self.places.link_of(name).display()
                    )));
                }
                (Verdict::NotYet(why) | Verdict::TooSmall(why), _) => why,
                (Verdict::Usable(_), _) => "it is no device".to_owned(),
            };
            if Instant::now() >= end {
                return Err(BackendError::Unavailable(format!(
                    "{} cannot be used after {} s: {why}; it is looked at again with the next call, see whether \
                     the volume is attached to this droplet",
                    self.places.link_of(name).display(),
                    within.as_secs()
                ))
                .into());
            }
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(LOOK_EVERY.min(end - Instant::now())) => {}
            }
        }
    }

    /// The volume's name, as its attachment has it.
    fn name_in(&self, context: &BTreeMap<String, String>) -> Result<String, DeviceError> {
        let key = &self.keys.volume_name;
        let name = context.get(key).map(String::as_str).unwrap_or_default();
        if name.is_empty() || name.contains(['/', '\0']) || name.len() > 200 {
            return Err(DeviceError::Invalid(format!(
                "publish_context.{key} must be the name of a DigitalOcean volume, and is {name:?}: was the volume \
                 attached by a driver of another name? (see --driver-name)"
            )));
        }
        Ok(name.to_owned())
    }

    /// Its size when it was attached; 0 in attachments of the existing driver, which does not tell it.
    fn size_in(&self, context: &BTreeMap<String, String>) -> Result<u64, DeviceError> {
        let key = &self.keys.size;
        context.get(key).map_or(Ok(0), |size| {
            size.parse()
                .map_err(|_| DeviceError::Invalid(format!("publish_context.{key} is {size:?}: not bytes")))
        })
    }

    /// Notes the volume's name, and keeps what else is noted if it still is of the same disk.
    fn note(&self, id: &str, name: &str) -> Result<(), DeviceError> {
        let noted = self.notes.read(id).map_err(failed)?.filter(|note| note.name == name);
        let note = noted.unwrap_or_else(|| Note::new(name));
        match self.notes.write(id, &note).map_err(failed)? {
            true => Ok(()),
            false => Err(DeviceError::NotFound(format!("DigitalOcean has no volume with the id {id:?}"))),
        }
    }

    /// The device of a name, whatever state it is in: to let go of it, it need not be whole.
    fn present(&self, name: &str) -> Option<Device> {
        match self.places.look(&*self.kernel, name) {
            Seen::Device(look) => {
                Some(Device { path: look.path, size: look.size.unwrap_or(0), read_only: look.read_only })
            }
            Seen::Missing | Seen::Unknown(_) | Seen::Astray(_) | Seen::Another(_) => None,
        }
    }

    fn noted(&self, id: &str) -> Result<Option<(Note, Option<Device>)>, DeviceError> {
        let note = self.notes.read(id).map_err(failed)?;
        Ok(note.map(|note| {
            let device = self.present(&note.name);
            (note, device)
        }))
    }

    /// Which appearance of a disk a device is, where the kernel tells.
    fn disk(&self, device: &Path) -> Option<Disk> {
        let sequence = self.places.sequence_of(device)?;
        (!self.boot.is_empty()).then(|| Disk { boot: self.boot.clone(), sequence })
    }

    /// The format that was begun on the very disk that is there now.
    fn begun<'a>(&self, note: &'a Note, device: Option<&Device>) -> Option<&'a Formatting> {
        let disk = device.and_then(|device| self.disk(&device.path))?;
        note.formatting.as_ref().filter(|formatting| formatting.disk == disk)
    }
}

#[async_trait]
impl Devices for NodeDevices {
    async fn attach(&self, volume: &StageVolume) -> Result<Device, DeviceError> {
        let name = self.name_in(&volume.publish_context)?;
        let at_least = self.size_in(&volume.publish_context)?;
        let (id, noted) = (volume.id.clone(), name.clone());
        self.run(move |this| this.note(&id, &noted)).await?;
        self.usable(&name, at_least, APPEARS_WITHIN).await
    }

    async fn find(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let id = id.to_owned();
        self.run(move |this| Ok(this.noted(&id)?.and_then(|(_, device)| device))).await
    }

    async fn adopt(&self, id: &str, trace: Trace<'_>) -> Result<Option<Device>, DeviceError> {
        let (id, trace) = match trace {
            Trace::Published(context) => (id.to_owned(), Ok(self.name_in(context)?)),
            Trace::Mounted(device) => (id.to_owned(), Err(device.to_owned())),
        };
        self.run(move |this| {
            let name = match trace {
                Ok(name) => Some(name),
                // No links at all, or none to it: nothing of DigitalOcean's.
                Err(device) => this.places.name_of(&device).unwrap_or_default(),
            };
            let Some(name) = name else { return Ok(None) };
            if let Some(other) = this.notes.other_of(&name, &id).map_err(failed)? {
                tracing::warn!(
                    id,
                    name,
                    other,
                    "a device that should be one volume's is another's by its note"
                );
                return Ok(None);
            }
            let Some(device) = this.present(&name) else { return Ok(None) };
            this.note(&id, &name)?;
            tracing::info!(id, name, device = %device.path.display(), "taken over as it was staged");
            Ok(Some(device))
        })
        .await
    }

    async fn detach(&self, id: &str) -> Result<(), DeviceError> {
        let id = id.to_owned();
        self.run(move |this| match this.noted(&id)? {
            // What mkfs left can only be made whole as long as it is known what it is.
            Some((note, device)) if this.begun(&note, device.as_ref()).is_some() => Ok(()),
            Some(_) | None => this.notes.remove(&id).map_err(failed),
        })
        .await
    }

    async fn refresh(&self, id: &str, at_least: u64) -> Result<Device, DeviceError> {
        let (volume, not_here) =
            (id.to_owned(), || DeviceError::NotFound(format!("{id} is not staged here")));
        let noted = self.run(move |this| this.noted(&volume)).await?;
        let (note, device) = noted.ok_or_else(not_here)?;
        let device = device.ok_or_else(not_here)?;
        self.run(move |this| {
            this.places.rescan(&device.path);
            Ok(())
        })
        .await?;
        let whole = self.least_for(at_least);
        match self.usable(&note.name, at_least, GROWS_WITHIN).await {
            // It will not come: the existing driver has asked for no more.
            Err(error) if whole < at_least => {
                let device = self.usable(&note.name, whole, Duration::ZERO).await.map_err(|_| error)?;
                tracing::warn!(
                    id,
                    size = device.size,
                    asked = at_least,
                    "taken as it is: the driver before this one rounded the size down; expand it once more"
                );
                Ok(device)
            }
            answer => answer,
        }
    }

    fn least_for(&self, required: u64) -> u64 {
        size::rounded_down(required)
    }

    fn never_formats(&self, volume: &StageVolume) -> bool {
        never_formats(&volume.volume_context)
    }

    fn records(&self) -> Option<&dyn FormatRecords> {
        Some(self)
    }
}

/// Only a format that was begun is recorded, so that it can be begun again after a crash. A volume's history is
/// nowhere to be had: it may have been formatted by the existing driver, or on another node.
#[async_trait]
impl FormatRecords for NodeDevices {
    async fn format(&self, id: &str) -> Result<Option<Format>, DeviceError> {
        let id = id.to_owned();
        self.run(move |this| {
            let Some((note, device)) = this.noted(&id)? else { return Ok(None) };
            let begun = this.begun(&note, device.as_ref());
            Ok(begun.map(|begun| Format::Formatting { fs: begun.fs, uuid: begun.uuid.clone() }))
        })
        .await
    }

    async fn set_format(&self, id: &str, format: &Format) -> Result<(), DeviceError> {
        let (id, format) = (id.to_owned(), format.clone());
        self.run(move |this| {
            let Some((note, device)) = this.noted(&id)? else {
                return Err(internal(format!("{id} has no note, which is written before anything else")));
            };
            let formatting = match format {
                Format::Formatting { fs, uuid } => device
                    .and_then(|device| this.disk(&device.path))
                    .map(|disk| Formatting { fs, uuid, disk }),
                Format::Formatted { .. } | Format::Blank | Format::Copied { .. } | Format::Raw => None,
            };
            this.notes.write(&id, &Note { formatting, ..note }).map_err(failed).map(drop)
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

/// Why there is no node half.
#[derive(Debug, thiserror::Error)]
#[error("the directory for notes of volumes, {}, cannot be made: {source}", state_dir.display())]
pub struct NodeSetupError {
    state_dir: PathBuf,
    source: std::io::Error,
}
