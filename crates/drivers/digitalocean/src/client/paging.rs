//! Sending calls: turns, repetitions, and lists over all their pages.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use super::budget::{Limits, Turn};
use super::call::Call;
use super::error::{ApiError, Kind, classify};
use super::retry::{Failure, Verdict, verdict};
use super::wire::Answer;
use super::{Client, PER_PAGE};
use crate::chance::jitter;

/// A million volumes; an API that never stops saying "next" is not followed for ever.
const MOST_PAGES: usize = 5_000;

/// One page of a list.
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    more: bool,
}

impl Client {
    /// Sends a call whose answer is read.
    pub(super) async fn read<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        let read = |answer: &Answer| {
            serde_json::from_slice(&answer.body)
                .map_err(|error| ApiError::bad_answer(&call.name, answer.status, not_understood(&error)))
        };
        self.send(&call, read).await
    }

    /// Sends a call whose answer has nothing in it that matters. A page from who knows where is no success all the
    /// same: the API says 204, or JSON.
    pub(super) async fn done(&self, call: Call) -> Result<(), ApiError> {
        let read = |answer: &Answer| match answer.status {
            204 => Ok(()),
            status => serde_json::from_slice::<serde::de::IgnoredAny>(&answer.body)
                .map(|_| ())
                .map_err(|error| ApiError::bad_answer(&call.name, status, not_understood(&error))),
        };
        self.send(&call, read).await
    }

    /// All items of a list.
    pub(super) async fn all<T: DeserializeOwned>(&self, call: Call) -> Result<Vec<T>, ApiError> {
        let mut items = Vec::new();
        for number in 1..=MOST_PAGES {
            let page = self.page(call.clone(), number).await?;
            let more = page.more && !page.items.is_empty();
            items.extend(page.items);
            if !more {
                return Ok(items);
            }
        }
        Err(ApiError::local(
            &call.name,
            Kind::BadAnswer,
            false,
            format!("a list of more than {MOST_PAGES} pages"),
        ))
    }

    /// One page of a list, beginning with 1. The link to the next is not followed but counted on: a token goes to
    /// no address that an answer names.
    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        call: Call,
        number: usize,
    ) -> Result<Page<T>, ApiError> {
        let call = call.query("page", number.to_string()).query("per_page", PER_PAGE.to_string());
        let plural = call.name.path.rsplit('/').next().unwrap_or_default().to_owned();
        let read = |answer: &Answer| {
            page(&answer.body, &plural)
                .map_err(|error| ApiError::bad_answer(&call.name, answer.status, not_understood(&error)))
        };
        self.send(&call, read).await
    }

    async fn send<T>(
        &self,
        call: &Call,
        read: impl Fn(&Answer) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let target = call.target()?;
        let deadline = Instant::now() + self.shared.patience;
        let mut earlier = 0;
        loop {
            let mut under_way = self.turn(call, deadline).await?;
            let token = self.shared.token.header().await;
            let within = deadline.saturating_duration_since(Instant::now());
            let body = call.body.as_deref();
            let answer = self.shared.wire.send(&call.name.method, &target, &token, body, within).await;
            let (error, sent) = match answer {
                Ok(answer) => match sort(call, &answer, &read, &mut under_way.told) {
                    Ok(value) => return Ok(value),
                    Err(error) => (error, true),
                },
                Err(error) => {
                    (ApiError::local(&call.name, Kind::Transport, error.sent, error.message), error.sent)
                }
            };
            drop(under_way);
            let kind = error.kind();
            let new_token = kind == Kind::Unauthorized && self.shared.token.header().await != token;
            let failure = Failure { kind, sent, new_token, earlier };
            let Verdict::After(pause) = verdict(call.repeat, failure, jitter()) else { return Err(error) };
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(%error, ?pause, "asking again");
            sleep(pause).await;
            earlier += 1;
        }
    }

    /// Waits until the budget lets this call go, or says until when it will not.
    async fn turn(&self, call: &Call, deadline: Instant) -> Result<UnderWay<'_>, ApiError> {
        loop {
            let now = Instant::now();
            match self.budget(|budget| budget.ask(now, self.priority)) {
                Turn::Go => return Ok(UnderWay { client: self, told: Limits::default() }),
                Turn::Wait(until) if until < deadline => {
                    tracing::debug!(call = %call.name, wait = ?until - now, "waiting for the rate limit");
                    // Those who wait for one moment do not all come at it.
                    let spread = (deadline - until).min(Duration::from_millis(200)).mul_f64(jitter());
                    sleep_until(until + spread).await;
                }
                Turn::Wait(until) => {
                    let wait = until - now;
                    let message =
                        format!("the API's rate limit is used up for another {} s", wait.as_secs() + 1);
                    return Err(ApiError::local(&call.name, Kind::RateLimited, false, message)
                        .with_retry_after(Some(wait)));
                }
            }
        }
    }

    fn budget<T>(&self, change: impl FnOnce(&mut super::Budget) -> T) -> T {
        change(&mut self.shared.budget.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request that the budget let go; when it is dropped it is so no more, answered or not.
struct UnderWay<'a> {
    client: &'a Client,
    told: Limits,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.client.budget(|budget| budget.answered(Instant::now(), self.told));
    }
}

fn sort<T>(
    call: &Call,
    answer: &Answer,
    read: impl Fn(&Answer) -> Result<T, ApiError>,
    told: &mut Limits,
) -> Result<T, ApiError> {
    *told = limits(&answer.headers);
    if (200..300).contains(&answer.status) {
        return read(answer);
    }
    let request = answer.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let error = classify(&call.name, answer.status, request, told.retry_after, &answer.body);
    told.refused = error.kind() == Kind::RateLimited;
    Err(error)
}

fn not_understood(error: &serde_json::Error) -> String {
    format!("the answer cannot be understood: {error}")
}

fn page<T: DeserializeOwned>(body: &[u8], plural: &str) -> Result<Page<T>, serde_json::Error> {
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
    Ok(Page { items: serde_json::from_value(items)?, more: next.is_some_and(|next| !next.is_empty()) })
}

fn limits(headers: &HeaderMap) -> Limits {
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
    fn pages_of_all_shapes() {
        let more = r#"{"volumes":[1],"links":{"pages":{"next":"https://x/v2/volumes?page=2","last":"l"}}}"#;
        for (body, count, next) in [
            (r#"{"volumes":[1,2],"links":{},"meta":{"total":2}}"#, 2, false),
            (r#"{"volumes":[]}"#, 0, false),
            (r#"{"volumes":[],"links":null}"#, 0, false),
            (r#"{"volumes":[1],"links":{"pages":{"prev":"p","first":"f"}}}"#, 1, false),
            (more, 1, true),
        ] {
            let page: Page<u64> = page(body.as_bytes(), "volumes").unwrap();
            assert_eq!((page.items.len(), page.more), (count, next), "{body}");
        }
        // None of these may be taken for an empty list.
        for body in ["", "{}", r#"{"volumes":null}"#, r#"{"snapshots":[]}"#, "<html>", r#"{"volumes":[1"#] {
            assert!(page::<u64>(body.as_bytes(), "volumes").is_err(), "{body}");
        }
    }

    #[test]
    fn reads_what_the_headers_say() {
        let mut headers = HeaderMap::new();
        assert_eq!(limits(&headers), Limits::default());
        let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 100;
        for (name, value) in
            [("ratelimit-limit", "5000"), ("ratelimit-remaining", "12"), ("retry-after", "7")]
        {
            headers.insert(name, value.parse().unwrap());
        }
        headers.insert("ratelimit-reset", soon.into());
        let limits = limits(&headers);
        assert_eq!((limits.limit, limits.remaining), (Some(5000), Some(12)));
        assert_eq!(limits.retry_after, Some(Duration::from_secs(7)));
        assert!((98..=100).contains(&limits.reset.unwrap().as_secs()));
    }
}
