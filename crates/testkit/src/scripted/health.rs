//! What is wrong with volumes: a file `conditions` in the state directory, read anew at each call.
//!
//! ```json
//! {"vol-1": "the disk is gone"}
//! ```
//!
//! Told as a condition to those who read conditions, and as INACCESSIBLE to those who ask for health.

use std::collections::BTreeMap;

use wharf_csi::v1::{self as csi};

use super::state::Held;

/// What is wrong, by volume.
pub(super) struct Conditions(BTreeMap<String, String>);

impl Conditions {
    pub(super) fn read(held: &Held<'_>) -> std::io::Result<Self> {
        match std::fs::read(held.file_beside("conditions")) {
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
