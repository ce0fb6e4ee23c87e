//! Paths of requests: checked before the kernel sees them.

use std::path::{Component, PathBuf};

use tonic::Status;

use crate::validate;

/// The kernel's NAME_MAX.
const MAX_NAME: usize = 255;

/// A path to mount on: absolute, without `..`, not the root, no name longer than the kernel takes.
pub(crate) fn mount_path(field: &str, value: &str) -> Result<PathBuf, Status> {
    let path = validate::path(field, value)?;
    if path.file_name().is_none() {
        return Err(validate::invalid(field, "must not be the root directory"));
    }
    let name_too_long = |part: Component<'_>| part.as_os_str().len() > MAX_NAME;
    if path.components().any(name_too_long) {
        return Err(validate::invalid(field, "must not have a name of more than 255 bytes"));
    }
    // Without double and trailing slashes and dots, which the mount table does not have.
    Ok(path.components().collect())
}

/// A path at which a volume may be; `None` for one at which no volume can be. Asking what is at such a path is
/// no mistake (NOT_FOUND is the answer), but none at all is.
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
    fn good_paths_come_out_clean() {
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
    fn bad_paths_are_named() {
        let (long, name) = ("/a".repeat(3000), format!("/{}", "a".repeat(256)));
        for path in ["", "/", "//", "a", "../a", "/a/../b", "/a\0b", "/a\nb", &long, &name] {
            let status = mount_path("target_path", path).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{path}");
            assert!(status.message().contains("target_path"));
        }
    }

    #[test]
    fn a_path_where_no_volume_can_be_is_not_found() {
        assert!(volume_path("volume_path", "").is_err());
        assert_eq!(volume_path("volume_path", "some/path").unwrap(), None);
        assert_eq!(
            volume_path("volume_path", "/some/path").unwrap().as_deref(),
            Some(Path::new("/some/path"))
        );
    }
}
