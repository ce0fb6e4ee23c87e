//! Abnormal volumes: a file `conditions` in the state directory, read at each call.
//!
//! ```json
//! {"vol-1": "the disk is gone"}
//! ```
//!
//! Reported as a volume condition, and as INACCESSIBLE by the volume health calls.

use std::collections::BTreeMap;

use wharf_csi::v1::{self as csi};

use super::state::LockedState;

/// The problem of each abnormal volume.
pub(super) struct Conditions(BTreeMap<String, String>);

impl Conditions {
    pub(super) fn read(held: &LockedState<'_>) -> std::io::Result<Self> {
        match std::fs::read(held.extra_file("conditions")) {
            Ok(text) => Ok(Self(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self(BTreeMap::new())),
            Err(error) => Err(error),
        }
    }

    pub(super) fn condition(&self, id: &str) -> csi::VolumeCondition {
        let message = self.0.get(id).cloned();
        csi::VolumeCondition { abnormal: message.is_some(), message: message.unwrap_or("well".to_owned()) }
    }

    pub(super) fn health(&self, id: &str) -> csi::VolumeHealth {
        let entries = self.0.get(id).map(|message| csi::volume_health::VolumeHealthEntry {
            status: csi::VolumeHealthErrorType::Inaccessible.into(),
            reason: "Scripted".to_owned(),
            message: message.clone(),
        });
        csi::VolumeHealth { volume_id: id.to_owned(), health_statuses: entries.into_iter().collect() }
    }
}
