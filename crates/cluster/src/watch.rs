//! One shared watch: LIST in pages, then WATCH with bookmarks, resumed from the last version as long as the server
//! retains it. The rules are in [`machine`]; this module does the network I/O and the waiting.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use wharf_model::{Kind, View};

use crate::jitter::{exponential, jitter};
use crate::store::Store;
use crate::transport::{Call, Transport};
use machine::{Input, Reporter, State, step};

pub(crate) mod decode;
mod lines;
mod machine;

/// Objects per page.
pub(crate) const PAGE_SIZE: &str = "500";
/// How long to wait for the server to accept a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The retry interval for a kind that is not served.
const MISSING_RETRY: Duration = Duration::from_secs(30);
/// A stream that lasted this long counts as successful, even without events.
const MIN_USEFUL: Duration = Duration::from_secs(5);
/// The server sends a bookmark every minute. After this long without data the connection may be broken, for example
/// because the server's address has moved to another machine. Resuming the watch costs one request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
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
    /// The view that the caller needs. It may get a fuller one; see [`Cluster::with_slim_views`](crate::Cluster::with_slim_views).
    pub view: View,
}

impl WatchOptions {
    /// All objects, for a caller that needs only a slim view of them.
    pub fn slim() -> Self {
        Self { view: View::Slim, ..Self::default() }
    }
}

/// Keeps the store up to date until `stop` is cancelled.
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
        state = tokio::select! {
            biased;
            // A request or a backoff that began before is not waited for.
            () = store.wait_list_wanted() => State::start(),
            next = advance(&transport, &options, &store, &mut report, state) => next,
        };
    }
}

async fn advance<K: Kind>(
    transport: &Transport,
    options: &WatchOptions,
    store: &Store<K>,
    report: &mut Reporter,
    state: State,
) -> State {
    pause(&state).await;
    match &state {
        State::Watching { version, .. } => {
            let version = version.clone();
            stream(transport, options, store, report, state, version).await
        }
        State::Listing { next, unpaged, .. } => {
            let call = page_call::<K>(options, next.clone(), *unpaged);
            if next.is_none() {
                begin_list(store, report);
            }
            list(transport, call, store, report, state).await
        }
        State::Missing { .. } => {
            begin_list(store, report);
            list(transport, page_call::<K>(options, None, false), store, report, state).await
        }
    }
}

async fn pause(state: &State) {
    let failures = match state {
        State::Missing { .. } => return sleep(MISSING_RETRY).await,
        State::Listing { failures, .. } | State::Watching { failures, .. } => *failures,
    };
    if let Some(earlier) = failures.checked_sub(1) {
        sleep(exponential(RETRY_START, RETRY_MAX, earlier, jitter())).await;
    }
}

fn begin_list<K: Kind>(store: &Store<K>, report: &Reporter) {
    report.metrics.watch_start(report.plural, "list");
    store.update(|table| {
        table.begin_list();
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
    // Not all watches of a cluster should end at the same time.
    let seconds = 240 + (jitter() * 50.0) as u64;
    let call = base_call::<K>("WATCH", options)
        .query("watch", "true")
        .query("allowWatchBookmarks", "true")
        .query("timeoutSeconds", seconds.to_string())
        .query("resourceVersion", version);
    let mut body = match transport.open(call, OPEN_TIMEOUT).await {
        Ok(body) => body,
        Err(error) => return step(state, Input::Failed(error), store, report),
    };
    state = step(state, Input::Opened, store, report);
    let opened = Instant::now();
    // The server ends the stream in time; if it does not, the connection is broken.
    let deadline = opened + Duration::from_secs(seconds + 15);
    let mut lines = lines::Lines::default();
    let mut received = false;
    let read_deadline = || deadline.min(Instant::now() + IDLE_TIMEOUT);
    while let Ok(Some(Ok(frame))) = timeout_at(read_deadline(), body.frame()).await {
        let Ok(data) = frame.into_data() else { continue };
        for line in lines.push(&data) {
            received = true;
            state = step(state, Input::Line(line), store, report);
            if failures(&state) != Some(0) {
                return state;
            }
        }
    }
    step(state, Input::Ended { useful: received || opened.elapsed() >= MIN_USEFUL }, store, report)
}

/// The failures of a watch; `None` in other states.
fn failures(state: &State) -> Option<u32> {
    match state {
        State::Watching { failures, .. } => Some(*failures),
        State::Listing { .. } | State::Missing { .. } => None,
    }
}

pub(crate) fn page_call<'a, K: Kind>(
    options: &'a WatchOptions,
    next: Option<String>,
    unpaged: bool,
) -> Call<'a> {
    let mut call = base_call::<K>("LIST", options);
    if !unpaged {
        call = call.query("limit", PAGE_SIZE);
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
