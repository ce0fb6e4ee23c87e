//! Fault injection: which requests fail, how, and how often.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A fault and the requests it matches. As JSON:
/// `{"method":"POST","path":"/v2/volumes/*/actions","action":"attach","skip":1,"times":2,"effect":"reset_after"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Only requests with this method.
    #[serde(default)]
    pub method: Option<String>,
    /// Only requests to this path, without the query; `*` matches any number of characters. If not given, all paths,
    /// including those of the metadata service.
    #[serde(default)]
    pub path: Option<String>,
    /// Only requests for this action: `attach`, `detach` or `resize`.
    #[serde(default)]
    pub action: Option<String>,
    /// Number of matching requests that pass first.
    #[serde(default)]
    pub skip: u64,
    /// Number of requests that fail; all that follow if not given.
    #[serde(default)]
    pub times: Option<u64>,
    /// The effect on these requests.
    pub effect: FaultEffect,
}

/// The effect of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultEffect {
    /// The request is delayed by this many milliseconds. Adds to other faults.
    LatencyMs(u64),
    /// An error response, without effect: 429, 500, 502, 503, 401 or any other.
    Status {
        /// The status.
        code: u16,
        /// The message; the default message of the status if not given.
        #[serde(default)]
        message: Option<String>,
        /// The `retry-after` header, in seconds.
        #[serde(default)]
        retry_after: Option<i64>,
    },
    /// The request takes effect, but the response is this error.
    StatusAfter(u16),
    /// The connection is reset, without effect.
    ResetBefore,
    /// The request takes effect, then the connection is reset.
    ResetAfter,
    /// The request takes effect; the response contains only half of the JSON, with a matching length.
    Truncated,
    /// The request takes effect; the connection is closed after half of the body.
    CutOff,
    /// An HTML page with this status, without effect, as a proxy sends it.
    Html(u16),
    /// The action ends `errored` after the usual time.
    ActionErrored,
    /// The action stays `in-progress` forever.
    ActionNeverEnds,
    /// The action takes this many milliseconds; with 0 it is already completed in the 202.
    ActionDelayMs(u64),
}

impl Fault {
    /// A fault that matches every request.
    pub fn new(effect: FaultEffect) -> Self {
        Self { method: None, path: None, action: None, skip: 0, times: None, effect }
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

    /// Lets this many requests pass first.
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Limits the fault to this many requests.
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

/// Whether `text` matches `pattern`, where `*` matches any number of characters.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).filter(|i| tail.is_char_boundary(*i)).any(|i| glob(rest, &tail[i..]))
        }),
    }
}

/// The configured faults, each with its number of matching requests.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    next: u64,
    set: Vec<(u64, Fault, u64)>,
}

/// The faults that apply to one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MatchedFaults {
    pub(crate) latency: Duration,
    /// The first matching effect other than latency.
    pub(crate) effect: Option<FaultEffect>,
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

    /// Number, fault, and its number of matching requests so far.
    pub(crate) fn list(&self) -> &[(u64, Fault, u64)] {
        &self.set
    }

    /// The faults for this request; counts it.
    pub(crate) fn apply(&mut self, method: &str, path: &str, action: Option<&str>) -> MatchedFaults {
        let mut matched = MatchedFaults::default();
        for (_, fault, seen) in &mut self.set {
            if !fault.fits(method, path, action) {
                continue;
            }
            *seen += 1;
            let hits = *seen > fault.skip && fault.times.is_none_or(|times| *seen - fault.skip <= times);
            match (&fault.effect, hits) {
                (_, false) => {}
                (FaultEffect::LatencyMs(latency), true) => matched.latency += Duration::from_millis(*latency),
                (effect, true) if matched.effect.is_none() => matched.effect = Some(effect.clone()),
                _ => {}
            }
        }
        matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_matches_method_path_and_action() {
        let any = Fault::new(FaultEffect::ResetBefore);
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
    fn glob_star_matches_any_characters() {
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
    fn skip_and_times_limit_a_fault() {
        let mut faults = Faults::default();
        let id = faults.add(Fault::new(FaultEffect::ResetAfter).skip(1).times(2));
        faults.add(Fault::new(FaultEffect::LatencyMs(5)).at("GET", "*"));
        faults.add(Fault::new(FaultEffect::Truncated).at("GET", "*"));
        let mut hits = |method: &str| {
            let matched = faults.apply(method, "/", None);
            (matched.effect, matched.latency.as_millis())
        };
        assert_eq!(hits("POST"), (None, 0));
        assert_eq!(hits("POST"), (Some(FaultEffect::ResetAfter), 0));
        assert_eq!(hits("GET"), (Some(FaultEffect::ResetAfter), 5));
        assert_eq!(hits("GET"), (Some(FaultEffect::Truncated), 5));
        assert!(faults.remove(id));
        assert!(!faults.remove(id));
        faults.clear();
        assert_eq!(faults.apply("GET", "/", None), MatchedFaults::default());
    }

    #[test]
    fn fault_is_parsed_from_json() {
        let text = r#"{"method":"POST","path":"/v2/volumes","times":1,"effect":{"status":{"code":503}}}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        let effect = FaultEffect::Status { code: 503, message: None, retry_after: None };
        assert_eq!(fault, Fault::new(effect).at("POST", "/v2/volumes").times(1));
        let text = r#"{"effect":"action_never_ends","action":"attach"}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!(fault, Fault::new(FaultEffect::ActionNeverEnds).action("attach"));
        assert!(serde_json::from_str::<Fault>(r#"{"effect":"x"}"#).is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"effect":"truncated","tims":1}"#).is_err());
    }
}
