//! The state machine with raw input, without a network.

use super::*;
use crate::WatchOptions;
use crate::error::Subject;
use crate::testing::{Thing, thing};
use serde_json::{Value, json};

struct Bench {
    state: State,
    store: Store<Thing>,
    report: Reporter,
}

impl Bench {
    fn new() -> Self {
        let report = Reporter::new(Metrics::default(), "Thing", "things");
        Self { state: State::start(), store: Store::new(WatchOptions::default()), report }
    }

    fn feed(&mut self, input: Input<'_>) -> &State {
        let state = std::mem::replace(&mut self.state, State::start());
        self.state = step(state, input, &self.store, &mut self.report);
        &self.state
    }

    fn page(&mut self, version: &str, next: &str, items: Value) -> &State {
        if matches!(self.state, State::Listing { next: None, .. } | State::Missing { .. }) {
            self.store.update(|table| {
                table.begin_list();
                None
            });
        }
        let page = json!({"metadata": {"resourceVersion": version, "continue": next}, "items": items});
        self.feed(Input::Page(page.to_string().as_bytes()))
    }

    fn line(&mut self, kind: &str, object: Value) -> &State {
        let line = json!({"type": kind, "object": object}).to_string().into_bytes();
        self.feed(Input::Line(Line::Whole(line)))
    }

    fn names(&self) -> Vec<String> {
        let name = |thing: &std::sync::Arc<Thing>| thing.metadata.name.clone();
        self.store.all().iter().map(name).collect()
    }
}

fn refusal() -> crate::Refusal {
    Subject { method: "LIST", api: &Thing::API, namespace: None, name: None, creating: None }.refusal("no")
}

fn watching(version: &str, failures: u32) -> State {
    State::Watching { version: version.into(), failures }
}

fn listing(next: Option<&str>, unpaged: bool, failures: u32) -> State {
    State::Listing { next: next.map(str::to_owned), unpaged, failures }
}

#[test]
fn watch_starts_after_the_last_page() {
    let mut bench = Bench::new();
    assert_eq!(*bench.page("10", "more", json!([thing("a", 5, "red")])), listing(Some("more"), false, 0));
    assert_eq!(bench.store.sync_state(), SyncState::Listing);
    assert_eq!(*bench.page("10", "", json!([thing("b", 6, "red")])), watching("10", 0));
    assert_eq!(bench.store.sync_state(), SyncState::Synced);
    assert_eq!(*bench.line("ADDED", thing("c", 11, "red")), watching("11", 0));
    assert_eq!(*bench.line("DELETED", thing("a", 12, "red")), watching("12", 0));
    let bookmark = json!({"kind": "Thing", "metadata": {"resourceVersion": "50"}});
    assert_eq!(*bench.line("BOOKMARK", bookmark), watching("50", 0));
    assert_eq!(bench.names(), ["b", "c"]);
}

#[test]
fn watch_resumes_and_backs_off_after_useless_streams() {
    let mut bench = Bench::new();
    bench.page("10", "", json!([]));
    bench.feed(Input::Opened);
    assert_eq!(*bench.feed(Input::Ended { useful: true }), watching("10", 0));
    bench.feed(Input::Opened);
    assert_eq!(*bench.feed(Input::Ended { useful: false }), watching("10", 1));
    bench.feed(Input::Opened);
    assert_eq!(*bench.feed(Input::Ended { useful: false }), watching("10", 2));
    assert_eq!(*bench.feed(Input::Failed(ApiError::Unavailable(refusal()))), watching("10", 3));
    assert_eq!(*bench.line("ADDED", thing("c", 11, "red")), watching("11", 0));
}

#[test]
fn expired_version_relists_and_keeps_the_store_meanwhile() {
    for by_line in [true, false] {
        let mut bench = Bench::new();
        bench.page("10", "", json!([thing("a", 5, "red"), thing("b", 6, "red")]));
        let mut changes = bench.store.subscribe();
        let state = match by_line {
            true => bench.line("ERROR", json!({"kind": "Status", "code": 410, "reason": "Expired"})),
            false => bench.feed(Input::Failed(ApiError::Gone(refusal()))),
        };
        assert_eq!(*state, listing(None, false, 1));
        assert_eq!(bench.names(), ["a", "b"]);
        bench.page("20", "", json!([thing("b", 6, "red"), thing("c", 15, "red")]));
        assert_eq!(bench.names(), ["b", "c"]);
        let store = std::mem::replace(&mut bench.store, Store::new(WatchOptions::default()));
        drop(store);
        let mut events = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        while let Some(notice) = runtime.block_on(changes.next()) {
            if let crate::StoreEvent::Change(change) = notice {
                events.push((change.key.name, change.old.is_some(), change.new.is_some()));
            }
        }
        assert_eq!(
            events,
            [("c".to_owned(), false, true), ("a".to_owned(), true, false)],
            "only the difference"
        );
    }
}

#[test]
fn expired_page_is_followed_by_an_unpaged_list() {
    let mut bench = Bench::new();
    bench.page("10", "more", json!([thing("a", 5, "red")]));
    assert_eq!(*bench.feed(Input::Failed(ApiError::Gone(refusal()))), listing(None, true, 1));
    assert_eq!(*bench.page("20", "", json!([thing("a", 5, "red")])), watching("20", 1));
}

/// An unpaged list of a large cluster's pods exceeds the size limit of a response, so it would fail every time.
#[test]
fn failed_unpaged_list_is_paged_again() {
    let mut bench = Bench::new();
    bench.page("10", "more", json!([thing("a", 5, "red")]));
    bench.feed(Input::Failed(ApiError::Gone(refusal())));
    let broken = || Input::Failed(ApiError::Unavailable(refusal()));
    assert_eq!(*bench.feed(broken()), listing(None, false, 2));
    bench.page("20", "more", json!([thing("a", 5, "red")]));
    assert_eq!(*bench.feed(broken()), listing(Some("more"), false, 1), "the continue token is kept");
}

/// Another server, newer or older, may not know the continue token of the previous one.
#[test]
fn rejected_continue_token_is_followed_by_an_unpaged_list() {
    let mut bench = Bench::new();
    bench.page("10", "more", json!([thing("a", 5, "red")]));
    assert_eq!(*bench.feed(Input::Failed(ApiError::Invalid(refusal()))), listing(None, true, 1));
    assert_eq!(*bench.feed(Input::Failed(ApiError::Invalid(refusal()))), listing(None, false, 2));
    assert_eq!(bench.names(), ["a"]);
}

#[test]
fn undecodable_objects_do_not_stop_the_stream() {
    let mut bench = Bench::new();
    bench.page("10", "", json!([thing("a", 5, "red"), {"metadata": "strange"}, {"color": 7}]));
    assert_eq!(bench.names(), ["a"]);
    let mut bad = thing("a", 11, "red");
    bad["color"] = json!({"not": "a string"});
    assert_eq!(*bench.line("MODIFIED", bad.clone()), watching("11", 0), "its version still counts");
    assert_eq!(bench.names(), ["a"], "its last decoded version is kept");
    bad["metadata"]["resourceVersion"] = json!("12");
    assert_eq!(*bench.line("DELETED", bad), watching("12", 0), "the key is enough to delete");
    assert!(bench.names().is_empty());
}

/// The change of an unknown object is lost, so the store would be outdated until the next relist.
#[test]
fn line_without_a_readable_key_is_followed_by_a_relist() {
    let junk = [&b"{"[..], b"null", b"{\"type\":\"WHAT\",\"object\":{}}", b"\xff\xfe"];
    let lines = junk.map(|junk| Line::Whole(junk.to_vec()));
    for line in lines.into_iter().chain([Line::TooLong]) {
        let mut bench = Bench::new();
        bench.page("10", "", json!([thing("a", 5, "red")]));
        assert_eq!(*bench.feed(Input::Line(line)), listing(None, false, 1));
        assert_eq!((bench.names(), bench.store.undecodable()), (vec!["a".to_owned()], vec![None]));
        bench.page("20", "", json!([thing("b", 6, "red")]));
        assert_eq!((bench.names(), bench.store.undecodable()), (vec!["b".to_owned()], vec![]));
    }
}

#[test]
fn other_stream_errors_resume_the_watch() {
    let mut bench = Bench::new();
    bench.page("10", "", json!([]));
    assert_eq!(*bench.line("ERROR", json!({"kind": "Status", "code": 500})), watching("10", 1));
}

#[test]
fn unserved_kind_empties_the_store_after_repeated_attempts() {
    let mut bench = Bench::new();
    let missing = || Input::Failed(ApiError::NotServed(refusal()));
    assert_eq!(*bench.feed(missing()), State::Missing { attempts: 1 });
    assert_eq!((bench.store.sync_state(), bench.store.is_synced()), (SyncState::NotServed, false));
    bench.page("10", "", json!([thing("a", 5, "red")]));
    assert!(bench.store.is_synced());
    // No longer served while watched: the store is not emptied at once.
    assert_eq!(*bench.feed(missing()), listing(None, false, 1));
    assert_eq!(*bench.feed(missing()), State::Missing { attempts: 1 });
    bench.feed(missing());
    assert_eq!(bench.names(), ["a"]);
    bench.feed(missing());
    assert!(bench.names().is_empty());
}

#[test]
fn forbidden_is_reported_and_retried() {
    let mut bench = Bench::new();
    assert_eq!(*bench.feed(Input::Failed(ApiError::Forbidden(refusal()))), listing(None, false, 1));
    assert_eq!(bench.store.sync_state(), SyncState::Forbidden);
    bench.page("10", "", json!([thing("a", 5, "red")]));
    assert_eq!(*bench.feed(Input::Failed(ApiError::Forbidden(refusal()))), watching("10", 2));
    assert_eq!((bench.store.sync_state(), bench.store.len()), (SyncState::Forbidden, 1));
    bench.feed(Input::Opened);
    assert_eq!(bench.store.sync_state(), SyncState::Synced);
}

#[test]
fn invalid_list_response_is_retried() {
    let mut bench = Bench::new();
    assert_eq!(*bench.feed(Input::Page(b"<html>")), listing(None, false, 1));
    assert_eq!(bench.store.sync_state(), SyncState::Listing);
}
