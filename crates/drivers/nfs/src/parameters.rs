//! Parameters of classes, volume contexts and secrets.

use serde::{Deserialize, Serialize};

/// What DeleteVolume does with the volume's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnDelete {
    /// Removes it.
    Delete,
    /// Leaves it.
    Retain,
    /// Renames it to `archived-…`.
    Archive,
}

impl OnDelete {
    /// Parses the parameter `onDelete`, in any case. Empty means that the class does not say it.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        match text.to_ascii_lowercase().as_str() {
            "" => Ok(None),
            "delete" => Ok(Some(Self::Delete)),
            "retain" => Ok(Some(Self::Retain)),
            "archive" => Ok(Some(Self::Archive)),
            _ => Err(format!("onDelete {text:?} is not known: use delete, retain or archive")),
        }
    }
}
