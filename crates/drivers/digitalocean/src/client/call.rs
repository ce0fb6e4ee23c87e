//! One API call: what is sent, and whether it can be retried.

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::error::{ApiError, ApiErrorKind, CallName};
use super::retry::RetryPolicy;

/// All but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A call that can be sent more than once.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) name: CallName,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) repeat: RetryPolicy,
    /// Why the call is invalid and must not be sent.
    fault: Option<(ApiErrorKind, String)>,
}

impl Call {
    pub(crate) fn get<const N: usize>(path: [&str; N]) -> Self {
        Self::new(Method::GET, path, RetryPolicy::Always)
    }

    pub(crate) fn delete<const N: usize>(path: [&str; N]) -> Self {
        Self::new(Method::DELETE, path, RetryPolicy::Always)
    }

    /// A POST is not idempotent, unless marked with [`Call::repeatable`].
    pub(crate) fn post<const N: usize>(path: [&str; N], body: &impl Serialize) -> Self {
        let mut call = Self::new(Method::POST, path, RetryPolicy::OnlyWithoutEffect);
        match serde_json::to_vec(body) {
            Ok(body) => call.body = Some(body),
            Err(error) => call.fault = Some((ApiErrorKind::BadRequest, error.to_string())),
        }
        call
    }

    fn new<const N: usize>(method: Method, path: [&str; N], repeat: RetryPolicy) -> Self {
        // An empty name would turn a GET of one object into a list of all, and a DELETE into one of many.
        let odd = path.iter().find(|part| !is_segment(part));
        let fault = odd.map(|part| {
            (ApiErrorKind::NotFound, format!("{part:?} is not a valid name in the API, so it does not exist"))
        });
        let name = CallName { method, path: format!("/v2/{}", path.join("/")) };
        Self { name, query: Vec::new(), body: None, repeat, fault }
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub(crate) fn repeatable(mut self) -> Self {
        self.repeat = RetryPolicy::Always;
        self
    }

    /// The path with its query, beneath the URL's own path.
    pub(crate) fn target(&self) -> Result<String, ApiError> {
        if let Some((kind, fault)) = &self.fault {
            return Err(ApiError::local(&self.name, *kind, false, fault.clone()));
        }
        let mut target = self.name.path.clone();
        for (position, (name, value)) in self.query.iter().enumerate() {
            target.push(if position == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            target.extend(utf8_percent_encode(value, RESERVED));
        }
        Ok(target)
    }
}

/// Whether the text is one segment of a path and nothing else. Ids are UUIDs and numbers, tags have a colon.
fn is_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_percent_encoded() {
        let call = Call::get(["volumes"]).query("name", "a b&c").query("region", "nyc3");
        assert_eq!(call.target().unwrap(), "/v2/volumes?name=a%20b%26c&region=nyc3");
        assert_eq!(call.name.to_string(), "GET /v2/volumes");
        let call = Call::post(["tags", "k8s:one", "resources"], &());
        assert_eq!(call.target().unwrap(), "/v2/tags/k8s:one/resources");
    }

    #[test]
    fn invalid_name_is_not_found_and_never_sent() {
        for id in ["", ".", "..", "a/b", "a?b", "a#b", "a%2fb", "a b", "ä", "a\n"] {
            let error = Call::delete(["volumes", id]).target().unwrap_err();
            assert_eq!((error.kind(), error.uncertain()), (ApiErrorKind::NotFound, false), "{id:?}");
        }
    }
}
