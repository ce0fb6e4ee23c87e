//! The storage: replace it with your own. Here a volume is a directory of this node:
//!
//! ```text
//! ROOT/ID/data    what pods see
//! ROOT/ID/size    the size in bytes; a volume without this file does not exist (yet, or any more)
//! ```
//!
//! All state is in the file system, so the driver can be killed at any time and loses nothing. Sizes are recorded but not
//! enforced.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use wharf_driver::async_trait;
use wharf_driver::backend::{
    BackendError, Capability, CreateError, DeleteError, DeleteVolume, DeviceError, GetVolume, ListPage,
    ListVolumes, Listing, MountSource, NewVolume, NodeVolume, Shares, Volume, VolumeAccess, Volumes,
};

const MIB: u64 = 1 << 20;

/// Directories beneath a root.
pub struct Directories {
    root: PathBuf,
}

impl Directories {
    /// Uses this directory, which must exist.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { root: root.as_ref().canonicalize()? })
    }

    /// Whether the storage is usable. Called by each Probe.
    pub fn check(&self) -> Result<(), String> {
        fs::read_dir(&self.root).map(drop).map_err(|error| failed(&self.root, &error))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    fn volume(&self, id: &str) -> Result<Option<Volume>, BackendError> {
        if !is_id(id) {
            return Ok(None);
        }
        let path = self.path(id).join("size");
        match fs::read_to_string(&path) {
            Ok(size) => {
                let capacity =
                    size.parse().map_err(|_| internal(format!("{}: not a size", path.display())))?;
                Ok(Some(Volume { id: id.to_owned(), capacity, ..Volume::default() }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(internal(failed(&path, &error))),
        }
    }
}

/// IDs come from callers and become file names: nothing else may pass.
fn is_id(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    !id.is_empty() && id.len() <= 128 && id.chars().all(plain)
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn internal(message: String) -> BackendError {
    BackendError::Internal(message)
}

#[async_trait]
impl Volumes for Directories {
    /// Can be repeated, also after a crash between any two steps: the size is written last, in one step.
    async fn create(&self, request: &NewVolume) -> Result<Volume, CreateError> {
        let id = &request.name;
        if !is_id(id) {
            return Err(CreateError::Invalid(
                "the name must have at most 128 letters, digits, - and _".into(),
            ));
        }
        if let Some(existing) = self.volume(id)? {
            // The SDK compares it with the request.
            return Ok(existing);
        }
        let size = request.size.choose(64 * MIB, MIB);
        let size = size.ok_or_else(|| CreateError::OutOfRange("sizes are multiples of 1 MiB".into()))?;
        let path = self.path(id);
        let write = || {
            // What an interrupted create or delete left.
            remove(&path)?;
            fs::create_dir_all(path.join("data"))?;
            fs::write(path.join("size.new"), size.to_string())?;
            fs::rename(path.join("size.new"), path.join("size"))
        };
        write().map_err(|error| internal(failed(&path, &error)))?;
        Ok(Volume { id: id.clone(), capacity: size, ..Volume::default() })
    }

    /// Can be repeated: a volume that does not exist is success.
    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
        if !is_id(&request.id) {
            return Ok(());
        }
        let path = self.path(&request.id);
        // Large directories take long, and other calls must not wait for them.
        let removed =
            tokio::task::spawn_blocking(move || remove(&path).map_err(|error| failed(&path, &error)));
        match removed.await {
            Ok(removed) => Ok(removed.map_err(internal)?),
            Err(error) => Err(internal(error.to_string()).into()),
        }
    }

    async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError> {
        self.volume(&request.id)
    }

    fn refuses(&self, _: Option<&Volume>, capability: &Capability) -> Option<String> {
        match capability.access {
            VolumeAccess::Block => Some("a directory cannot be used as a block device".into()),
            VolumeAccess::Mount(_) if !capability.mode.is_single_node() => {
                Some("a directory is available on one node only".into())
            }
            VolumeAccess::Mount(_) => None,
        }
    }

    /// Unknown parameters are refused: a misspelt one must not be a silent default.
    fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
        parameters.keys().next().map(|key| format!("unknown parameter {key:?}"))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    };
    // The size first: without it, a volume whose deletion was interrupted does not exist any more.
    gone(fs::remove_file(path.join("size")))?;
    gone(fs::remove_dir_all(path))
}

#[async_trait]
impl Listing for Directories {
    async fn list(&self, request: &ListVolumes) -> Result<ListPage<Volume>, BackendError> {
        let entries = fs::read_dir(&self.root).and_then(|all| all.collect::<io::Result<Vec<_>>>());
        let entries = entries.map_err(|error| internal(failed(&self.root, &error)))?;
        let mut ids: Vec<String> =
            entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        ids.sort();
        let after = request.after.as_deref().unwrap_or_default();
        let mut volumes = Vec::new();
        for id in ids.iter().filter(|id| id.as_str() > after) {
            volumes.extend(self.volume(id)?);
        }
        let more = volumes.len() > request.max;
        volumes.truncate(request.max);
        Ok(ListPage { entries: volumes, more })
    }
}

#[async_trait]
impl Shares for Directories {
    /// What to mount on the node. An empty type binds a directory.
    async fn source(&self, volume: &NodeVolume) -> Result<MountSource, DeviceError> {
        let id = &volume.id;
        if self.volume(id)?.is_none() {
            return Err(DeviceError::NotFound(format!("volume {id} does not exist")));
        }
        let source = self.path(id).join("data").display().to_string();
        Ok(MountSource { source, fs_type: String::new(), options: Vec::new() })
    }
}
