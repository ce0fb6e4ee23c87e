//! A parsed request.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::response::ApiResponse;

/// All but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A request, as the rules process it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    /// In upper case.
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    /// As received, without the question mark.
    pub(crate) query: String,
    pub(crate) body: Vec<u8>,
    /// Scheme and host for links, as the client addressed the fake.
    pub(crate) base: String,
}

impl Request {
    /// The decoded path segments; a trailing slash is ignored.
    pub(crate) fn parts(&self) -> Vec<String> {
        self.path.split('/').filter(|part| !part.is_empty()).map(decode).collect()
    }

    /// The query's names and values, decoded.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decode(&name.replace('+', " ")), decode(&value.replace('+', " "))))
            .collect()
    }

    /// A value of the query; an empty value counts as missing.
    pub(crate) fn param(&self, name: &str) -> Option<String> {
        self.pairs().into_iter().find(|(found, value)| found == name && !value.is_empty()).map(|(_, v)| v)
    }

    /// Parses the body; invalid JSON is refused.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, ApiResponse> {
        serde_json::from_slice(&self.body)
            .map_err(|error| ApiResponse::error(400, &format!("The body could not be understood: {error}.")))
    }

    /// The `type` of the requested action, if any.
    pub(crate) fn action(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Typed {
            #[serde(rename = "type")]
            kind: Option<String>,
        }
        let posts = self.method == "POST" && self.path.trim_end_matches('/').ends_with("/actions");
        posts.then(|| serde_json::from_slice::<Typed>(&self.body).ok()?.kind).flatten()
    }
}

/// Percent-decoding; malformed escapes are kept.
pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Percent-encoding of all but the unreserved characters.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_parsed() {
        let request = Request {
            method: "POST".into(),
            path: "/v2/volumes/a%20b/actions/".into(),
            query: "name=a%2Bb+c&region=&page=2&odd".into(),
            body: br#"{"type":"attach","droplet_id":1}"#.into(),
            base: String::new(),
        };
        assert_eq!(request.parts(), ["v2", "volumes", "a b", "actions"]);
        assert_eq!(request.param("name").as_deref(), Some("a+b c"));
        assert_eq!(request.param("region"), None);
        assert_eq!(request.param("page").as_deref(), Some("2"));
        assert_eq!(request.action().as_deref(), Some("attach"));
        assert_eq!(request.json::<Vec<u8>>().unwrap_err().status, 400);
        assert_eq!(Request { method: "GET".into(), ..request }.action(), None);
    }

    #[test]
    fn percent_encoding_round_trips() {
        for (text, decoded) in [("a%20b", "a b"), ("%", "%"), ("%zz", "%zz"), ("%C3%A4", "ä"), ("%2", "%2")]
        {
            assert_eq!(decode(text), decoded);
        }
        assert_eq!(encode("a b/ä&="), "a%20b%2F%C3%A4%26%3D");
    }
}
