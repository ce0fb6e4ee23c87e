//! Azure Disk. Its node affinity is not translated: the driver uses the labels that in-tree volumes have.

use serde_json::{Value, json};

use super::source::AzureDisk;
use super::{Plugin, TranslationError};
use crate::StringMap;
use crate::volume::CsiVolumeSource;

pub(super) const ZONE: &str = "topology.disk.csi.azure.com/zone";
const CACHING_MODE: &str = "cachingmode";
const FS_TYPE: &str = "fstype";
/// The only kind of disks that the driver supports.
const MANAGED: &str = "Managed";

pub(super) fn to_csi(source: &AzureDisk) -> Result<CsiVolumeSource, TranslationError> {
    if let Some(kind) = source.kind.as_ref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(TranslationError::AzureDiskKind(kind.clone()));
    }
    let attributes: StringMap = [("kind", Some(MANAGED))]
        .into_iter()
        .chain([(CACHING_MODE, source.caching_mode.as_deref()), (FS_TYPE, source.fs_type.as_deref())])
        .filter_map(|(key, value)| value.map(|value| (key, value)))
        .collect();
    Ok(CsiVolumeSource {
        driver: Plugin::AzureDisk.driver().to_owned(),
        volume_handle: source.disk_uri.clone(),
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        volume_attributes: attributes,
        ..CsiVolumeSource::default()
    })
}

pub(super) fn to_in_tree(csi: &CsiVolumeSource) -> Result<Value, TranslationError> {
    let uri = &csi.volume_handle;
    let name = disk_name(uri).ok_or_else(|| TranslationError::AzureDiskUri(uri.clone()))?;
    let mut source = json!({
        "diskName": name,
        "diskURI": uri,
        "fsType": csi.fs_type,
        "readOnly": csi.read_only,
        "kind": MANAGED,
    });
    for (key, value) in csi.volume_attributes.iter().filter(|(_, value)| !value.is_empty()) {
        match &key.to_lowercase()[..] {
            CACHING_MODE => source["cachingMode"] = json!(value),
            FS_TYPE => source["fsType"] = json!(value),
            _ => {}
        }
    }
    Ok(source)
}

/// The last part of the URI of a managed disk (a path in a subscription), or of an unmanaged one (a URL).
fn disk_name(uri: &str) -> Option<&str> {
    let unmanaged = uri.len() > 4 && uri.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("http"));
    let parts: &[&str] = match unmanaged {
        true => &["http", "://", "/vhds/"],
        false => &["/subscriptions/", "/resourceGroups/", "/providers/Microsoft.Compute/disks/"],
    };
    let (last, before) = parts.split_last()?;
    let rest = before.iter().try_fold(uri, |rest, part| rest.split_once(part).map(|(_, rest)| rest))?;
    // The last occurrence that is followed by a name.
    let (end, _) = rest.char_indices().next_back()?;
    rest[..end].rfind(last).map(|at| &rest[at + last.len()..])
}
