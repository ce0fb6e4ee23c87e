//! The continue token of a paged list, in upstream's format.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};

use crate::json_error;
use crate::status::StatusError;
use crate::store::Revision;

/// The position after a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContinueToken {
    /// The revision of the list; none to continue at the newest revision, which is not a consistent list.
    pub(crate) revision: Option<Revision>,
    /// The first key that is not on the page, without the prefix of the list.
    pub(crate) start: String,
}

#[derive(Serialize, Deserialize)]
struct EncodedToken {
    v: String,
    rv: i64,
    start: String,
}

const VERSION: &str = "meta.k8s.io/v1";

impl ContinueToken {
    /// The position after this last key, given without the prefix.
    pub(crate) fn following(last: &str, revision: Option<Revision>) -> Self {
        Self { revision, start: format!("{last}\0") }
    }

    /// The key after which the list continues. A foreign token may name any key.
    pub(crate) fn last_key(&self) -> &str {
        self.start.strip_suffix('\0').unwrap_or(&self.start)
    }

    /// Encodes the token for the response.
    pub(crate) fn encode(&self) -> String {
        let rv = self.revision.and_then(|revision| i64::try_from(revision).ok()).unwrap_or(-1);
        let encoded = EncodedToken { v: VERSION.into(), rv, start: self.start.clone() };
        BASE64.encode(serde_json::to_string(&encoded).unwrap_or_default())
    }

    /// Parses the token of a request.
    pub(crate) fn parse(text: &str) -> Result<Self, StatusError> {
        let invalid = |reason: &str| {
            StatusError::bad_request(format!("invalid continue token: continue key is not valid{reason}"))
        };
        let bytes = BASE64.decode(text).map_err(|error| invalid(&format!(": {error}")))?;
        let encoded = serde_json::from_slice(&bytes);
        let EncodedToken { v, rv, start } =
            encoded.map_err(|error| invalid(&format!(": {}", json_error::go_message(&bytes, &error))))?;
        if v != VERSION {
            return Err(invalid(&format!(": server does not recognize this encoded version {v}")));
        }
        let revision = match rv {
            -1 => None,
            rv if rv > 0 => Some(rv.unsigned_abs()),
            _ => return Err(invalid(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)")),
        };
        if start.is_empty() {
            return Err(invalid(": encoded start key empty (version meta.k8s.io/v1)"));
        }
        // The key is appended to the prefix of the list and must not escape it.
        if start.starts_with('/') || start.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(invalid(&format!(": {start}")));
        }
        Ok(Self { revision, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn token_has_upstream_format() {
        let token = ContinueToken::following("default/a", Some(5));
        let text = token.encode();
        assert_eq!(
            BASE64.decode(&text).unwrap(),
            br#"{"v":"meta.k8s.io/v1","rv":5,"start":"default/a\u0000"}"#
        );
        assert_eq!(ContinueToken::parse(&text).unwrap(), token);
        assert_eq!(token.last_key(), "default/a");
        let inconsistent = ContinueToken { revision: None, ..token };
        assert_eq!(ContinueToken::parse(&inconsistent.encode()).unwrap(), inconsistent);
    }

    #[test]
    fn invalid_tokens_are_rejected() {
        let token_of = |json: &str| BASE64.encode(json);
        for (text, words) in [
            ("!".to_owned(), "not valid"),
            ("A".to_owned(), "not valid"),
            (token_of("{}"), "not valid"),
            (token_of(r#"{"v":"v2","rv":5,"start":"a"}"#), "does not recognize this encoded version v2"),
            (
                token_of(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
                "incorrect encoded start resourceVersion",
            ),
            (token_of(r#"{"v":"meta.k8s.io/v1","rv":5,"start":""}"#), "start key empty"),
            (token_of(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../secrets"}"#), "not valid: ../secrets"),
            (token_of(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/secrets"}"#), "/secrets"),
        ] {
            let status_error = ContinueToken::parse(&text).unwrap_err();
            assert_eq!(status_error.code, 400, "{text}");
            assert!(status_error.message.contains(words), "{text}: {status_error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text: String) {
            let _ = ContinueToken::parse(&text);
        }
    }
}
