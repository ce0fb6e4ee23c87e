//! Secret. Its values never appear in debug output or errors.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde::{Deserialize, Deserializer};

use crate::Meta;
use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};

/// A Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Secret {
    /// Metadata without annotations: `kubectl apply` copies the values there.
    #[serde(deserialize_with = "Meta::without_annotations")]
    pub metadata: Meta,
    /// The values.
    pub data: SecretData,
}

impl Kind for Secret {
    const API: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Secret", plural: "secrets", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The decoded values of a secret. The debug output contains only the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData(BTreeMap<String, Vec<u8>>);

/// A value that is not UTF-8, as CSI requires.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the value of key {key:?} is not UTF-8, which CSI requires: store it in an encoded form, such as base64"
)]
pub struct NotUtf8 {
    /// The key.
    pub key: String,
}

impl SecretData {
    /// One value.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(Vec::as_slice)
    }

    /// All values, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_slice()))
    }

    /// The values as strings, as CSI requires.
    pub fn into_text(self) -> Result<BTreeMap<String, String>, NotUtf8> {
        self.0
            .into_iter()
            .map(|(key, value)| match String::from_utf8(value) {
                Ok(value) => Ok((key, value)),
                Err(_) => Err(NotUtf8 { key }),
            })
            .collect()
    }
}

/// Replaces the values of secrets in a message, such as a driver's error. The longest value is replaced first: one value may
/// be part of another. Values of up to three bytes stay: they occur in ordinary text and protect nothing.
pub fn redact<'a>(message: &str, values: impl IntoIterator<Item = &'a String>) -> String {
    let mut values: Vec<&str> =
        values.into_iter().map(String::as_str).filter(|value| value.len() > 3).collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values.into_iter().fold(message.to_owned(), |message, value| message.replace(value, "***"))
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|key| (key, format_args!("***")))).finish()
    }
}

impl<'de> Deserialize<'de> for SecretData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded: BTreeMap<String, String> = null_as_default(deserializer)?;
        let mut data = BTreeMap::new();
        for (key, text) in encoded {
            let value = BASE64.decode(&text).map_err(|_| {
                serde::de::Error::custom(format_args!("the value of key {key:?} is not base64"))
            })?;
            data.insert(key, value);
        }
        Ok(Self(data))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn redact_replaces_values_that_contain_each_other_and_keeps_short_ones() {
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        for (message, secrets, expected) in [
            ("login with hunter2 failed", values(&["hunter2"]), "login with *** failed"),
            ("login with hunter2 failed", values(&["hunter", "hunter2"]), "login with *** failed"),
            ("hunter or hunter2", values(&["hunter", "hunter2"]), "*** or ***"),
            ("abc abcd", values(&["abc"]), "abc abcd"),
            ("nothing secret", values(&[]), "nothing secret"),
        ] {
            assert_eq!(redact(message, &secrets), expected, "{secrets:?}");
        }
    }

    fn decode(text: &str) -> Option<Vec<u8>> {
        let data: SecretData = serde_json::from_value(json!({ "key": text })).ok()?;
        data.get("key").map(<[u8]>::to_vec)
    }

    proptest! {
        #[test]
        fn value_never_panics(text: String) {
            let _ = decode(&text);
        }
    }

    #[test]
    fn values_are_padded_standard_base64() {
        for (text, value) in [
            ("", &b""[..]),
            ("YQ==", b"a"),
            ("YWI=", b"ab"),
            ("YWJj", b"abc"),
            ("+/+/", &[0xFB, 0xFF, 0xBF]),
            ("AP8=", &[0, 0xFF]),
        ] {
            assert_eq!(decode(text).as_deref(), Some(value), "{text:?}");
        }
        for text in ["a", "ab", "abc", "a===", "====", "ab=c", "ab c", "YQ=a", "YR==", "-_=="] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }

    #[test]
    fn values_are_decoded_and_redacted_in_debug_output() {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {
                "name": "s", "namespace": "n",
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"},
            },
            "data": {"password": "aHVudGVyMg==", "empty": ""},
        }))
        .unwrap();
        let shown = format!("{secret:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVyMg"), "{shown}");
        assert!(shown.contains("password"), "{shown}");
        assert_eq!(
            secret.data.into_text().unwrap(),
            BTreeMap::from([("empty".into(), String::new()), ("password".into(), "hunter2".into())])
        );
    }

    #[test]
    fn errors_contain_the_key_but_not_the_value() {
        let error = serde_json::from_value::<Secret>(json!({"data": {"key": "sw0rdfish"}})).unwrap_err();
        assert!(error.to_string().contains("key") && !error.to_string().contains("sw0rdfish"), "{error}");
        let binary: Secret = serde_json::from_value(json!({"data": {"key": "/w=="}})).unwrap();
        assert_eq!(binary.data.into_text(), Err(NotUtf8 { key: "key".into() }));
        assert_eq!(serde_json::from_value::<Secret>(json!({"data": null})).unwrap(), Secret::default());
    }
}
