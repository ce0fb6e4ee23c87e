//! Google Compute Engine Persistent Disk.

use serde_json::Value;

use super::placement::{self, Placement, ZONE_SEPARATOR, single_region};
use super::source::GcePd;
use super::{Plugin, TranslationError, partition, source_json};
use crate::AccessMode;
use crate::volume::CsiVolumeSource;

pub(super) const ZONE: &str = "topology.gke.io/zone";
/// Part of a handle that in-tree volumes do not have.
const UNSPECIFIED: &str = "UNSPECIFIED";

pub(super) fn to_csi(source: &GcePd, placement: &mut Placement) -> Result<CsiVolumeSource, TranslationError> {
    let label = |key| placement.labels.get(key).filter(|label| !label.is_empty());
    let label = label(placement::BETA_ZONE).or_else(|| label(placement::ZONE));
    let zones: Vec<String> =
        label.map(|label| label.split(ZONE_SEPARATOR).map(str::to_owned).collect()).unwrap_or_default();
    let (kind, location) = match &zones[..] {
        [] => ("zones", UNSPECIFIED.to_owned()),
        [zone] => ("zones", zone.clone()),
        zones => ("regions", single_region(zones, region_of)?),
    };
    placement.use_driver_label(ZONE);
    let partition = if source.partition == 0 { String::new() } else { source.partition.to_string() };
    Ok(CsiVolumeSource {
        driver: Plugin::GcePd.driver().to_owned(),
        volume_handle: handle(UNSPECIFIED, kind, &location, &source.pd_name),
        read_only: source.read_only,
        fs_type: source.fs_type.clone(),
        volume_attributes: [("partition", partition)].into_iter().collect(),
        ..CsiVolumeSource::default()
    })
}

pub(super) fn to_in_tree(
    csi: &CsiVolumeSource,
    placement: &mut Placement,
) -> Result<Value, TranslationError> {
    let parts: Vec<&str> = csi.volume_handle.split('/').collect();
    let [_, _, _, _, _, disk, ..] = parts[..] else {
        return Err(TranslationError::GcePdHandle(csi.volume_handle.clone()));
    };
    let partition = match csi.volume_attributes.get("partition") {
        Some("") => 0,
        _ => partition(csi)?,
    };
    placement.use_kubernetes_labels(ZONE, Some(|zones| single_region(zones, region_of)))?;
    Ok(source_json(&[("pdName", disk)], &csi.fs_type, partition, csi.read_only))
}

/// The in-tree plugin attached every volume to one node for writing, or to several for reading, whatever its access
/// modes. The driver checks them.
pub(super) fn access_modes(modes: &[AccessMode]) -> Vec<AccessMode> {
    match modes {
        [] => Vec::new(),
        _ if modes
            .iter()
            .any(|mode| matches!(mode, AccessMode::ReadWriteOnce | AccessMode::ReadWriteMany)) =>
        {
            vec![AccessMode::ReadWriteOnce]
        }
        _ if modes.contains(&AccessMode::ReadOnlyMany) => vec![AccessMode::ReadOnlyMany],
        _ => vec![AccessMode::ReadWriteOnce],
    }
}

/// Fills in the project, and the zone or region, from the node ID `projects/<project>/zones/<zone>/instances/<name>`.
pub(super) fn repair_handle(volume_handle: &str, node_id: &str) -> Result<String, TranslationError> {
    let invalid = || TranslationError::GcePdHandle(volume_handle.to_owned());
    let parts: Vec<&str> = volume_handle.split('/').collect();
    let [_, project, kind, location, _, disk, ..] = parts[..] else { return Err(invalid()) };
    if project != UNSPECIFIED {
        return Ok(volume_handle.to_owned());
    }
    let node: Vec<&str> = node_id.split('/').collect();
    let [_, project, _, node_zone, _, _, ..] = node[..] else {
        return Err(TranslationError::GceNode(node_id.to_owned()));
    };
    let location = match (kind, location) {
        ("zones", UNSPECIFIED) => node_zone.to_owned(),
        ("regions", UNSPECIFIED) => {
            region_of(node_zone).ok_or_else(|| TranslationError::Zone(node_zone.to_owned()))?
        }
        ("zones" | "regions", location) => location.to_owned(),
        _ => return Err(invalid()),
    };
    Ok(handle(project, kind, &location, disk))
}

/// The name of the disk; all of a handle that has another form.
pub(super) fn disk_of(handle: &str) -> &str {
    location(handle).map_or(handle, |(_, disk)| disk)
}

/// Whether neither handle has a zone or region that the other one contradicts.
pub(super) fn may_be_same_place(one: &str, other: &str) -> bool {
    match (location(one), location(other)) {
        (Some(((_, UNSPECIFIED), _)) | None, _) | (_, Some(((_, UNSPECIFIED), _)) | None) => true,
        (Some((one, _)), Some((other, _))) => one == other,
    }
}

/// `zones` or `regions`, the zone or region, and the disk.
fn location(handle: &str) -> Option<((&str, &str), &str)> {
    match handle.split('/').collect::<Vec<_>>()[..] {
        [_, _, kind, location, _, disk, ..] => Some(((kind, location), disk)),
        _ => None,
    }
}

fn handle(project: &str, kind: &str, location: &str, disk: &str) -> String {
    format!("projects/{project}/{kind}/{location}/disks/{disk}")
}

/// The region of a zone such as `europe-west1-b`.
fn region_of(zone: &str) -> Option<String> {
    match zone.split('-').collect::<Vec<_>>()[..] {
        [area, region, _] => Some(format!("{area}-{region}")),
        _ => None,
    }
}
