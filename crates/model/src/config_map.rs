//! ConfigMap, slim: its values.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};
use crate::secret::SecretData;
use crate::words::nullable;

/// A config map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMap {
    /// Metadata: names, identity and version.
    #[serde(deserialize_with = "Meta::bare")]
    pub metadata: Meta,
    /// Values that are text.
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
    /// Values that are not.
    pub binary_data: SecretData,
}

impl Kind for ConfigMap {
    const API: Api =
        Api { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ConfigMap {
    /// All values, ordered by key in each of the two kinds.
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
    fn values_of_both_kinds() {
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
