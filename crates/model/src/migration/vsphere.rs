//! vSphere. In-tree volumes are identified by their path: for a class of the in-tree plugin, the driver returns the path
//! of the volume that it created.

use serde_json::Value;

use super::placement::Placement;
use super::source::Vsphere;
use super::{Plugin, source_json};
use crate::volume::CsiVolumeSource;

pub(super) const ZONE: &str = "topology.csi.vmware.com/zone";
const REGION: &str = "topology.csi.vmware.com/region";
pub(super) const STORAGE_POLICY: &str = "storagepolicyname";
/// The attribute with the path of a created volume.
const INITIAL_PATH: &str = "initialvolumefilepath";

pub(super) fn to_csi(source: &Vsphere, placement: &mut Placement) -> CsiVolumeSource {
    placement.use_driver_labels_with_region(ZONE, REGION);
    let policy = Some((STORAGE_POLICY, &source.storage_policy_name)).filter(|(_, name)| !name.is_empty());
    CsiVolumeSource {
        driver: Plugin::Vsphere.driver().to_owned(),
        volume_handle: source.volume_path.clone(),
        fs_type: source.fs_type.clone(),
        volume_attributes: policy.into_iter().collect(),
        ..CsiVolumeSource::default()
    }
}

pub(super) fn to_in_tree(csi: &CsiVolumeSource, placement: &mut Placement) -> Value {
    let path = csi.volume_attributes.get(INITIAL_PATH).unwrap_or_default();
    placement.use_kubernetes_labels_with_region(ZONE, REGION);
    source_json(&[("volumePath", path)], &csi.fs_type, 0, false)
}
