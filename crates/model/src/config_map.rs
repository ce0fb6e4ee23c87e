//! ConfigMap: its values.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Meta;
use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};
use crate::secret::SecretData;

/// A config map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMap {
    /// Metadata: only the name, UID, resource version and deletion timestamp.
    #[serde(deserialize_with = "Meta::identity_only")]
    pub metadata: Meta,
    /// Text values.
    #[serde(deserialize_with = "null_as_default")]
    pub data: BTreeMap<String, String>,
    /// Binary values.
    pub binary_data: SecretData,
}

impl Kind for ConfigMap {
    const API: ApiResource = ApiResource {
        group: "",
        version: "v1",
        kind: "ConfigMap",
        plural: "configmaps",
        scope: Scope::Namespaced,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ConfigMap {
    /// All values: text, then binary, each ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let text = self.data.iter().map(|(key, value)| (key.as_str(), value.as_bytes()));
        text.chain(self.binary_data.iter())
    }

    /// One value.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.iter().find(|&(present, _)| present == key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_and_binary_values_are_decoded() {
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": "m"}, "data": {"a": "x"}, "binaryData": {"b": "/w=="},
        }))
        .unwrap();
        assert_eq!(map.iter().collect::<Vec<_>>(), [("a", &b"x"[..]), ("b", &[255])]);
        assert_eq!((map.get("b"), map.get("c")), (Some(&[255][..]), None));
        let empty: ConfigMap = serde_json::from_value(json!({"data": null})).unwrap();
        assert_eq!(empty.iter().count(), 0);
    }
}
