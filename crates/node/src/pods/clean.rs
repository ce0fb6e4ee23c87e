//! Removes the directories of pods that are gone. Only empty directories are removed: anything else may be user data.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use wharf_linux::{Linux, MountTable, Mounts as _};

use crate::paths::Root;

/// UIDs of pods that have a directory.
pub(super) fn left(root: &Root) -> BTreeSet<String> {
    let entries = fs::read_dir(root.pods()).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a directory and its subdirectories, as far as they are empty. A file, a symlink or a mount prevents the
/// removal of everything above it. If the mount table cannot be read, nothing is removed.
pub(super) fn prune(path: &Path) {
    let kernel = Linux::new();
    match kernel.resolve(path).and_then(|path| Ok((path, kernel.mount_table()?))) {
        Ok((path, table)) => prune_unmounted(&path, &table),
        Err(error) => {
            let path = path.display();
            tracing::warn!(
                %path,
                %error,
                "failed to read the mount table; the directory of the deleted pod stays until the next start"
            );
        }
    }
}

/// Does not descend into mounts: an empty directory there is part of somebody's data.
fn prune_unmounted(path: &Path, table: &MountTable) {
    if table.at(path).is_some() {
        tracing::warn!(
            path = %path.display(),
            "something is mounted in the directory of a deleted pod: unmount it, and the directory is removed at the next start"
        );
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            prune_unmounted(&entry.path(), table);
        }
    }
    if let Err(error) = fs::remove_dir(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "failed to remove directory of deleted pod");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use wharf_linux::MountRequest;

    use super::*;

    #[test]
    fn only_empty_directories_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        for uid in ["a", "b"] {
            fs::create_dir_all(root.pod(uid).join("volumes/kubernetes.io~csi/v/mount")).unwrap();
        }
        fs::write(root.pod("b").join("volumes/kubernetes.io~csi/v/mount/data"), "x").unwrap();
        assert_eq!(left(&root), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        for uid in ["a", "b", "none"] {
            prune(&root.pod(uid));
        }
        assert_eq!(left(&root), BTreeSet::from(["b".to_owned()]));
        assert!(root.pod("b").join("volumes/kubernetes.io~csi/v/mount/data").exists());
        assert_eq!(left(&Root::new(dir.path().join("none"))), BTreeSet::new());
    }

    /// kubernetes.md 1.8 "Orphans": mounts left by an earlier kubelet, a `subPath` bind mount and a separate file
    /// system.
    #[test]
    fn mounted_directories_are_not_removed() {
        struct Mounted<'a>(&'a [PathBuf]);
        impl Drop for Mounted<'_> {
            fn drop(&mut self) {
                for path in self.0 {
                    _ = Linux::new().unmount(path);
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir_all(data.join("pg_notify")).unwrap();
        // Through a symlink too: the mount table has resolved paths only.
        symlink(dir.path(), dir.path().join("link")).unwrap();
        let root = Root::new(dir.path().join("link/kubelet"));
        let places =
            ["volume-subpaths/pv/c/0", "volumes/kubernetes.io~nfs/v"].map(|place| root.pod("u").join(place));
        for place in places.iter().chain([&root.pod("u").join("plugins/empty")]) {
            fs::create_dir_all(place).unwrap();
        }
        let _mounted = Mounted(&places);
        Linux::new().bind(&data, &places[0], false).unwrap();
        let (source, fs_type, options) = ("tmpfs", "tmpfs", &[]);
        let request = MountRequest { source, target: &places[1], fs_type, options, read_only: false };
        Linux::new().mount(&request).unwrap();
        fs::create_dir(places[1].join("empty")).unwrap();
        prune(&root.pod("u"));
        assert!(data.join("pg_notify").exists(), "a bind mount of the same file system");
        assert!(places[1].join("empty").exists(), "another file system");
        assert!(!root.pod("u").join("plugins").exists(), "unmounted directories are removed");
    }
}
