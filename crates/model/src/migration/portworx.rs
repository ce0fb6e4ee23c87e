//! Portworx. A secret for all calls is in annotations of the volume.

use serde_json::Value;

use super::source::Disk;
use super::{Plugin, source_json};
use crate::volume::CsiVolumeSource;
use crate::{Meta, SecretRef};

pub(super) const SECRET_NAME: &str = "openstorage.io/auth-secret-name";
pub(super) const SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";

/// The in-tree source's `readOnly` is not used.
pub(super) fn to_csi(source: &Disk, meta: &Meta) -> CsiVolumeSource {
    let secret = match (meta.annotation(SECRET_NAME), meta.annotation(SECRET_NAMESPACE)) {
        (Some(name), Some(namespace)) => {
            Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() })
        }
        _ => None,
    };
    let boxed = || secret.clone().map(Box::new);
    CsiVolumeSource {
        driver: Plugin::Portworx.driver().to_owned(),
        volume_handle: source.volume_id.clone(),
        fs_type: source.fs_type.clone(),
        node_stage_secret_ref: boxed(),
        node_publish_secret_ref: boxed(),
        node_expand_secret_ref: boxed(),
        controller_publish_secret_ref: secret.clone(),
        controller_expand_secret_ref: secret,
        ..CsiVolumeSource::default()
    }
}

pub(super) fn to_in_tree(csi: &CsiVolumeSource) -> Value {
    source_json(&[("volumeID", &csi.volume_handle)], &csi.fs_type, 0, csi.read_only)
}
