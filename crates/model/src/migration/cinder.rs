//! OpenStack Cinder.

use serde_json::Value;

use super::placement::Placement;
use super::source::Disk;
use super::{Plugin, TranslationError, source_json};
use crate::volume::CsiVolumeSource;

pub(super) const ZONE: &str = "topology.cinder.csi.openstack.org/zone";

pub(super) fn to_csi(source: &Disk, placement: &mut Placement) -> CsiVolumeSource {
    placement.use_driver_label(ZONE);
    CsiVolumeSource {
        driver: Plugin::Cinder.driver().to_owned(),
        volume_handle: source.volume_id.clone(),
        read_only: source.read_only,
        fs_type: source.fs_type.clone(),
        ..CsiVolumeSource::default()
    }
}

/// The region cannot be derived from the zone.
pub(super) fn to_in_tree(
    csi: &CsiVolumeSource,
    placement: &mut Placement,
) -> Result<Value, TranslationError> {
    placement.use_kubernetes_labels(ZONE, None)?;
    Ok(source_json(&[("volumeID", &csi.volume_handle)], &csi.fs_type, 0, csi.read_only))
}
