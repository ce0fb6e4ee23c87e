//! Where a list goes on: the token between two pages, in upstream's form.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};

use crate::json_error;
use crate::status::Refusal;
use crate::store::Revision;

/// The place behind a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Of which state the pages are; none to go on in the newest one, though that is no consistent list.
    pub(crate) revision: Option<Revision>,
    /// The first key that is not on the page yet, without what all keys of the list begin with.
    pub(crate) start: String,
}

#[derive(Serialize, Deserialize)]
struct Written {
    v: String,
    rv: i64,
    start: String,
}

const VERSION: &str = "meta.k8s.io/v1";

impl Token {
    /// The place behind the key (without its prefix) that was the last.
    pub(crate) fn behind(last: &str, revision: Option<Revision>) -> Self {
        Self { revision, start: format!("{last}\0") }
    }

    /// The last key before this place, as the store wants it; a token of another make may name any key.
    pub(crate) fn after(&self) -> &str {
        self.start.strip_suffix('\0').unwrap_or(&self.start)
    }

    /// As it is handed out.
    pub(crate) fn text(&self) -> String {
        let rv = self.revision.and_then(|revision| i64::try_from(revision).ok()).unwrap_or(-1);
        let written = Written { v: VERSION.into(), rv, start: self.start.clone() };
        BASE64.encode(serde_json::to_string(&written).unwrap_or_default())
    }

    /// As it comes back.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let invalid = |why: &str| {
            Refusal::bad_request(format!("invalid continue token: continue key is not valid{why}"))
        };
        let bytes = BASE64.decode(text).map_err(|error| invalid(&format!(": {error}")))?;
        let written = serde_json::from_slice(&bytes);
        let Written { v, rv, start } =
            written.map_err(|error| invalid(&format!(": {}", json_error::words(&bytes, &error))))?;
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
        // The key goes behind the list's own prefix, and nowhere else.
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
    fn tokens_in_upstreams_form() {
        let token = Token::behind("default/a", Some(5));
        let text = token.text();
        assert_eq!(
            BASE64.decode(&text).unwrap(),
            br#"{"v":"meta.k8s.io/v1","rv":5,"start":"default/a\u0000"}"#
        );
        assert_eq!(Token::parse(&text).unwrap(), token);
        assert_eq!(token.after(), "default/a");
        let inconsistent = Token { revision: None, ..token };
        assert_eq!(Token::parse(&inconsistent.text()).unwrap(), inconsistent);
    }

    #[test]
    fn what_is_no_token() {
        let made = |json: &str| BASE64.encode(json);
        for (text, words) in [
            ("!".to_owned(), "not valid"),
            ("A".to_owned(), "not valid"),
            (made("{}"), "not valid"),
            (made(r#"{"v":"v2","rv":5,"start":"a"}"#), "does not recognize this encoded version v2"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#), "incorrect encoded start resourceVersion"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":""}"#), "start key empty"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../secrets"}"#), "not valid: ../secrets"),
            (made(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/secrets"}"#), "/secrets"),
        ] {
            let refusal = Token::parse(&text).unwrap_err();
            assert_eq!(refusal.code, 400, "{text}");
            assert!(refusal.message.contains(words), "{text}: {refusal}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_or_refused(text: String) {
            let _ = Token::parse(&text);
        }
    }
}
