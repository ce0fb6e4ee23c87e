//! Atomic writer, as in kubelet: files are written to a new directory, `..data` is switched to it in one rename, and
//! the user-visible names are symlinks through `..data`.
//!
//! ```text
//! volume/user -> ..data/user     volume/..data -> ..2026_11_16_09_00_00.123     volume/..2026_11_16_09_00_00.123/user
//! ```
//!
//! After a crash at any point readers see the old files or the new ones; leftovers are removed by the next write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown,
};
use std::path::{Component, Path, PathBuf};

use wharf_model::Time;

use super::PlainError;

const DATA: &str = "..data";
const NEW: &str = "..data_tmp";
/// Mode bits that are added if the volume has an fsGroup: the group can read files and enter directories, and new files
/// inherit the group.
const GROUP_READS: u32 = 0o440;
const GROUP_ENTERS: u32 = 0o2110;

/// A file to write. It has no `Debug`: its content may be secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: Option<u32>,
}

/// Files by path in the volume.
pub(super) type Payload = BTreeMap<String, File>;

/// Whether a path is a valid file path in a volume, and not one of the internal names.
pub(super) fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty() && !path.starts_with("..") && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Makes the directory contain exactly these files. Returns whether anything changed.
pub(super) fn write(dir: &Path, payload: &Payload, gid: Option<u32>, now: Time) -> Result<bool, PlainError> {
    if let Some(path) = payload.keys().find(|path| !is_inside(path)) {
        return Err(PlainError::Path { path: path.clone() });
    }
    let current = fs::read_link(dir.join(DATA)).ok().map(|target| dir.join(target));
    let changed = !current.as_ref().is_some_and(|current| holds(current, payload, gid));
    let current = if changed {
        let fresh = fresh_dir(dir, gid, now)?;
        if let Err(error) = fill(dir, &fresh, payload, gid) {
            // Writes are retried and would fill the disk. If removal fails, the next successful write cleans it up.
            let _ = remove(&fresh);
            return Err(error);
        }
        Some(fresh)
    } else {
        current
    };
    show(dir, payload)?;
    sweep(dir, payload, current.as_deref())?;
    if let Some(gid) = gid {
        own(dir, gid)?;
    }
    Ok(changed)
}

/// Writes the files to their new directory and switches `..data` to it.
fn fill(dir: &Path, fresh: &Path, payload: &Payload, gid: Option<u32>) -> Result<(), PlainError> {
    for (path, file) in payload {
        make(fresh, path, file, gid)?;
    }
    let (new, link) = (dir.join(NEW), dir.join(DATA));
    remove(&new)?;
    let name = fresh.file_name().map(PathBuf::from).unwrap_or_default();
    std::os::unix::fs::symlink(name, &new).map_err(PlainError::files("symlink", &new))?;
    fs::rename(&new, &link).map_err(PlainError::files("rename", &new))
}

/// Creates a new directory, named by the time like kubelet's.
fn fresh_dir(dir: &Path, gid: Option<u32>, now: Time) -> Result<PathBuf, PlainError> {
    let stamp = now.to_string().replace(['-', 'T', ':'], "_").replace('Z', "");
    for attempt in 0..1000u32 {
        let fresh = dir.join(format!("..{stamp}.{:03}{attempt:03}", now.0.rem_euclid(1000)));
        match fs::DirBuilder::new().mode(0o755).create(&fresh) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.map_err(PlainError::files("mkdir", &fresh))?;
                set_mode(&fresh, 0o755)?;
                if let Some(gid) = gid {
                    own(&fresh, gid)?;
                }
                return Ok(fresh);
            }
        }
    }
    Err(PlainError::files("mkdir", dir)(io::ErrorKind::AlreadyExists.into()))
}

fn make(fresh: &Path, path: &str, file: &File, gid: Option<u32>) -> Result<(), PlainError> {
    let full = fresh.join(path);
    let mut directory = fresh.to_owned();
    for part in Path::new(path).parent().into_iter().flat_map(Path::components) {
        directory.push(part);
        match fs::DirBuilder::new().mode(0o755).create(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(PlainError::files("mkdir", &directory))?,
        }
        if let Some(gid) = gid {
            own(&directory, gid)?;
        }
    }
    let failed = |step| PlainError::files(step, &full);
    let mut open = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&full)
        .map_err(failed("create"))?;
    open.write_all(&file.bytes).map_err(failed("write"))?;
    // chown first: it clears some mode bits.
    if file.uid.is_some() || gid.is_some() {
        chown(&full, file.uid, gid).map_err(failed("chown"))?;
    }
    set_mode(&full, mode_of(file, gid))
}

fn mode_of(file: &File, gid: Option<u32>) -> u32 {
    file.mode | gid.map_or(0, |_| GROUP_READS)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), PlainError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(PlainError::files("chmod", path))
}

/// Sets a directory's group and the group's permissions.
fn own(directory: &Path, gid: u32) -> Result<(), PlainError> {
    let failed = |step| PlainError::files(step, directory);
    let found = fs::metadata(directory).map_err(failed("stat"))?;
    let mode = found.mode() & 0o7777 | GROUP_READS | GROUP_ENTERS;
    if found.gid() == gid && found.mode() & 0o7777 == mode {
        return Ok(());
    }
    chown(directory, None, Some(gid)).map_err(failed("chown"))?;
    set_mode(directory, mode)
}

/// Whether a directory contains exactly these files, with the right content and permissions.
fn holds(current: &Path, payload: &Payload, gid: Option<u32>) -> bool {
    let mut present = BTreeSet::new();
    if list(current, Path::new(""), &mut present).is_err() || present.len() != payload.len() {
        return false;
    }
    payload.iter().all(|(path, file)| {
        let full = current.join(path);
        let matches = |found: fs::Metadata| {
            found.mode() & 0o7777 == mode_of(file, gid)
                && file.uid.is_none_or(|uid| found.uid() == uid)
                && gid.is_none_or(|gid| found.gid() == gid)
        };
        present.contains(Path::new(path))
            && fs::symlink_metadata(&full).is_ok_and(matches)
            && fs::read(&full).is_ok_and(|bytes| bytes == file.bytes)
    })
}

fn list(root: &Path, below: &Path, into: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => list(root, &path, into)?,
            false => _ = into.insert(path),
        }
    }
    Ok(())
}

/// The first component of each path: the user-visible names.
fn top_level_names(payload: &Payload) -> BTreeSet<&str> {
    payload.keys().map(|path| path.split('/').next().unwrap_or(path)).collect()
}

fn show(dir: &Path, payload: &Payload) -> Result<(), PlainError> {
    for top in top_level_names(payload) {
        let (link, target) = (dir.join(top), Path::new(DATA).join(top));
        if fs::read_link(&link).is_ok_and(|present| present == target) {
            continue;
        }
        remove(&link)?;
        std::os::unix::fs::symlink(&target, &link).map_err(PlainError::files("symlink", &link))?;
    }
    Ok(())
}

/// Removes names that are no longer used, and directories that `..data` does not point to.
fn sweep(dir: &Path, payload: &Payload, current: Option<&Path>) -> Result<(), PlainError> {
    let top_level_names = top_level_names(payload);
    for entry in fs::read_dir(dir).map_err(PlainError::files("read", dir))? {
        let path = entry.map_err(PlainError::files("read", dir))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        if name == DATA || top_level_names.contains(&*name) || Some(path.as_path()) == current {
            continue;
        }
        remove(&path)?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), PlainError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(PlainError::files("remove", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File { bytes: text.into(), mode: 0o644, uid: None }
    }

    fn payload(files: &[(&str, &str)]) -> Payload {
        files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
    }

    /// The files as a reader sees them, by user-visible name.
    fn visible_files(dir: &Path) -> Vec<(String, String)> {
        let mut paths = BTreeSet::new();
        for entry in fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.starts_with("..") {
                match fs::metadata(dir.join(&name)).unwrap().is_dir() {
                    true => list(dir, Path::new(&name), &mut paths).unwrap(),
                    false => _ = paths.insert(name.into()),
                }
            }
        }
        let text = |path: &PathBuf| fs::read_to_string(dir.join(path)).unwrap();
        paths.iter().map(|path| (path.to_str().unwrap().to_owned(), text(path))).collect()
    }

    fn expected(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    fn generations(dir: &Path) -> usize {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("..2") || name.starts_with("..1")).count()
    }

    #[test]
    fn write_replaces_files_only_when_they_differ() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for (step, (files, changes)) in [
            (&[("a", "1"), ("deep/b", "2")][..], true),
            (&[("a", "1"), ("deep/b", "2")], false),
            (&[("a", "1"), ("deep/b", "3"), ("deep/er/c", "4")], true),
            (&[("deep/b", "3")], true),
            (&[], true),
            (&[], false),
            (&[("a", "1")], true),
        ]
        .into_iter()
        .enumerate()
        {
            let changed = write(dir, &payload(files), None, Time(step as i64)).unwrap();
            assert_eq!(changed, changes, "{files:?}");
            assert_eq!(visible_files(dir), expected(files));
            assert_eq!(generations(dir), 1, "old files are removed");
        }
        assert_eq!(fs::read_link(dir.join("a")).unwrap(), Path::new("..data/a"));
    }

    /// Changed permissions cause a new write even if the content is unchanged.
    #[test]
    fn changed_permissions_rewrite_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut files = payload(&[("a", "1")]);
        write(dir, &files, None, Time(0)).unwrap();
        let mode = |path: &str| fs::metadata(dir.join(path)).unwrap().mode() & 0o7777;
        assert_eq!(mode("a"), 0o644);
        files.get_mut("a").unwrap().mode = 0o400;
        assert!(write(dir, &files, None, Time(1)).unwrap());
        assert_eq!(mode("a"), 0o400);
        // Our own group, so that the test does not need root.
        let gid = fs::metadata(dir).unwrap().gid();
        let mut files = payload(&[("d/a", "1")]);
        files.get_mut("d/a").unwrap().mode = 0o600;
        assert!(write(dir, &files, Some(gid), Time(2)).unwrap());
        assert_eq!((mode("d/a"), mode("d"), mode("") & 0o2550), (0o640, 0o2755, 0o2550));
        assert!(!write(dir, &files, Some(gid), Time(3)).unwrap());
    }

    /// The next write completes an interrupted one and removes leftovers.
    #[test]
    fn next_write_recovers_from_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, &payload(&[("a", "1"), ("b", "1")]), None, Time(0)).unwrap();
        // Written, but `..data` not switched yet.
        fs::create_dir(dir.join("..1970_01_01_00_00_09.000")).unwrap();
        fs::write(dir.join("..1970_01_01_00_00_09.000/a"), "half").unwrap();
        std::os::unix::fs::symlink("..1970_01_01_00_00_09.000", dir.join(NEW)).unwrap();
        // Switched, but one symlink not created and an old one not removed.
        fs::remove_file(dir.join("a")).unwrap();
        std::os::unix::fs::symlink("..data/gone", dir.join("gone")).unwrap();
        assert!(!write(dir, &payload(&[("a", "1"), ("b", "1")]), None, Time(1)).unwrap());
        assert_eq!(visible_files(dir), expected(&[("a", "1"), ("b", "1")]));
        assert_eq!(generations(dir), 1);
        assert!(fs::symlink_metadata(dir.join("gone")).is_err());
        assert!(fs::symlink_metadata(dir.join(NEW)).is_err());
    }

    /// Writes are retried, and a tmpfs volume is small.
    #[test]
    fn failed_write_leaves_no_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for before in [0, 1] {
            for step in 0..3 {
                write(dir, &payload(&[("a", "1"), ("a/b", "2")]), None, Time(step)).unwrap_err();
                assert_eq!(generations(dir), before);
            }
            write(dir, &payload(&[("a", "1")]), None, Time(9)).unwrap();
        }
        assert_eq!(visible_files(dir), expected(&[("a", "1")]));
    }

    #[test]
    fn paths_outside_the_volume_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["", "/etc/passwd", "../x", "a/../../x", "..data", "./a", "a/./../b"] {
            assert!(write(dir.path(), &payload(&[(path, "x")]), None, Time(0)).is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
