//! Indexes that several components use. Components share stores, so each of these indexes exists once in a process.
//!
//! An index that one component uses is defined there, with a name that starts with its owner's.

use wharf_model::matching::claim_index_key;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment};

use crate::store::Index;

/// Pods by the claims that they use: namespace and name.
pub const PODS_BY_CLAIM: Index<Pod> =
    Index::new("claim", |pod| pod.claim_keys().map(|claim| claim.to_string()).collect());

/// Pods by node; those without a node by the empty name.
pub const PODS_BY_NODE: Index<Pod> = Index::new("node", |pod| vec![pod.node_name.clone()]);

/// Claims by the volume that they name.
pub const CLAIMS_BY_VOLUME: Index<PersistentVolumeClaim> = Index::new("volume", |claim| {
    Some(&claim.spec.volume_name).filter(|name| !name.is_empty()).cloned().into_iter().collect()
});

/// Volumes by the claim that they are reserved for or bound to: namespace and name.
pub const VOLUMES_BY_CLAIM: Index<PersistentVolume> =
    Index::new("claim", |volume| claim_index_key(volume).into_iter().collect());

/// CSI volumes by driver and handle, as [`handle_key`] writes them.
pub const VOLUMES_BY_HANDLE: Index<PersistentVolume> = Index::new("handle", |volume| {
    volume.spec.csi.iter().map(|csi| handle_key(&csi.driver, &csi.volume_handle)).collect()
});

/// The value of a volume in [`VOLUMES_BY_HANDLE`].
pub fn handle_key(driver: &str, handle: &str) -> String {
    // Driver names contain no slash.
    format!("{driver}/{handle}")
}

/// VolumeAttachments by the PersistentVolume that they attach.
pub const ATTACHMENTS_BY_VOLUME: Index<VolumeAttachment> = Index::new("volume", |attachment| {
    attachment.spec.source.persistent_volume_name.clone().into_iter().collect()
});

/// VolumeAttachments by node.
pub const ATTACHMENTS_BY_NODE: Index<VolumeAttachment> =
    Index::new("node", |attachment| vec![attachment.spec.node_name.clone()]);
