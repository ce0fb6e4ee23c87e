//! Validates the paths of requests before they are passed to the kernel.

use std::path::{Component, PathBuf};

use tonic::Status;

use crate::validate;

/// The kernel's NAME_MAX.
const MAX_NAME: usize = 255;

/// Validates a path to mount on: absolute, without `..`, not the root, and no component longer than the kernel allows.
pub(crate) fn mount_path(field: &str, value: &str) -> Result<PathBuf, Status> {
    let path = validate::path(field, value)?;
    if path.file_name().is_none() {
        return Err(validate::invalid(field, "must not be the root directory"));
    }
    let name_too_long = |part: Component<'_>| part.as_os_str().len() > MAX_NAME;
    if path.components().any(name_too_long) {
        return Err(validate::invalid(field, "must not have a name of more than 255 bytes"));
    }
    // Normalized like the mount table: without double and trailing slashes and dots.
    Ok(path.components().collect())
}

/// Validates a path to mount on; `None` if the field is empty.
pub(crate) fn optional_path(field: &str, value: &str) -> Result<Option<PathBuf>, Status> {
    match value.is_empty() {
        true => Ok(None),
        false => mount_path(field, value).map(Some),
    }
}

/// Validates the `volume_path` of a request. Only an empty path is an invalid argument. `None` for any other path that
/// cannot be a mount point: the caller responds with NOT_FOUND, because no volume can be there.
pub(crate) fn volume_path(field: &str, value: &str) -> Result<Option<PathBuf>, Status> {
    match value.is_empty() {
        true => Err(validate::missing(field)),
        false => Ok(mount_path(field, value).ok()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn valid_paths_are_normalized() {
        for (path, clean) in [
            ("/a", "/a"),
            ("/a/", "/a"),
            ("/a//b/./c", "/a/b/c"),
            ("/a b/ü", "/a b/ü"),
            (
                "/var/lib/kubelet/plugins/kubernetes.io/csi/x/globalmount",
                "/var/lib/kubelet/plugins/kubernetes.io/csi/x/globalmount",
            ),
        ] {
            assert_eq!(mount_path("target_path", path).unwrap(), Path::new(clean));
        }
    }

    #[test]
    fn invalid_paths_are_rejected_with_the_field_name() {
        let (long, name) = ("/a".repeat(3000), format!("/{}", "a".repeat(256)));
        for path in ["", "/", "//", "a", "../a", "/a/../b", "/a\0b", "/a\nb", &long, &name] {
            let status = mount_path("target_path", path).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{path}");
            assert!(status.message().contains("target_path"));
        }
    }

    #[test]
    fn relative_volume_path_is_none_and_empty_is_an_error() {
        assert!(volume_path("volume_path", "").is_err());
        assert_eq!(volume_path("volume_path", "some/path").unwrap(), None);
        assert_eq!(
            volume_path("volume_path", "/some/path").unwrap().as_deref(),
            Some(Path::new("/some/path"))
        );
    }
}
