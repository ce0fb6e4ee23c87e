//! The driver's state in files: one record for each volume, snapshot and group, replaced atomically, so that a
//! crash leaves the old record or the new one. A lock on the directory serializes the processes of one driver. The
//! data of a volume is a directory in the same state directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A volume's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) bytes: i64,
    /// The request that created it, without secrets.
    pub(super) request: String,
    pub(super) source_volume: Option<String>,
    pub(super) source_snapshot: Option<String>,
    /// Its topology segment.
    pub(super) segment: Option<(String, String)>,
    pub(super) mutable: BTreeMap<String, String>,
    /// The publish arguments, by node.
    pub(super) published: BTreeMap<String, String>,
    /// The mount points, by node.
    pub(super) mounted: BTreeMap<String, BTreeSet<String>>,
}

/// A snapshot's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) id: String,
    pub(super) volume: String,
    pub(super) bytes: i64,
    /// Creation time, in seconds since 1970.
    pub(super) seconds: u64,
    /// When it becomes ready, in milliseconds since 1970.
    #[serde(default)]
    pub(super) ready_at_ms: u64,
    /// Remaining number of requests until it is ready.
    #[serde(default)]
    pub(super) looks_left: u32,
    /// The group that it belongs to.
    #[serde(default)]
    pub(super) group: Option<String>,
}

/// A group snapshot's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) id: String,
    /// The source volumes, in order.
    pub(super) volumes: Vec<String>,
    /// The member snapshots.
    pub(super) members: Vec<String>,
}

/// The state directory.
pub(super) struct State {
    dir: PathBuf,
    sync: bool,
}

/// The state directory, exclusively locked.
pub(super) struct LockedState<'a> {
    state: &'a State,
    /// The lock is released when the file is closed.
    _lock: File,
}

impl State {
    pub(super) fn open(dir: &Path, sync: bool) -> io::Result<Self> {
        for part in ["volumes", "snapshots", "groups", "data"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let state = Self { dir: dir.to_owned(), sync };
        state.lock()?.remove_stray_members()?;
        Ok(state)
    }

    pub(super) fn lock(&self) -> io::Result<LockedState<'_>> {
        let lock = File::options().create(true).truncate(false).write(true).open(self.dir.join("lock"))?;
        lock.lock()?;
        Ok(LockedState { state: self, _lock: lock })
    }
}

impl LockedState<'_> {
    pub(super) fn volume(&self, id: &str) -> io::Result<Option<Volume>> {
        self.read("volumes", id)
    }

    pub(super) fn put_volume(&self, volume: &Volume) -> io::Result<()> {
        self.write("volumes", &volume.id, volume)
    }

    /// At most `most` volumes whose IDs sort after `after`, ordered by ID.
    pub(super) fn volumes(&self, after: &str, most: usize) -> io::Result<Vec<Volume>> {
        let ids = self.ids("volumes")?.into_iter().filter(|id| id.as_str() > after).take(most);
        Ok(ids.map(|id| self.volume(&id)).collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Removes the record first: data without a record is garbage, but a record without data would be wrong.
    pub(super) fn remove_volume(&self, id: &str) -> io::Result<()> {
        self.remove("volumes", id)?;
        remove_tree(&self.data(id))
    }

    pub(super) fn snapshot(&self, id: &str) -> io::Result<Option<Snapshot>> {
        self.read("snapshots", id)
    }

    pub(super) fn put_snapshot(&self, snapshot: &Snapshot) -> io::Result<()> {
        self.write("snapshots", &snapshot.id, snapshot)
    }

    pub(super) fn snapshots(&self) -> io::Result<Vec<Snapshot>> {
        let ids = self.ids("snapshots")?.into_iter();
        Ok(ids.map(|id| self.snapshot(&id)).collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    pub(super) fn remove_snapshot(&self, id: &str) -> io::Result<()> {
        self.remove("snapshots", id)?;
        remove_tree(&self.data(id))
    }

    pub(super) fn group(&self, id: &str) -> io::Result<Option<Group>> {
        self.read("groups", id)
    }

    pub(super) fn put_group(&self, group: &Group) -> io::Result<()> {
        self.write("groups", &group.id, group)
    }

    /// Removes members without a group record: their creator crashed before it wrote the group.
    fn remove_stray_members(&self) -> io::Result<()> {
        for snapshot in self.snapshots()? {
            if let Some(group) = &snapshot.group
                && self.group(group)?.is_none()
            {
                self.remove_snapshot(&snapshot.id)?;
            }
        }
        Ok(())
    }

    pub(super) fn remove_group(&self, id: &str) -> io::Result<()> {
        self.remove("groups", id)
    }

    /// The data directory of a volume or snapshot.
    pub(super) fn data(&self, id: &str) -> PathBuf {
        self.state.dir.join("data").join(id)
    }

    /// Creates the data of a volume or snapshot: a copy of another one, or empty.
    pub(super) fn create_data(&self, id: &str, from: Option<&str>) -> io::Result<()> {
        let data = self.data(id);
        // Left by a call that crashed before its record was written.
        remove_tree(&data)?;
        let Some(from) = from else {
            return fs::create_dir(&data);
        };
        let copied = std::process::Command::new("cp").arg("-a").arg(self.data(from)).arg(&data).status()?;
        if copied.success() { Ok(()) } else { Err(io::Error::other(format!("cp of {from} failed"))) }
    }

    /// A file in the state directory that is not a record.
    pub(super) fn extra_file(&self, name: &str) -> PathBuf {
        self.state.dir.join(name)
    }

    fn file(&self, kind: &str, id: &str) -> PathBuf {
        self.state.dir.join(kind).join(id)
    }

    fn ids(&self, kind: &str) -> io::Result<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        for entry in fs::read_dir(self.state.dir.join(kind))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".tmp") {
                ids.insert(name);
            }
        }
        Ok(ids)
    }

    fn read<T: DeserializeOwned>(&self, kind: &str, id: &str) -> io::Result<Option<T>> {
        if !is_file_name(id) {
            return Ok(None);
        }
        match fs::read(self.file(kind, id)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write<T: Serialize>(&self, kind: &str, id: &str, record: &T) -> io::Result<()> {
        let file = self.file(kind, id);
        let temporary = file.with_file_name(format!("{id}.tmp"));
        let mut handle = File::create(&temporary)?;
        handle.write_all(&serde_json::to_vec(record)?)?;
        if self.state.sync {
            handle.sync_all()?;
        }
        fs::rename(&temporary, &file)?;
        self.sync_dir(kind)
    }

    fn remove(&self, kind: &str, id: &str) -> io::Result<()> {
        match fs::remove_file(self.file(kind, id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync_dir(kind),
        }
    }

    fn sync_dir(&self, kind: &str) -> io::Result<()> {
        if self.state.sync { File::open(self.state.dir.join(kind))?.sync_all() } else { Ok(()) }
    }
}

/// Whether an ID can be a record's file name: no path components, no suffix of an unfinished write.
pub(super) fn is_file_name(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 200
        && !id.starts_with('.')
        && !id.ends_with(".tmp")
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
