//! Scans the registry directory for sockets. Skips names that begin with a dot, including directories, and everything
//! that is not a socket; does not follow symlinks.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};

use wharf_csi::{SocketIdentity, SocketWatch};

/// The sockets by path, with the identity of each file.
pub(super) type Sockets = BTreeMap<PathBuf, SocketIdentity>;

/// Scans all directories. Each is watched before it is read, so that no socket is missed. Creates the registry
/// directory if it does not exist. An error means that the sockets are unknown, not that they are gone.
pub(super) fn scan(registry: &Path, watch: &SocketWatch) -> io::Result<Sockets> {
    DirBuilder::new().recursive(true).mode(0o755).create(registry)?;
    let mut sockets = Sockets::new();
    let mut directories = vec![registry.to_owned()];
    while let Some(directory) = directories.pop() {
        watch.add(&directory);
        let entries = match fs::read_dir(&directory) {
            // Removed during the scan, with its sockets.
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory != registry => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let kind = match entry.file_type() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                kind => kind?,
            };
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_socket() {
                match SocketIdentity::of_path(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    identity => {
                        sockets.insert(path, identity?);
                    }
                }
            }
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    /// kubernetes.md 1.6 "Registry", "Ignored files".
    #[tokio::test]
    async fn scan_finds_sockets_only() {
        let dir = tempfile::tempdir().unwrap();
        let registry = dir.path().join("deep/registry");
        let watch = SocketWatch::new();
        assert_eq!(scan(&registry, &watch).unwrap(), Sockets::new());
        assert!(registry.is_dir(), "registry directory is created");

        fs::create_dir_all(registry.join("sub/below")).unwrap();
        fs::create_dir(registry.join(".hidden")).unwrap();
        fs::write(registry.join("file"), "").unwrap();
        let bind = |name: &str| UnixListener::bind(registry.join(name)).unwrap();
        let _open = ["a.sock", "sub/b.sock", "sub/below/c.sock", ".d.sock", ".hidden/e.sock"].map(bind);
        std::os::unix::fs::symlink(registry.join("a.sock"), registry.join("link")).unwrap();

        let found = scan(&registry, &watch).unwrap();
        let expected = ["a.sock", "sub/b.sock", "sub/below/c.sock"].map(|name| registry.join(name));
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());

        let changed = || tokio::time::timeout(Duration::from_secs(5), watch.changed(|_| true));
        while tokio::time::timeout(Duration::from_millis(100), watch.changed(|_| true)).await.is_ok() {}
        fs::remove_file(registry.join("sub/below/c.sock")).unwrap();
        changed().await.expect("found directories are watched");
        fs::remove_dir_all(registry.join("sub")).unwrap();
        changed().await.unwrap();
        assert_eq!(scan(&registry, &watch).unwrap().len(), 1);
    }

    /// Unknown must not read as gone.
    #[tokio::test]
    async fn registry_that_cannot_be_created_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(scan(&dir.path().join("file"), &SocketWatch::new()).is_err());
        assert!(scan(&dir.path().join("file/registry"), &SocketWatch::new()).is_err());
    }
}
