//! A minimal block backend: images in a directory, attached as loop devices, with a format record each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use async_trait::async_trait;
use wharf_driver::backend::{
    AdoptionHint, BackendError, Device, DeviceError, Devices, FormatRecords, FormatState, GetStorageHealth,
    GetVolumeHealth, Health, HealthIssue, NodeVolume, RefreshDevice, StorageIssue,
};
use wharf_linux::{BlockDevices as _, FileId, Linux, LoopDevice, LoopOptions, PathBeneath};

/// The backend's record of a volume.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) size: u64,
    pub(crate) format: FormatState,
    pub(crate) read_only: bool,
    pub(crate) growing_offline: bool,
    identity: FileId,
}

type Received = (Option<String>, Option<String>);

pub(crate) struct Images {
    dir: PathBuf,
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Volumes without a record of the attachment, as if another driver had attached them.
    unknown: Mutex<BTreeSet<String>>,
    /// The last request to each method that receives secrets: its secret `call`, and the volume context's `pod`.
    pub(crate) received: Mutex<BTreeMap<&'static str, Received>>,
    /// The last request to refresh a device.
    pub(crate) refreshed: Mutex<Option<RefreshDevice>>,
    has_records: bool,
}

/// Key of the volume context that disables formatting.
pub(crate) const NO_FORMAT: &str = "noformat";
/// Key of the publish context with the volume's image.
pub(crate) const IMAGE: &str = "image";

impl Images {
    pub(crate) fn new(dir: &Path, has_records: bool) -> Self {
        let (entries, unknown, received, refreshed) = Default::default();
        Self { dir: dir.to_owned(), entries, unknown, received, refreshed, has_records }
    }

    pub(crate) fn image(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    /// Creates a volume of zeroes.
    pub(crate) fn create(&self, id: &str, size: u64, format: FormatState) {
        File::create(self.image(id)).unwrap().set_len(size).unwrap();
        self.record(id, format);
    }

    /// Records a volume whose image exists.
    pub(crate) fn record(&self, id: &str, format: FormatState) {
        let stat = self.image(id).metadata().unwrap();
        let identity = FileId { device: stat.dev(), inode: stat.ino() };
        let entry = Entry { size: stat.size(), format, read_only: false, growing_offline: false, identity };
        self.entries.lock().unwrap().insert(id.to_owned(), entry);
    }

    /// Creates a copy of a volume, like a restored snapshot.
    pub(crate) fn copy(&self, from: &str, to: &str, format: FormatState) {
        std::fs::copy(self.image(from), self.image(to)).unwrap();
        self.record(to, format);
    }

    pub(crate) fn grow(&self, id: &str, size: u64) {
        File::options().write(true).open(self.image(id)).unwrap().set_len(size).unwrap();
        self.change(id, |entry| entry.size = size);
    }

    pub(crate) fn change(&self, id: &str, change: impl FnOnce(&mut Entry)) {
        change(self.entries.lock().unwrap().get_mut(id).unwrap());
    }

    pub(crate) fn is_recorded_as_growing(&self, id: &str) -> bool {
        self.entries.lock().unwrap()[id].growing_offline
    }

    pub(crate) fn format_of(&self, id: &str) -> FormatState {
        self.entries.lock().unwrap()[id].format.clone()
    }

    /// Drops the record that the volume is attached.
    pub(crate) fn drop_attachment_record(&self, id: &str) {
        self.unknown.lock().unwrap().insert(id.to_owned());
    }

    pub(crate) fn drop_record(&self, id: &str) {
        self.entries.lock().unwrap().remove(id);
    }

    /// The loop device of a volume.
    pub(crate) fn device(&self, id: &str) -> Option<LoopDevice> {
        let stat = self.image(id).metadata().ok()?;
        let identity = FileId { device: stat.dev(), inode: stat.ino() };
        Linux::new().loop_devices().unwrap().into_iter().find(|device| device.backing == identity)
    }

    fn note(
        &self,
        method: &'static str,
        secrets: &BTreeMap<String, String>,
        context: &BTreeMap<String, String>,
    ) {
        let received = (secrets.get("call").cloned(), context.get("pod").cloned());
        self.received.lock().unwrap().insert(method, received);
    }

    fn entry(&self, id: &str) -> Result<Entry, DeviceError> {
        let entries = self.entries.lock().unwrap();
        entries.get(id).cloned().ok_or_else(|| DeviceError::NotFound(format!("no volume {id}")))
    }

    fn attached(&self, id: &str, entry: &Entry) -> Option<Device> {
        let device = self.device(id)?;
        Some(Device { path: device.path, size: entry.size, read_only: entry.read_only, reader: None })
    }
}

fn failed(error: wharf_linux::Error) -> DeviceError {
    DeviceError::Backend(BackendError::Internal(error.to_string()))
}

#[async_trait]
impl Devices for Images {
    async fn attach(&self, volume: &NodeVolume) -> Result<Device, DeviceError> {
        self.note("attach", &volume.secrets, &volume.volume_context);
        let entry = self.entry(&volume.id)?;
        let image = self.image(&volume.id);
        let stat = image.metadata().map_err(|error| DeviceError::NotFound(format!("no image: {error}")))?;
        if (FileId { device: stat.dev(), inode: stat.ino() }) != entry.identity {
            return Err(DeviceError::WrongDevice("the image is a different file than recorded".into()));
        }
        if self.device(&volume.id).is_none() {
            let options = LoopOptions { read_only: entry.read_only, label: volume.id.clone() };
            Linux::new()
                .loop_attach(&PathBeneath::new(&self.dir, Path::new(&volume.id)), &options)
                .map_err(failed)?;
        }
        self.unknown.lock().unwrap().remove(&volume.id);
        self.attached(&volume.id, &entry).ok_or_else(|| DeviceError::InUse("the device disappeared".into()))
    }

    async fn before_publish(&self, volume: &NodeVolume) -> Result<(), DeviceError> {
        self.note("before_publish", &volume.secrets, &volume.volume_context);
        match volume.target.as_ref().is_some_and(|target| target.path.ends_with("forbidden")) {
            true => Err(DeviceError::Invalid("this pod must not use the volume".into())),
            false => Ok(()),
        }
    }

    async fn find(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let entry = self.entry(id)?;
        if self.unknown.lock().unwrap().contains(id) {
            return Ok(None);
        }
        Ok(self.attached(id, &entry))
    }

    async fn adopt(&self, id: &str, hint: AdoptionHint<'_>) -> Result<Option<Device>, DeviceError> {
        let device = self.attached(id, &self.entry(id)?);
        let device = device.filter(|device| match hint {
            AdoptionHint::Mounted(path) => path == device.path,
            AdoptionHint::Published(context) => context.get(IMAGE).is_some_and(|image| image == id),
            _ => false,
        });
        if device.is_some() {
            self.unknown.lock().unwrap().remove(id);
        }
        Ok(device)
    }

    fn formatting_disabled(&self, volume: &NodeVolume) -> bool {
        volume.volume_context.contains_key(NO_FORMAT)
    }

    async fn detach(&self, id: &str) -> Result<(), DeviceError> {
        self.unknown.lock().unwrap().remove(id);
        match self.device(id) {
            Some(device) => Linux::new().loop_detach(&device.path, Some(device.backing)).map_err(failed),
            None => Ok(()),
        }
    }

    async fn refresh(&self, request: &RefreshDevice) -> Result<Device, DeviceError> {
        let id = &request.id;
        self.note("refresh", &request.secrets, &BTreeMap::new());
        *self.refreshed.lock().unwrap() = Some(request.clone());
        let entry = self.entry(id)?;
        let device = self
            .attached(id, &entry)
            .ok_or_else(|| DeviceError::NotFound(format!("{id} is not attached")))?;
        Linux::new().loop_refresh(&device.path).map_err(failed)?;
        Ok(device)
    }

    fn format_records(&self) -> Option<&dyn FormatRecords> {
        self.has_records.then_some(self as &dyn FormatRecords)
    }
}

#[async_trait]
impl FormatRecords for Images {
    async fn format(&self, id: &str) -> Result<Option<FormatState>, DeviceError> {
        Ok(Some(self.entry(id)?.format))
    }

    async fn set_format(&self, id: &str, format: &FormatState) -> Result<(), DeviceError> {
        self.change(id, |entry| entry.format = format.clone());
        Ok(())
    }

    async fn is_growing_offline(&self, id: &str) -> Result<bool, DeviceError> {
        Ok(self.entry(id)?.growing_offline)
    }

    async fn set_growing_offline(&self, id: &str, growing: bool) -> Result<(), DeviceError> {
        self.change(id, |entry| entry.growing_offline = growing);
        Ok(())
    }
}

#[async_trait]
impl Health for Images {
    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        Ok(self.entry(&request.id).ok().map(|_| Vec::new()))
    }

    async fn storage_health(&self, _: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError> {
        Ok(Vec::new())
    }
}
