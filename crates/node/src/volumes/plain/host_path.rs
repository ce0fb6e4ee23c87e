//! hostPath volumes: type checks and creation.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use wharf_container::hidden::Host;
use wharf_model::pod::HostPath;

use super::PlainError;
use crate::volumes::VolumePath;

/// Checks the path, and creates it if its type allows.
///
/// A path inside a hidden directory is rejected first, so that nothing is created there and the error does not reveal its
/// content. The container runtime checks again when a container starts: by then a symlink may point elsewhere.
pub(super) fn check(host_path: &HostPath, hidden: &[PathBuf]) -> Result<VolumePath, PlainError> {
    let path = Path::new(&host_path.path);
    Host::read(hidden).map_err(PlainError::files("read mounts for", path))?.admit_path(path)?;
    let volume_path = VolumePath::Host { path: PathBuf::from(path) };
    let file_type = match fs::metadata(path) {
        Ok(found) => Some(found.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(PlainError::files("stat", path)(error)),
    };
    match (host_path.kind.as_str(), file_type) {
        ("", _) => return Ok(volume_path),
        ("DirectoryOrCreate", None) => {
            let created = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
            return created.map(|()| volume_path).map_err(PlainError::files("mkdir", path));
        }
        ("FileOrCreate", None) => {
            let created =
                fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
            return created.map(|_| volume_path).map_err(PlainError::files("create", path));
        }
        _ => {}
    }
    let (matches, expected) = match host_path.kind.as_str() {
        "Directory" | "DirectoryOrCreate" => {
            (file_type.is_some_and(|file_type| file_type.is_dir()), "a directory")
        }
        "File" | "FileOrCreate" => (file_type.is_some_and(|file_type| file_type.is_file()), "a file"),
        "Socket" => (file_type.is_some_and(|file_type| file_type.is_socket()), "a socket file"),
        "CharDevice" => (file_type.is_some_and(|file_type| file_type.is_char_device()), "a character device"),
        "BlockDevice" => (file_type.is_some_and(|file_type| file_type.is_block_device()), "a block device"),
        other => return Err(PlainError::Unsupported { what: format!("hostPath type {other:?}") }),
    };
    match matches {
        true => Ok(volume_path),
        false => Err(PlainError::HostPath { path: host_path.path.clone(), expected }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// hostPath types are checked like in kubelet.
    #[test]
    fn host_path_types_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        for (kind, name, expected) in [
            ("", "absent", true),
            ("Directory", "", true),
            ("Directory", "file", false),
            ("Directory", "absent", false),
            ("DirectoryOrCreate", "created/deep", true),
            ("Directory", "created/deep", true),
            ("DirectoryOrCreate", "file", false),
            ("File", "file", true),
            ("File", "created", false),
            ("FileOrCreate", "new", true),
            ("File", "new", true),
            ("FileOrCreate", "created", false),
            ("FileOrCreate", "no/parent", false),
            ("Socket", "socket", true),
            ("Socket", "file", false),
            ("CharDevice", "file", false),
            ("BlockDevice", "file", false),
            ("Unknown", "file", false),
        ] {
            let path = dir.path().join(name).to_str().unwrap().to_owned();
            let checked = check(&HostPath { path: path.clone(), kind: kind.into() }, &[]);
            assert_eq!(checked.is_ok(), expected, "{kind} {name}: {checked:?}");
            if expected {
                assert_eq!(checked.unwrap(), VolumePath::Host { path: path.into() });
            }
        }
        let null = HostPath { path: "/dev/null".into(), kind: "CharDevice".into() };
        assert!(check(&null, &[]).is_ok());
        let file = dir.path().join("file").to_str().unwrap().to_owned();
        let error = check(&HostPath { path: file.clone(), kind: "Directory".into() }, &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("hostPath type check failed: {file} is not a directory"));
    }

    #[test]
    fn hidden_paths_are_neither_created_nor_revealed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let data = dir.join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("kubeconfig"), "x").unwrap();
        std::os::unix::fs::symlink(&data, dir.join("link")).unwrap();
        for (kind, name) in [
            ("", "data"),
            ("", "data/kubeconfig"),
            ("File", "link/kubeconfig"),
            ("Directory", "data/kubeconfig"),
            ("DirectoryOrCreate", "link/new"),
            ("FileOrCreate", "data/new"),
        ] {
            let path = dir.join(name).to_str().unwrap().to_owned();
            let host_path = HostPath { path: path.clone(), kind: kind.into() };
            let error = check(&host_path, std::slice::from_ref(&data)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("hostPath {path:?} is refused")), "{kind} {name}: {error}");
        }
        assert!(!data.join("new").exists());
    }
}
