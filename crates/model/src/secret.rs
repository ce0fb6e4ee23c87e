//! Secret, slim. Its values appear in no debug output and in no error.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::Meta;
use crate::kind::{Api, Kind, Scope};
use crate::words::nullable;

/// Values that only the driver may see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Secret {
    /// Metadata without annotations: `kubectl apply` repeats the values there.
    #[serde(deserialize_with = "Meta::without_annotations")]
    pub metadata: Meta,
    /// The values.
    pub data: SecretData,
}

impl Kind for Secret {
    const API: Api =
        Api { group: "", version: "v1", kind: "Secret", plural: "secrets", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The values of a secret, decoded. Its debug output names the keys only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData(BTreeMap<String, Vec<u8>>);

/// A value that cannot travel: CSI carries text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value of key {key:?} is not UTF-8, and CSI secrets are text: store it in an encoded form")]
pub struct NotText {
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

    /// The values as CSI carries them.
    pub fn into_text(self) -> Result<BTreeMap<String, String>, NotText> {
        self.0
            .into_iter()
            .map(|(key, value)| match String::from_utf8(value) {
                Ok(value) => Ok((key, value)),
                Err(_) => Err(NotText { key }),
            })
            .collect()
    }
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|key| (key, format_args!("***")))).finish()
    }
}

impl<'de> Deserialize<'de> for SecretData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded: BTreeMap<String, String> = nullable(deserializer)?;
        let mut data = BTreeMap::new();
        for (key, text) in encoded {
            let value = decode_base64(text.as_bytes()).ok_or_else(|| {
                serde::de::Error::custom(format_args!("the value of key {key:?} is not base64"))
            })?;
            data.insert(key, value);
        }
        Ok(Self(data))
    }
}

/// Standard base64 with padding, as the API writes bytes.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|&&byte| byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for &digit in group {
            bits = bits << 6 | u32::from(base64_digit(digit)?);
        }
        // A last group of two or three digits carries one or two bytes; the bits behind them must be zero, or
        // two texts would stand for the same bytes.
        let spare = match group.len() {
            4 => 0,
            3 => 2,
            2 => 4,
            _ => return None,
        };
        if bits & ((1 << spare) - 1) != 0 {
            return None;
        }
        let count = group.len() * 6 / 8;
        bytes.extend_from_slice(&(bits >> spare).to_be_bytes()[4 - count..]);
    }
    Some(bytes)
}

fn base64_digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The rest of the pair, for the property only.
    fn encode_base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in bytes.chunks(3) {
            let bits = group
                .iter()
                .enumerate()
                .fold(0u32, |bits, (i, &byte)| bits | u32::from(byte) << (16 - 8 * i));
            for i in 0..4 {
                text.push(match i <= group.len() {
                    true => char::from(DIGITS[(bits >> (18 - 6 * i) & 63) as usize]),
                    false => '=',
                });
            }
        }
        text
    }

    proptest! {
        #[test]
        fn base64_gives_the_bytes_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode_base64(encode_base64(&bytes).as_bytes()), Some(bytes));
        }

        #[test]
        fn base64_of_anything_is_no_panic(bytes: Vec<u8>) {
            let _ = decode_base64(&bytes);
        }
    }

    #[test]
    fn base64_refuses_what_is_none() {
        for text in ["a", "ab", "abc", "a===", "====", "ab=c", "ab c", "YQ=a", "YR==", "-_=="] {
            assert_eq!(decode_base64(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn values_are_read_and_never_shown() {
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
    fn errors_name_the_key_and_not_the_value() {
        let error = serde_json::from_value::<Secret>(json!({"data": {"key": "sw0rdfish"}})).unwrap_err();
        assert!(error.to_string().contains("key") && !error.to_string().contains("sw0rdfish"), "{error}");
        let binary: Secret = serde_json::from_value(json!({"data": {"key": "/w=="}})).unwrap();
        assert_eq!(binary.data.into_text(), Err(NotText { key: "key".into() }));
        assert_eq!(serde_json::from_value::<Secret>(json!({"data": null})).unwrap(), Secret::default());
    }
}
