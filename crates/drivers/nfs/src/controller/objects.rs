//! Objects of the cluster whose content requests do not carry.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

use crate::handle::{Location, VolumeHandle};
use crate::options::{OptionError, combine};
use crate::parameters::VolumeAttributes;

/// The labels and annotations of a PersistentVolumeClaim, for templates in `subDir`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimMetadata {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// How a PersistentVolume is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeMount {
    /// `spec.csi.volumeHandle`.
    pub handle: String,
    /// `spec.csi.volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// `spec.mountOptions`.
    pub mount_options: Vec<String>,
}

impl VolumeMount {
    /// The mount options of the volume, if it is on this share; `None` if it is elsewhere.
    pub(super) fn options_for(&self, location: &Location) -> Result<Option<Vec<String>>, OptionError> {
        let own = VolumeHandle::parse(&self.handle).and_then(|handle| handle.location());
        if !own.is_ok_and(|own| (&own.server, &own.share) == (&location.server, &location.share)) {
            return Ok(None);
        }
        let attributes = VolumeAttributes::parse(&self.attributes).unwrap_or_default();
        let texts = self.mount_options.iter().map(String::as_str).chain([attributes.mount_options.as_str()]);
        combine(texts, &attributes.transport).map(Some)
    }
}

/// Reads objects of the cluster. Errors say why an object could not be read.
#[async_trait]
pub trait ClusterObjects: fmt::Debug + Send + Sync + 'static {
    /// The metadata of a claim; `None` if it does not exist. A provisioner passes only names.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ClaimMetadata>, String>;

    /// A PersistentVolume; `None` if it does not exist or is no CSI volume. DeleteVolume does not get its mount options.
    async fn volume(&self, name: &str) -> Result<Option<VolumeMount>, String>;

    /// The PersistentVolumes and the StorageClasses of the driver: whatever tells on which exports it has volumes. A class has an
    /// empty handle, and its parameters as attributes.
    async fn users(&self) -> Result<Vec<VolumeMount>, String>;
}

/// Whether a part of a handle can be the name of a PersistentVolume.
pub(super) fn is_object_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !name.is_empty() && name.len() <= 253 && name.bytes().all(allowed) && !name.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_a_volume_on_the_same_share() {
        let location = VolumeHandle::parse("srv#share#pvc-9##").unwrap().location().unwrap();
        let attributes =
            [("server", "srv"), ("share", "/share"), ("security", "krb5p"), ("mountOptions", "noatime")];
        let volume = |handle: &str| VolumeMount {
            handle: handle.to_owned(),
            attributes: attributes
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            mount_options: vec!["nfsvers=4.1".to_owned()],
        };
        let found = volume("srv#share#pvc-1##").options_for(&location).unwrap().unwrap();
        assert_eq!(found, ["vers=4.1", "noatime", "sec=krb5p"]);
        for elsewhere in ["other#share#pvc-1##", "srv#other#pvc-1##", "any text", "srv#share#"] {
            assert_eq!(volume(elsewhere).options_for(&location).unwrap(), None, "{elsewhere}");
        }
    }

    #[test]
    fn names_that_kubernetes_does_not_allow_are_not_read() {
        for (name, ok) in [
            ("pvc-0f3c", true),
            ("a.b", true),
            ("", false),
            ("a/b", false),
            ("..", false),
            ("a?b", false),
            ("A", false),
        ] {
            assert_eq!(is_object_name(name), ok, "{name}");
        }
    }
}
