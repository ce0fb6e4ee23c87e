//! What is left of pods on disk. Only directories that are empty are removed: whatever is in the way is somebody's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::paths::Root;

/// UIDs of pods of which there is a directory.
pub(super) fn left(root: &Root) -> BTreeSet<String> {
    let entries = fs::read_dir(root.pods()).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a directory and those in it, as far as they are empty. A file, a link or something mounted keeps all that is
/// above it.
pub(super) fn prune(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            prune(&entry.path());
        }
    }
    if let Err(error) = fs::remove_dir(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a directory of a pod that is gone stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_empty_goes() {
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
}
