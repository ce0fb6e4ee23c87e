//! Secret: confidential data. Error messages never contain a value of the secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::{AGE, BASE, Column, Kind, NAME, age, json, meta, names};
use crate::status::Cause;

pub(super) static SECRET: Kind = Kind {
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    namespaced: true,
    default: |secret| {
        let Value::Object(secret) = secret else { return };
        // Values in stringData are stored in data and take precedence.
        if let Some(Value::Object(texts)) = secret.remove("stringData") {
            let data = secret.entry("data").or_insert_with(|| serde_json::Map::new().into());
            for (key, text) in texts {
                data[key] = BASE64.encode(text.as_str().unwrap_or_default()).into();
            }
        }
        if secret.get("type").and_then(Value::as_str).unwrap_or_default().is_empty() {
            secret.insert("type".into(), "Opaque".into());
        }
    },
    on_update: |secret, old, _| {
        if json::text(secret, "/type").is_empty() {
            json::restore(secret, old, "type");
        }
    },
    validate,
    validate_update: |secret, old| {
        let mut causes = meta::validate_update(secret, old);
        causes.extend(meta::immutable(secret, old, "/type", "type"));
        causes.extend(check_immutable(secret, old, &["data"]));
        causes.extend(validate(secret));
        causes
    },
    fields: &[("type", |secret| json::text(secret, "/type").into())],
    columns: &[
        NAME,
        Column::text("Type", "The type of the secret."),
        Column::text("Data", "The number of keys."),
        AGE,
    ],
    row: |secret, now| {
        vec![
            json::text(secret, "/metadata/name").into(),
            json::text(secret, "/type").into(),
            json::entries(secret, "/data").count().into(),
            age(secret, now).into(),
        ]
    },
    ..BASE
};

/// The maximum size of all values together.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Decodes base64; `None` if the text is not valid.
fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

/// The decoded size of a base64 text.
pub(super) fn decoded_bytes(value: &Value) -> usize {
    value.as_str().unwrap_or_default().trim_end_matches('=').len() * 3 / 4
}

/// An object with `immutable: true` must remain immutable, and its data must not change.
pub(super) fn check_immutable(object: &Value, old: &Value, fields: &[&str]) -> Vec<Cause> {
    if !json::flag(old, "/immutable") {
        return Vec::new();
    }
    let detail = "field is immutable when `immutable` is set";
    let mut causes = Vec::new();
    if !json::flag(object, "/immutable") {
        causes.push(Cause::forbidden("immutable", detail));
    }
    let changed = fields.iter().filter(|field| object.get(field) != old.get(field));
    causes.extend(changed.map(|field| Cause::forbidden(field, detail)));
    causes
}

fn validate(secret: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(secret, true, names::subdomain);
    let mut bytes = 0;
    for (key, value) in json::entries(secret, "/data") {
        causes.extend(meta::invalid_causes(&format!("data[{key}]"), key, names::config_key(key)));
        bytes += decoded_bytes(value);
    }
    if bytes > MAX_BYTES {
        causes.push(Cause::too_long("data", MAX_BYTES));
    }
    let value = |key: &str| secret.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
    let missing = |key: &str| Cause::required(&format!("data[{key}]"), "");
    match json::text(secret, "/type") {
        "kubernetes.io/service-account-token" => {
            const OF: &str = "kubernetes.io/service-account.name";
            if json::annotation(secret, OF).unwrap_or_default().is_empty() {
                causes.push(Cause::required(&format!("metadata.annotations[{OF}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" => causes.extend(docker_config(value(".dockercfg"), ".dockercfg")),
        "kubernetes.io/dockerconfigjson" => {
            causes.extend(docker_config(value(".dockerconfigjson"), ".dockerconfigjson"));
        }
        "kubernetes.io/basic-auth" if value("username").is_none() && value("password").is_none() => {
            causes.extend([missing("username"), missing("password")]);
        }
        "kubernetes.io/ssh-auth" if value("ssh-privatekey").unwrap_or_default().is_empty() => {
            causes.push(missing("ssh-privatekey"));
        }
        "kubernetes.io/tls" => {
            let keys = ["tls.crt", "tls.key"];
            causes.extend(keys.iter().filter(|key| value(key).is_none()).map(|key| missing(key)));
        }
        _ => (),
    }
    causes
}

/// Validates registry credentials, which are a JSON object.
fn docker_config(value: Option<&str>, key: &str) -> Option<Cause> {
    let field = format!("data[{key}]");
    let Some(value) = value else { return Some(Cause::required(&field, "")) };
    let bytes = decode(value).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let detail = match (serde_json::from_slice(&bytes), text.trim_start().chars().next()) {
        (Ok(Value::Object(_) | Value::Null), _) => return None,
        (Ok(other), _) => {
            let kind = match other {
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Bool(_) => "bool",
                _ => "number",
            };
            format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
        }
        (Err(_), Some(first)) if !"{[\"-0123456789tfn".contains(first) => {
            format!("invalid character '{first}' looking for beginning of value")
        }
        (Err(_), _) => "unexpected end of JSON input".into(),
    };
    Some(Cause::invalid(&field, &"<secret contents redacted>".into(), &detail))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update, with};

    fn valid() -> Value {
        json!({"metadata": {"name": "s", "namespace": "ns"}, "data": {"a": "MQ=="}})
    }

    #[test]
    fn string_data_is_stored_as_base64_data() {
        for (text, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("fooba\u{ff}", "Zm9vYmHDvw==")]
        {
            assert_eq!(BASE64.encode(text), expected, "{text}");
            assert_eq!(decode(expected).as_deref(), Some(text.as_bytes()), "{text}");
            assert_eq!(decoded_bytes(&expected.into()), text.len(), "{text}");
        }
        let mut secret = with(&valid(), &json!({"stringData": {"a": "2", "b": "3"}}));
        (SECRET.default)(&mut secret);
        assert_eq!(secret["data"], json!({"a": "Mg==", "b": "Mw=="}));
        assert_eq!(secret.get("stringData"), None);
        assert_eq!(secret["type"], "Opaque");
    }

    #[test]
    fn create_is_validated() {
        let typed = |kind: &str, data: Value| json!({"type": format!("kubernetes.io/{kind}"), "data": data});
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"data": {"..": ""}}), vec!["data[..]: Invalid value: \"..\": must not be '..'"]),
            (typed("tls", json!({})), vec!["data[tls.crt]: Required value", "data[tls.key]: Required value"]),
            (typed("ssh-auth", json!({})), vec!["data[ssh-privatekey]: Required value"]),
            (
                typed("basic-auth", json!({})),
                vec!["data[username]: Required value", "data[password]: Required value"],
            ),
            (typed("basic-auth", json!({"username": "YQ=="})), vec![]),
            (typed("dockerconfigjson", json!({})), vec!["data[.dockerconfigjson]: Required value"]),
            (typed("dockerconfigjson", json!({".dockerconfigjson": "e30="})), vec![]),
            (
                typed("dockercfg", json!({".dockercfg": ""})),
                vec![
                    "data[.dockercfg]: Invalid value: \"<secret contents redacted>\": unexpected end of JSON input",
                ],
            ),
            (
                typed("service-account-token", json!({})),
                vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            ),
            (
                json!({"data": {"a": "A".repeat(1_400_000)}}),
                vec!["data: Too long: may not be more than 1048576 bytes"],
            ),
        ] {
            assert_eq!(invalid(&SECRET, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn update_is_validated() {
        let immutable = with(&valid(), &json!({"immutable": true}));
        for (old, patch, expected) in [
            (&valid(), json!({"data": {"a": "Mg=="}}), vec![]),
            (&valid(), json!({"type": "x/y"}), vec!["type: Invalid value: \"x/y\": field is immutable"]),
            (
                &immutable,
                json!({"data": {"a": "Mg=="}}),
                vec!["data: Forbidden: field is immutable when `immutable` is set"],
            ),
        ] {
            assert_eq!(invalid_update(&SECRET, old, &patch), expected, "{patch}");
        }
    }

    #[test]
    fn table_rows_and_field_selectors_match_upstream() {
        let secret = with(&valid(), &json!({"type": "Opaque"}));
        assert_eq!(Value::from((SECRET.row)(&secret, Time(0))), json!(["s", "Opaque", 1, "<unknown>"]));
        assert_eq!(SECRET.field("type").map(|value| value(&secret)).as_deref(), Some("Opaque"));
    }
}
