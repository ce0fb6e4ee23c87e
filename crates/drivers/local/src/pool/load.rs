//! Reads all records of a pool, and notices everything that is not as it should be. Changes nothing.

use std::path::{Path, PathBuf};

use super::check::{Finding, Severity};
use super::trash::Purged;
use crate::ids::{self, Kind};
use crate::index::Index;
use crate::record::{GroupRecord, GroupState, Record};
use crate::store::{self, Store};

/// What is in a pool's directory.
#[derive(Default)]
pub(super) struct Loaded {
    pub index: Index,
    pub findings: Vec<Finding>,
    /// Remains of writes that were cut short; nothing depends on them.
    pub leftovers: Vec<Leftover>,
    /// Names in the trash that are ours to purge.
    pub trash: Vec<String>,
}

/// Something that a crash left behind and that holds nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leftover {
    /// An unfinished durable write.
    File(PathBuf),
    /// The empty directory of an object that never came to be.
    Dir(PathBuf),
}

impl Loaded {
    pub(super) fn purgeable(&self) -> Vec<Purged> {
        let trash = self.trash.iter().map(|name| Purged { path: Path::new(store::TRASH).join(name) });
        let leftovers = self.leftovers.iter().map(|leftover| match leftover {
            Leftover::File(path) | Leftover::Dir(path) => Purged { path: path.clone() },
        });
        trash.chain(leftovers).collect()
    }

    fn unknown(&mut self, path: &Path) {
        self.findings.push(Finding {
            severity: Severity::Warning,
            object: path.display().to_string(),
            problem: "is none of this pool's files".into(),
            way_out: "nothing touches it; move it elsewhere if it does not belong here".into(),
        });
    }

    fn broken(&mut self, id: &str, problem: String) {
        self.index.put_broken(id.to_owned(), problem);
    }
}

/// Reads everything.
pub(super) fn load(store: &Store) -> wharf_linux::Result<Loaded> {
    let mut loaded = Loaded::default();
    top(store, &mut loaded)?;
    objects(store, Kind::Volume, &mut loaded)?;
    objects(store, Kind::Snapshot, &mut loaded)?;
    groups(store, &mut loaded)?;
    for name in store.list(Path::new(store::TRASH))? {
        match ids::parse_trash(&name) {
            Some(_) => loaded.trash.push(name),
            None => loaded.unknown(&Path::new(store::TRASH).join(name)),
        }
    }
    Ok(loaded)
}

fn top(store: &Store, loaded: &mut Loaded) -> wharf_linux::Result<()> {
    let ours = [
        store::POOL,
        store::LOCK,
        store::FREEZE,
        store::VOLUMES,
        store::SNAPSHOTS,
        store::GROUPS,
        store::TRASH,
        "lost+found",
    ];
    for name in store.list(Path::new("."))? {
        match name.strip_suffix(store::UNFINISHED) {
            Some(stem) if stem == store::POOL || stem == store::FREEZE || stem.starts_with(store::PROBE) => {
                loaded.leftovers.push(Leftover::File(name.into()));
            }
            _ if ours.contains(&name.as_str()) => {}
            _ => loaded.unknown(Path::new(&name)),
        }
    }
    Ok(())
}

fn objects(store: &Store, kind: Kind, loaded: &mut Loaded) -> wharf_linux::Result<()> {
    let collection = Path::new(if kind == Kind::Volume { store::VOLUMES } else { store::SNAPSHOTS });
    for id in store.list(collection)? {
        if !ids::is(kind, &id) {
            loaded.unknown(&collection.join(&id));
            continue;
        }
        object(store, kind, &id, loaded);
    }
    Ok(())
}

/// One volume or snapshot. Whatever is wrong with it is only its own trouble.
fn object(store: &Store, kind: Kind, id: &str, loaded: &mut Loaded) {
    let dir = store::dir_of(id);
    let names = match store.list(&dir) {
        Ok(names) => names,
        Err(error) => return loaded.broken(id, error.to_string()),
    };
    let unfinished = format!("{}{}", store::RECORD, store::UNFINISHED);
    let mut others = false;
    for name in &names {
        match name.as_str() {
            store::RECORD | store::IMAGE => {}
            name if name == unfinished => loaded.leftovers.push(Leftover::File(dir.join(name))),
            _ => {
                others = true;
                loaded.unknown(&dir.join(name));
            }
        }
    }
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if !has(store::RECORD) {
        return match has(store::IMAGE) || others {
            false => loaded.leftovers.push(Leftover::Dir(dir)),
            true => loaded.broken(
                id,
                format!(
                    "{} has no {}: put it back from a backup, or move the directory out of the pool",
                    dir.display(),
                    store::RECORD
                ),
            ),
        };
    }
    let record = store::record_of(id);
    let put = match kind {
        Kind::Snapshot => read(store, &record, id).map(|record| record.map(|r| loaded.index.put_snapshot(r))),
        Kind::Volume | Kind::Group => {
            read(store, &record, id).map(|record| record.map(|r| loaded.index.put_volume(r)))
        }
    };
    if let Err(problem) = put {
        loaded.broken(id, problem);
    }
}

fn groups(store: &Store, loaded: &mut Loaded) -> wharf_linux::Result<()> {
    for name in store.list(Path::new(store::GROUPS))? {
        let path = Path::new(store::GROUPS).join(&name);
        if let Some(id) = name.strip_suffix(store::DELETING).filter(|id| ids::is(Kind::Group, id)) {
            match read::<GroupRecord>(store, &path, id) {
                Ok(Some(record)) => {
                    loaded.index.put_group(GroupRecord { state: GroupState::Deleting, ..record })
                }
                Ok(None) => {}
                Err(problem) => loaded.broken(id, problem),
            }
            continue;
        }
        let (stem, unfinished) = match name.strip_suffix(store::UNFINISHED) {
            Some(stem) => (stem, true),
            None => (name.as_str(), false),
        };
        match stem.strip_suffix(".json").filter(|id| ids::is(Kind::Group, id)) {
            None => loaded.unknown(&path),
            Some(_) if unfinished => loaded.leftovers.push(Leftover::File(path)),
            Some(id) => match read(store, &path, id) {
                Ok(Some(record)) => loaded.index.put_group(record),
                Ok(None) => {}
                Err(problem) => loaded.broken(id, problem),
            },
        }
    }
    Ok(())
}

/// `None` if it is gone since it was listed: deleted meanwhile by the driver that runs.
fn read<T: Record>(store: &Store, path: &Path, id: &str) -> Result<Option<T>, String> {
    store.load(path, Some(id)).map_err(|error| error.to_string())
}
