//! One shared watch: LIST in pages, then WATCH with bookmarks, resumed from the last version for as long as the
//! server keeps it. The rules are in [`machine`]; here is the network and the clock.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use wharf_model::Kind;

use crate::jitter::{exponential, jitter};
use crate::store::Store;
use crate::transport::{Call, Transport};
use machine::{Input, Reporter, State, step};

pub(crate) mod decode;
mod lines;
mod machine;

/// Objects per page.
pub(crate) const PAGE: &str = "500";
/// How long to wait for a watch to be accepted.
const OPEN: Duration = Duration::from_secs(30);
/// Between two looks for a kind that is not served.
const MISSING: Duration = Duration::from_secs(30);
/// A stream that lasted so long was of use, even if nothing happened.
const SERVED: Duration = Duration::from_secs(5);
/// The server sends a bookmark every minute: after so long without a word the connection may be dead, as when the
/// address of the server has moved to another machine. Going on where it ended costs one request.
const SILENCE: Duration = Duration::from_secs(90);
const RETRY_START: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Which objects of a kind a store holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchOptions {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only objects with these labels.
    pub label_selector: Option<String>,
    /// Only objects with these fields.
    pub field_selector: Option<String>,
}

/// Keeps the store up to date until it is cancelled.
pub(crate) async fn run<K: Kind>(
    transport: Transport,
    options: WatchOptions,
    store: Store<K>,
    stop: CancellationToken,
) {
    stop.run_until_cancelled(watch(transport, options, store)).await;
}

async fn watch<K: Kind>(transport: Transport, options: WatchOptions, store: Store<K>) {
    let mut report = Reporter::new(transport.metrics().clone(), K::API.kind, K::API.plural);
    let mut state = State::start();
    loop {
        pause(&state).await;
        state = match &state {
            State::Watching { version, .. } => {
                let version = version.clone();
                stream(&transport, &options, &store, &mut report, state, version).await
            }
            State::Listing { next, whole, .. } => {
                let call = page_call::<K>(&options, next.clone(), *whole);
                if next.is_none() {
                    begin_list(&store, &report);
                }
                list(&transport, call, &store, &mut report, state).await
            }
            State::Missing { .. } => {
                begin_list(&store, &report);
                list(&transport, page_call::<K>(&options, None, false), &store, &mut report, state).await
            }
        };
    }
}

async fn pause(state: &State) {
    let failures = match state {
        State::Missing { .. } => return sleep(MISSING).await,
        State::Listing { failures, .. } | State::Watching { failures, .. } => *failures,
    };
    if let Some(earlier) = failures.checked_sub(1) {
        sleep(exponential(RETRY_START, RETRY_MAX, earlier, jitter())).await;
    }
}

fn begin_list<K: Kind>(store: &Store<K>, report: &Reporter) {
    report.metrics.watch_start(report.plural, "list");
    store.update(|table| {
        table.list_begins();
        None
    });
}

async fn list<K: Kind>(
    transport: &Transport,
    call: Call<'_>,
    store: &Store<K>,
    report: &mut Reporter,
    state: State,
) -> State {
    match transport.send(call).await {
        Ok(bytes) => step(state, Input::Page(&bytes), store, report),
        Err(error) => step(state, Input::Failed(error), store, report),
    }
}

async fn stream<K: Kind>(
    transport: &Transport,
    options: &WatchOptions,
    store: &Store<K>,
    report: &mut Reporter,
    mut state: State,
    version: String,
) -> State {
    report.metrics.watch_start(report.plural, "watch");
    // Not all watches of a cluster should end at the same moment.
    let seconds = 240 + (jitter() * 50.0) as u64;
    let call = base_call::<K>("WATCH", options)
        .query("watch", "true")
        .query("allowWatchBookmarks", "true")
        .query("timeoutSeconds", seconds.to_string())
        .query("resourceVersion", version);
    let mut body = match transport.open(call, OPEN).await {
        Ok(body) => body,
        Err(error) => return step(state, Input::Failed(error), store, report),
    };
    state = step(state, Input::Opened, store, report);
    let opened = Instant::now();
    // The server ends the stream in time; if it does not, the connection is dead.
    let deadline = opened + Duration::from_secs(seconds + 15);
    let mut lines = lines::Lines::default();
    let mut told = false;
    let patience = || deadline.min(Instant::now() + SILENCE);
    while let Ok(Some(Ok(frame))) = timeout_at(patience(), body.frame()).await {
        let Ok(data) = frame.into_data() else { continue };
        for line in lines.push(&data) {
            told = true;
            state = step(state, Input::Line(line), store, report);
            if failures(&state) != Some(0) {
                return state;
            }
        }
    }
    step(state, Input::Ended { served: told || opened.elapsed() >= SERVED }, store, report)
}

/// The failures of a watch; `None` if it is not one.
fn failures(state: &State) -> Option<u32> {
    match state {
        State::Watching { failures, .. } => Some(*failures),
        State::Listing { .. } | State::Missing { .. } => None,
    }
}

pub(crate) fn page_call<'a, K: Kind>(
    options: &'a WatchOptions,
    next: Option<String>,
    whole: bool,
) -> Call<'a> {
    let mut call = base_call::<K>("LIST", options);
    if !whole {
        call = call.query("limit", PAGE);
    }
    match next {
        Some(next) => call.query("continue", next),
        None => call,
    }
}

fn base_call<'a, K: Kind>(method: &'static str, options: &'a WatchOptions) -> Call<'a> {
    let mut call = Call::collection(method, &K::API, options.namespace.as_deref());
    if let Some(selector) = &options.label_selector {
        call = call.query("labelSelector", selector.clone());
    }
    if let Some(selector) = &options.field_selector {
        call = call.query("fieldSelector", selector.clone());
    }
    call
}
