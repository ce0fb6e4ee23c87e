//! Sending calls: rate limit, retries, and lists over all pages.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use super::budget::{Admission, Limits};
use super::call::Call;
use super::error::{ApiError, ApiErrorKind, classify};
use super::retry::{Failure, RetryDecision, decide_retry};
use super::wire::Response;
use super::{Client, PER_PAGE};
use crate::backoff::jitter;

/// A million volumes; bounds a list that never ends.
const MAX_PAGES: usize = 5_000;

/// One page of a list.
pub(crate) struct ListPage<T> {
    pub(crate) items: Vec<T>,
    more: bool,
}

impl Client {
    /// Sends a call and parses its response.
    pub(super) async fn read<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        let read = |response: &Response| {
            serde_json::from_slice(&response.body)
                .map_err(|error| ApiError::bad_response(&call.name, response.status, unparseable(&error)))
        };
        self.send(&call, read).await
    }

    /// Sends a call whose response content is not needed. An unknown page still counts as an error: the API returns
    /// 204 or JSON.
    pub(super) async fn done(&self, call: Call) -> Result<(), ApiError> {
        let read = |response: &Response| match response.status {
            204 => Ok(()),
            status => serde_json::from_slice::<serde::de::IgnoredAny>(&response.body)
                .map(|_| ())
                .map_err(|error| ApiError::bad_response(&call.name, status, unparseable(&error))),
        };
        self.send(&call, read).await
    }

    /// All items of a list.
    pub(super) async fn all<T: DeserializeOwned>(&self, call: Call) -> Result<Vec<T>, ApiError> {
        let mut items = Vec::new();
        for number in 1..=MAX_PAGES {
            let page = self.page(call.clone(), number).await?;
            let more = page.more && !page.items.is_empty();
            items.extend(page.items);
            if !more {
                return Ok(items);
            }
        }
        Err(ApiError::local(
            &call.name,
            ApiErrorKind::BadResponse,
            false,
            format!("a list of more than {MAX_PAGES} pages"),
        ))
    }

    /// One page of a list, starting at 1. Pages are requested by number; the link to the next page is never followed,
    /// so that the token is not sent to an address from a response.
    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        call: Call,
        number: usize,
    ) -> Result<ListPage<T>, ApiError> {
        let call = call.query("page", number.to_string()).query("per_page", PER_PAGE.to_string());
        let plural = call.name.path.rsplit('/').next().unwrap_or_default().to_owned();
        let read = |response: &Response| {
            page(&response.body, &plural)
                .map_err(|error| ApiError::bad_response(&call.name, response.status, unparseable(&error)))
        };
        self.send(&call, read).await
    }

    async fn send<T>(
        &self,
        call: &Call,
        read: impl Fn(&Response) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let target = call.target()?;
        let deadline = Instant::now() + self.shared.timeout;
        let mut earlier = 0;
        loop {
            let mut in_flight = self.acquire(call, deadline).await?;
            let token = self.shared.token.header().await;
            let within = deadline.saturating_duration_since(Instant::now());
            let body = call.body.as_deref();
            let response = self.shared.wire.send(&call.name.method, &target, &token, body, within).await;
            let (error, sent) = match response {
                Ok(response) => match parse_response(call, &response, &read, &mut in_flight.limits) {
                    Ok(value) => return Ok(value),
                    Err(error) => (error, true),
                },
                Err(error) => (
                    ApiError::local(&call.name, ApiErrorKind::Transport, error.sent, error.message),
                    error.sent,
                ),
            };
            drop(in_flight);
            let kind = error.kind();
            let new_token = kind == ApiErrorKind::Unauthorized && self.shared.token.header().await != token;
            let failure = Failure { kind, sent, new_token, earlier };
            let RetryDecision::After(pause) = decide_retry(call.repeat, failure, jitter()) else {
                return Err(error);
            };
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(call = %call.name, %error, retry_in = ?pause, "API call failed; retrying");
            sleep(pause).await;
            earlier += 1;
        }
    }

    /// Waits until the rate limiter admits this call, or fails if that is after the deadline.
    async fn acquire(&self, call: &Call, deadline: Instant) -> Result<InFlight<'_>, ApiError> {
        loop {
            let now = Instant::now();
            match self.budget(|budget| budget.try_acquire(now, self.priority)) {
                Admission::Now => return Ok(InFlight { client: self, limits: Limits::default() }),
                Admission::WaitUntil(until) if until < deadline => {
                    tracing::debug!(call = %call.name, wait = ?until - now, "waiting for the rate limit");
                    // Spread requests that wait for the same moment.
                    let spread = (deadline - until).min(Duration::from_millis(200)).mul_f64(jitter());
                    sleep_until(until + spread).await;
                }
                Admission::WaitUntil(until) => {
                    let wait = until - now;
                    let message =
                        format!("the API's rate limit is used up for another {} s", wait.as_secs() + 1);
                    return Err(ApiError::local(&call.name, ApiErrorKind::RateLimited, false, message)
                        .with_retry_after(Some(wait)));
                }
            }
        }
    }

    fn budget<T>(&self, change: impl FnOnce(&mut super::Budget) -> T) -> T {
        change(&mut self.shared.budget.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An admitted request; completes in the rate limiter on drop, with or without a response.
struct InFlight<'a> {
    client: &'a Client,
    limits: Limits,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.client.budget(|budget| budget.complete(Instant::now(), self.limits));
    }
}

fn parse_response<T>(
    call: &Call,
    response: &Response,
    read: impl Fn(&Response) -> Result<T, ApiError>,
    limits: &mut Limits,
) -> Result<T, ApiError> {
    *limits = read_limits(&response.headers);
    if (200..300).contains(&response.status) {
        return read(response);
    }
    let request = response.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let error = classify(&call.name, response.status, request, limits.retry_after, &response.body);
    limits.refused = error.kind() == ApiErrorKind::RateLimited;
    Err(error)
}

fn unparseable(error: &serde_json::Error) -> String {
    format!("failed to parse the response: {error}")
}

fn page<T: DeserializeOwned>(body: &[u8], plural: &str) -> Result<ListPage<T>, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Links {
        pages: Option<Pages>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Pages {
        next: Option<String>,
    }
    let mut root: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body)?;
    let missing = || serde::de::Error::custom(format!("it has no {plural}"));
    let items = root.remove(plural).ok_or_else(missing)?;
    let links: Option<Links> =
        root.remove("links").map(serde_json::from_value).transpose()?.unwrap_or_default();
    let next = links.unwrap_or_default().pages.unwrap_or_default().next;
    Ok(ListPage { items: serde_json::from_value(items)?, more: next.is_some_and(|next| !next.is_empty()) })
}

fn read_limits(headers: &HeaderMap) -> Limits {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Limits {
        limit: number("ratelimit-limit"),
        remaining: number("ratelimit-remaining"),
        reset: number("ratelimit-reset").map(|at| Duration::from_secs(at).saturating_sub(now)),
        retry_after: number(RETRY_AFTER.as_str()).map(Duration::from_secs),
        refused: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_parsed_and_never_mistaken_for_empty() {
        let more = r#"{"volumes":[1],"links":{"pages":{"next":"https://x/v2/volumes?page=2","last":"l"}}}"#;
        for (body, count, next) in [
            (r#"{"volumes":[1,2],"links":{},"meta":{"total":2}}"#, 2, false),
            (r#"{"volumes":[]}"#, 0, false),
            (r#"{"volumes":[],"links":null}"#, 0, false),
            (r#"{"volumes":[1],"links":{"pages":{"prev":"p","first":"f"}}}"#, 1, false),
            (more, 1, true),
        ] {
            let page: ListPage<u64> = page(body.as_bytes(), "volumes").unwrap();
            assert_eq!((page.items.len(), page.more), (count, next), "{body}");
        }
        // None of these is an empty list.
        for body in ["", "{}", r#"{"volumes":null}"#, r#"{"snapshots":[]}"#, "<html>", r#"{"volumes":[1"#] {
            assert!(page::<u64>(body.as_bytes(), "volumes").is_err(), "{body}");
        }
    }

    #[test]
    fn limits_are_read_from_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(read_limits(&headers), Limits::default());
        let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 100;
        for (name, value) in
            [("ratelimit-limit", "5000"), ("ratelimit-remaining", "12"), ("retry-after", "7")]
        {
            headers.insert(name, value.parse().unwrap());
        }
        headers.insert("ratelimit-reset", soon.into());
        let limits = read_limits(&headers);
        assert_eq!((limits.limit, limits.remaining), (Some(5000), Some(12)));
        assert_eq!(limits.retry_after, Some(Duration::from_secs(7)));
        assert!((98..=100).contains(&limits.reset.unwrap().as_secs()));
    }
}
