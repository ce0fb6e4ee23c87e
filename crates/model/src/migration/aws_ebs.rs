//! AWS Elastic Block Store.

use serde_json::Value;

use super::placement::{Placement, single_region};
use super::source::Disk;
use super::{Plugin, TranslationError, partition, source_json};
use crate::volume::CsiVolumeSource;

pub(super) const ZONE: &str = "topology.ebs.csi.aws.com/zone";

pub(super) fn to_csi(source: &Disk, placement: &mut Placement) -> Result<CsiVolumeSource, TranslationError> {
    let volume_handle = volume_id(&source.volume_id)?.to_owned();
    placement.use_driver_label(ZONE);
    Ok(CsiVolumeSource {
        driver: Plugin::AwsEbs.driver().to_owned(),
        volume_handle,
        read_only: source.read_only,
        fs_type: source.fs_type.clone(),
        volume_attributes: [("partition", source.partition.to_string())].into_iter().collect(),
        ..CsiVolumeSource::default()
    })
}

pub(super) fn to_in_tree(
    csi: &CsiVolumeSource,
    placement: &mut Placement,
) -> Result<Value, TranslationError> {
    let partition = partition(csi)?;
    placement.use_kubernetes_labels(ZONE, Some(|zones| single_region(zones, region_of)))?;
    Ok(source_json(&[("volumeID", &csi.volume_handle)], &csi.fs_type, partition, csi.read_only))
}

/// The volume ID in `aws://<zone>/vol-<id>`; any other form is the volume ID itself. Stricter than upstream's library,
/// which decodes the URL: a volume ID has no character that an URL would escape.
fn volume_id(kubernetes_id: &str) -> Result<&str, TranslationError> {
    let Some(rest) = kubernetes_id.strip_prefix("aws://") else { return Ok(kubernetes_id) };
    let path = rest.split_once('/').map_or("", |(_, path)| path).trim_matches('/');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    match path.starts_with("vol-") && !path.contains('/') && rest.bytes().all(plain) {
        true => Ok(path),
        false => Err(TranslationError::EbsVolume(kubernetes_id.to_owned())),
    }
}

/// The region of a zone such as `us-west-2a` or `us-gov-east-1a`, of a local zone (`us-west-2-lax-1a`), or of a
/// Wavelength zone (`us-east-1-wl1-bos-wlz-1`).
fn region_of(zone: &str) -> Option<String> {
    let parts: Vec<&str> = zone.split('-').collect();
    match (parts.len(), parts.last()) {
        (3 | 4, Some(last)) if last.len() == 2 && last.is_ascii() => {
            Some(zone.get(..zone.len() - 1)?.to_owned())
        }
        (5 | 7, _) => Some(parts[..3].join("-")),
        _ => None,
    }
}
