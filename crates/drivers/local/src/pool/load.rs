//! Reads all records of a pool and reports every inconsistency. Changes nothing.

use std::path::{Path, PathBuf};

use super::check::{Finding, Severity};
use super::trash::PurgedPath;
use crate::ids::{self, Kind};
use crate::index::Index;
use crate::record::{GroupRecord, GroupState, Record};
use crate::store::{self, Store};

/// The contents of a pool's directory.
#[derive(Default)]
pub(super) struct Loaded {
    pub index: Index,
    pub findings: Vec<Finding>,
    /// Leftovers of interrupted writes; nothing depends on them.
    pub leftovers: Vec<Leftover>,
    /// Trash entries to purge.
    pub trash: Vec<String>,
}

/// A file or directory without data that a crash left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leftover {
    /// An unfinished durable write.
    File(PathBuf),
    /// The empty directory of an object that was never created.
    Dir(PathBuf),
}

impl Loaded {
    pub(super) fn purgeable(&self) -> Vec<PurgedPath> {
        let trash = self.trash.iter().map(|name| PurgedPath { path: Path::new(store::TRASH).join(name) });
        let leftovers = self.leftovers.iter().map(|leftover| match leftover {
            Leftover::File(path) | Leftover::Dir(path) => PurgedPath { path: path.clone() },
        });
        trash.chain(leftovers).collect()
    }

    fn add_unknown(&mut self, path: &Path) {
        self.findings.push(Finding {
            severity: Severity::Warning,
            object: path.display().to_string(),
            problem: "is not one of this pool's files".into(),
            remedy: "the driver does not touch it; move it elsewhere if it does not belong here".into(),
        });
    }

    fn mark_broken(&mut self, id: &str, problem: String) {
        self.index.put_broken(id.to_owned(), problem);
    }
}

/// Reads the whole pool.
pub(super) fn load(store: &Store) -> wharf_linux::Result<Loaded> {
    let mut loaded = Loaded::default();
    load_top_level(store, &mut loaded)?;
    load_collection(store, Kind::Volume, &mut loaded)?;
    load_collection(store, Kind::Snapshot, &mut loaded)?;
    loaded.index.complete_snapshots();
    load_groups(store, &mut loaded)?;
    for name in store.list(Path::new(store::TRASH))? {
        match ids::parse_trash(&name) {
            Some(_) => loaded.trash.push(name),
            None => loaded.add_unknown(&Path::new(store::TRASH).join(name)),
        }
    }
    Ok(loaded)
}

fn load_top_level(store: &Store, loaded: &mut Loaded) -> wharf_linux::Result<()> {
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
            _ => loaded.add_unknown(Path::new(&name)),
        }
    }
    Ok(())
}

fn load_collection(store: &Store, kind: Kind, loaded: &mut Loaded) -> wharf_linux::Result<()> {
    let collection = Path::new(if kind == Kind::Volume { store::VOLUMES } else { store::SNAPSHOTS });
    for id in store.list(collection)? {
        if !ids::is(kind, &id) {
            loaded.add_unknown(&collection.join(&id));
            continue;
        }
        load_object(store, kind, &id, loaded);
    }
    Ok(())
}

/// Loads one volume or snapshot. A problem with it does not affect the others.
fn load_object(store: &Store, kind: Kind, id: &str, loaded: &mut Loaded) {
    let dir = store::dir_of(id);
    let names = match store.list(&dir) {
        Ok(names) => names,
        Err(error) => return loaded.mark_broken(id, error.to_string()),
    };
    let unfinished = format!("{}{}", store::RECORD, store::UNFINISHED);
    let mut others = false;
    for name in &names {
        match name.as_str() {
            store::RECORD | store::SPARE | store::IMAGE => {}
            name if name == unfinished => loaded.leftovers.push(Leftover::File(dir.join(name))),
            _ => {
                others = true;
                loaded.add_unknown(&dir.join(name));
            }
        }
    }
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if !has(store::RECORD) {
        return match has(store::IMAGE) || others {
            false => {
                let spare = has(store::SPARE).then(|| Leftover::File(dir.join(store::SPARE)));
                loaded.leftovers.extend(spare.into_iter().chain([Leftover::Dir(dir)]));
            }
            true => loaded.mark_broken(
                id,
                format!(
                    "{} has no {}: restore it from a backup, or move the directory out of the pool",
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
        loaded.mark_broken(id, problem);
    }
}

fn load_groups(store: &Store, loaded: &mut Loaded) -> wharf_linux::Result<()> {
    for name in store.list(Path::new(store::GROUPS))? {
        let path = Path::new(store::GROUPS).join(&name);
        if let Some(id) = name.strip_suffix(store::DELETING).filter(|id| ids::is(Kind::Group, id)) {
            match read::<GroupRecord>(store, &path, id) {
                Ok(Some(record)) => {
                    loaded.index.put_group(GroupRecord { state: GroupState::Deleting, ..record })
                }
                Ok(None) => {}
                Err(problem) => loaded.mark_broken(id, problem),
            }
            continue;
        }
        let (stem, unfinished) = match name.strip_suffix(store::UNFINISHED) {
            Some(stem) => (stem, true),
            None => (name.as_str(), false),
        };
        match stem.strip_suffix(".json").filter(|id| ids::is(Kind::Group, id)) {
            None => loaded.add_unknown(&path),
            Some(_) if unfinished => loaded.leftovers.push(Leftover::File(path)),
            Some(id) => match read(store, &path, id) {
                Ok(Some(record)) => loaded.index.put_group(record),
                Ok(None) => {}
                Err(problem) => loaded.mark_broken(id, problem),
            },
        }
    }
    Ok(())
}

/// `None` if the running driver deleted it after it was listed.
fn read<T: Record>(store: &Store, path: &Path, id: &str) -> Result<Option<T>, String> {
    store.load(path, Some(id)).map_err(|error| error.to_string())
}
