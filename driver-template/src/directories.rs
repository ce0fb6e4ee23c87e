//! The storage: replace it with your own. Here a volume is a directory of this node:
//!
//! ```text
//! ROOT/ID/data        what pods see
//! ROOT/ID/size        the size in bytes; marks the directory as a volume of this driver
//! ROOT/.new-ID        a volume that is being created
//! ROOT/.deleted-ID    a volume that is being deleted
//! ```
//!
//! All state is in the file system, so the driver can be killed at any time and loses nothing. A volume appears and
//! disappears with one rename, and only names that begin with a dot are removed: IDs have no dots. Anything else in ROOT
//! stays as it is. Sizes are recorded but not enforced.

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

    fn entry(&self, id: &str) -> Result<Entry, BackendError> {
        let path = self.path(id);
        read_entry(&path).map_err(|error| internal(failed(&path, &error)))
    }

    fn volume(&self, id: &str) -> Result<Option<Volume>, BackendError> {
        if !is_id(id) {
            return Ok(None);
        }
        match self.entry(id)? {
            Entry::Nothing => Ok(None),
            Entry::Volume(capacity) => Ok(Some(Volume { id: id.to_owned(), capacity, ..Volume::default() })),
            Entry::Foreign(what) => {
                let path = self.path(id);
                Err(internal(format!("{} is {what}: not a volume of this driver", path.display())))
            }
        }
    }
}

/// What is at ROOT/ID.
enum Entry {
    Nothing,
    /// A volume of this size.
    Volume(u64),
    /// Something that this driver did not create, and must not change.
    Foreign(&'static str),
}

fn read_entry(path: &Path) -> io::Result<Entry> {
    // Unlike `metadata`, this does not follow a symbolic link out of ROOT.
    match if_exists(fs::symlink_metadata(path))? {
        None => return Ok(Entry::Nothing),
        Some(found) if found.is_symlink() => return Ok(Entry::Foreign("a symbolic link")),
        Some(found) if !found.is_dir() => return Ok(Entry::Foreign("not a directory")),
        Some(_) => {}
    }
    let path = path.join("size");
    if !if_exists(fs::symlink_metadata(&path))?.is_some_and(|found| found.is_file()) {
        return Ok(Entry::Foreign("a directory without the file \"size\""));
    }
    let size = if_exists(fs::read(&path))?.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
    Ok(size.map_or(Entry::Foreign("a directory whose file \"size\" has no size"), Entry::Volume))
}

fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Removes a directory; a missing one is success. Only for names that begin with a dot.
fn remove(path: &Path) -> io::Result<()> {
    if_exists(fs::remove_dir_all(path)).map(drop)
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
    /// Can be repeated, also after a crash between any two steps: the rename at the end creates the volume.
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
        let new = self.root.join(format!(".new-{id}"));
        let write = || {
            // What an interrupted create left.
            remove(&new)?;
            fs::create_dir(&new)?;
            fs::create_dir(new.join("data"))?;
            fs::write(new.join("size"), size.to_string())?;
            fs::rename(&new, self.path(id))
        };
        write().map_err(|error| internal(failed(&new, &error)))?;
        Ok(Volume { id: id.clone(), capacity: size, ..Volume::default() })
    }

    /// Can be repeated: a volume that does not exist is success.
    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
        let id = &request.id;
        if !is_id(id) {
            return Ok(());
        }
        let (path, deleted) = (self.path(id), self.root.join(format!(".deleted-{id}")));
        // Only a volume of this driver is deleted: anything else is an error.
        let exists = self.volume(id)?.is_some();
        let delete = move || {
            // What an interrupted delete left.
            remove(&deleted)?;
            if exists {
                fs::rename(&path, &deleted)?;
            }
            remove(&deleted)
        };
        // Large directories take long, and other calls must not wait for them.
        match tokio::task::spawn_blocking(delete).await {
            Ok(deleted) => Ok(deleted.map_err(|error| internal(failed(&self.path(id), &error)))?),
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
        for id in ids.into_iter().filter(|id| is_id(id) && id.as_str() > after) {
            if let Entry::Volume(capacity) = self.entry(&id)? {
                volumes.push(Volume { id, capacity, ..Volume::default() });
            }
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
