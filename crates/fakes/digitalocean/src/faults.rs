//! Faults: what goes wrong, with which requests, and how often.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A fault and its aim. As JSON:
/// `{"method":"POST","path":"/v2/volumes/*/actions","action":"attach","skip":1,"times":2,"what":"reset_after"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Only requests with this method.
    #[serde(default)]
    pub method: Option<String>,
    /// Only requests to this path, without its query; `*` is any number of characters. All paths if not given,
    /// those of the metadata service too.
    #[serde(default)]
    pub path: Option<String>,
    /// Only requests for this action: `attach`, `detach` or `resize`.
    #[serde(default)]
    pub action: Option<String>,
    /// So many that fit pass first.
    #[serde(default)]
    pub skip: u64,
    /// So many are hit; all that follow if not given.
    #[serde(default)]
    pub times: Option<u64>,
    /// What happens to them.
    pub what: What,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum What {
    /// The request waits so many milliseconds before anything happens. Adds up with other faults.
    LatencyMs(u64),
    /// An error in place of the answer, without effect: 429, 500, 502, 503, 401 or any other.
    Status {
        /// The status.
        code: u16,
        /// The message; the status's usual one if not given.
        #[serde(default)]
        message: Option<String>,
        /// The header, in seconds.
        #[serde(default)]
        retry_after: Option<i64>,
    },
    /// The effect happens, and then the answer is this error.
    StatusAfter(u16),
    /// The connection is reset, without effect.
    ResetBefore,
    /// The effect happens, and then the connection is reset.
    ResetAfter,
    /// The effect happens; half of the JSON comes, as if that were all.
    Truncated,
    /// The effect happens; half of the body comes, and then the connection is closed.
    CutOff,
    /// A page in HTML with this status, without effect, as proxies answer.
    Html(u16),
    /// The action ends `errored`, at its time.
    ActionErrored,
    /// The action stays `in-progress` for ever.
    ActionNeverEnds,
    /// The action takes so many milliseconds; with 0 it has ended in the 202 already.
    ActionDelayMs(u64),
}

impl Fault {
    /// A fault of every request.
    pub fn new(what: What) -> Self {
        Self { method: None, path: None, action: None, skip: 0, times: None, what }
    }

    /// Only for requests of this method to this path; see [`Fault::path`].
    pub fn at(mut self, method: &str, path: &str) -> Self {
        self.method = Some(method.to_owned());
        self.path = Some(path.to_owned());
        self
    }

    /// Only for this action: `attach`, `detach` or `resize`.
    pub fn action(mut self, action: &str) -> Self {
        self.action = Some(action.to_owned());
        self
    }

    /// Lets so many pass first.
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Hits so many.
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    fn fits(&self, method: &str, path: &str, action: Option<&str>) -> bool {
        self.method.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(method))
            && self.path.as_deref().is_none_or(|pattern| glob(pattern, path))
            && self.action.as_deref().is_none_or(|wanted| Some(wanted) == action)
    }
}

/// Whether `text` is as `pattern` says, where `*` is any number of characters.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).filter(|i| tail.is_char_boundary(*i)).any(|i| glob(rest, &tail[i..]))
        }),
    }
}

/// The faults that are set, each with how many requests fitted it.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    next: u64,
    set: Vec<(u64, Fault, u64)>,
}

/// What is to go wrong with one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Struck {
    pub(crate) latency: Duration,
    /// The first that fits, latency aside.
    pub(crate) what: Option<What>,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) -> u64 {
        self.next += 1;
        self.set.push((self.next, fault, 0));
        self.next
    }

    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let before = self.set.len();
        self.set.retain(|(number, ..)| *number != id);
        self.set.len() < before
    }

    pub(crate) fn clear(&mut self) {
        self.set.clear();
    }

    /// Number, fault, and how many requests fitted it so far.
    pub(crate) fn list(&self) -> &[(u64, Fault, u64)] {
        &self.set
    }

    /// What goes wrong with this request; counts it.
    pub(crate) fn strike(&mut self, method: &str, path: &str, action: Option<&str>) -> Struck {
        let mut struck = Struck::default();
        for (_, fault, seen) in &mut self.set {
            if !fault.fits(method, path, action) {
                continue;
            }
            *seen += 1;
            let hits = *seen > fault.skip && fault.times.is_none_or(|times| *seen - fault.skip <= times);
            match (&fault.what, hits) {
                (_, false) => {}
                (What::LatencyMs(latency), true) => struck.latency += Duration::from_millis(*latency),
                (what, true) if struck.what.is_none() => struck.what = Some(what.clone()),
                _ => {}
            }
        }
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims() {
        let any = Fault::new(What::ResetBefore);
        let attach = any.clone().at("POST", "/v2/volumes/*/actions").action("attach");
        let table = [
            (&any, "GET", "/anything", None, true),
            (&attach, "POST", "/v2/volumes/a/actions", Some("attach"), true),
            (&attach, "post", "/v2/volumes/a/actions", Some("attach"), true),
            (&attach, "POST", "/v2/volumes/a/actions", Some("detach"), false),
            (&attach, "POST", "/v2/volumes/a/actions", None, false),
            (&attach, "GET", "/v2/volumes/a/actions", Some("attach"), false),
            (&attach, "POST", "/v2/volumes/a/actions/1", Some("attach"), false),
            (&attach, "POST", "/v2/volumes/actions", Some("attach"), false),
        ];
        for (fault, method, path, action, fits) in table {
            assert_eq!(fault.fits(method, path, action), fits, "{fault:?} {method} {path} {action:?}");
        }
    }

    #[test]
    fn globs() {
        let table = [
            ("", "", true),
            ("*", "", true),
            ("*", "/x", true),
            ("/v2/*", "/v2/", true),
            ("/v2/*", "/v1/", false),
            ("*/actions*", "/v2/volumes/x/actions/1", true),
            ("/a*b*c", "/aXbYbZc", true),
            ("/a*b*c", "/aXbYbZ", false),
            ("/ä*", "/äö", true),
        ];
        for (pattern, text, fits) in table {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn counts() {
        let mut faults = Faults::default();
        let id = faults.add(Fault::new(What::ResetAfter).skip(1).times(2));
        faults.add(Fault::new(What::LatencyMs(5)).at("GET", "*"));
        faults.add(Fault::new(What::Truncated).at("GET", "*"));
        let mut hits = |method: &str| {
            let struck = faults.strike(method, "/", None);
            (struck.what, struck.latency.as_millis())
        };
        assert_eq!(hits("POST"), (None, 0));
        assert_eq!(hits("POST"), (Some(What::ResetAfter), 0));
        assert_eq!(hits("GET"), (Some(What::ResetAfter), 5));
        assert_eq!(hits("GET"), (Some(What::Truncated), 5));
        assert!(faults.remove(id));
        assert!(!faults.remove(id));
        faults.clear();
        assert_eq!(faults.strike("GET", "/", None), Struck::default());
    }

    #[test]
    fn as_json() {
        let text = r#"{"method":"POST","path":"/v2/volumes","times":1,"what":{"status":{"code":503}}}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        let what = What::Status { code: 503, message: None, retry_after: None };
        assert_eq!(fault, Fault::new(what).at("POST", "/v2/volumes").times(1));
        let text = r#"{"what":"action_never_ends","action":"attach"}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!(fault, Fault::new(What::ActionNeverEnds).action("attach"));
        assert!(serde_json::from_str::<Fault>(r#"{"what":"x"}"#).is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"what":"truncated","tims":1}"#).is_err());
    }
}
