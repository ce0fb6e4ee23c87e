//! Requests and shared watches against a server inside the test.

use super::*;
use crate::testing::{
    ReceivedRequest, Reply, Thing, line, list, scripted, scripted_client, status, stream, thing,
};
use crate::{StoreEvent, SyncState};
use std::time::Duration;

fn key(name: &str) -> Key {
    Key::namespaced("ns", name)
}

fn names(store: &Store<Thing>) -> Vec<String> {
    store.all().iter().map(|thing| thing.metadata.name.clone()).collect()
}

/// Waits for a condition, in paused time.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[test]
fn delete_responses_are_parsed() {
    let gone = |uid: &str| Deleted::Gone { uid: Some(uid.to_owned()) };
    let table = [
        (r#"{"kind":"Status","status":"Success","details":{"uid":"u"}}"#, gone("u")),
        (r#"{"kind":"Status","status":"Success"}"#, Deleted::Gone { uid: None }),
        (r#"{"kind":"PersistentVolume","metadata":{"uid":"u"}}"#, gone("u")),
        (r#"{"metadata":{"uid":"u","deletionTimestamp":"x","finalizers":["f"]}}"#, Deleted::Terminating),
        (r#"{"metadata":{"uid":"u","deletionTimestamp":"x","finalizers":[]}}"#, gone("u")),
        (
            r#"{"metadata":{"uid":"u","deletionTimestamp":"x","deletionGracePeriodSeconds":30}}"#,
            Deleted::Terminating,
        ),
        ("garbage", Deleted::Gone { uid: None }),
    ];
    for (body, expected) in table {
        assert_eq!(parse_delete_response(body.as_bytes()), expected, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn removing_the_last_finalizer_removes_the_object_from_the_store() {
    let (_watch, watch_reply) = stream();
    let deleting = |version: u64, finalizers: Value| {
        let mut object = thing("a", version, "red");
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["metadata"]["finalizers"] = finalizers;
        Reply::Json(200, object)
    };
    let (cluster, requests) = scripted(vec![
        list(10, "", vec![thing("a", 5, "red")]),
        watch_reply,
        deleting(11, json!(["x", "y"])),
        deleting(12, json!(["y"])),
        deleting(13, json!([])),
    ]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    eventually("the watch is open", || requests.lock().unwrap().len() == 2).await;
    cluster.delete(&Thing::API, &key("a"), Preconditions::default()).await.unwrap();
    assert!(store.get(&key("a")).unwrap().metadata.is_deleting());
    for finalizers_left in [Some(1), None] {
        cluster.patch(&Thing::API, &key("a"), None, Patch::Json(json!([]))).await.unwrap();
        assert_eq!(store.get(&key("a")).map(|thing| thing.metadata.finalizers.len()), finalizers_left);
    }
}

#[tokio::test(start_paused = true)]
async fn interrupted_watch_resumes_from_the_last_version() {
    let (first, first_reply) = stream();
    let (second, second_reply) = stream();
    let (cluster, requests) = scripted(vec![
        list(10, "more", vec![thing("a", 5, "red")]),
        list(10, "", vec![thing("b", 6, "red")]),
        first_reply,
        second_reply,
    ]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    let same = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    assert_eq!(names(&same), ["a", "b"]);

    first.send(line("ADDED", thing("c", 11, "red"))).unwrap();
    // The connection breaks in the middle of a line: the partial event is discarded, and the watch resumes before it.
    first.send(line("MODIFIED", thing("a", 12, "blue"))[..20].to_vec()).unwrap();
    eventually("c is cached", || names(&store) == ["a", "b", "c"]).await;
    drop(first);
    second.send(line("MODIFIED", thing("a", 12, "blue"))).unwrap();
    eventually("a is blue", || store.get(&key("a")).unwrap().color == "blue").await;

    let requests: Vec<ReceivedRequest> = requests.lock().unwrap().clone();
    let query = |number: usize, name: &str| requests[number].query.get(name).map(String::as_str);
    assert_eq!(requests.len(), 4, "both stores share one watch");
    assert_eq!((query(0, "limit"), query(0, "continue")), (Some("500"), None));
    assert_eq!(query(1, "continue"), Some("more"));
    assert_eq!((query(2, "resourceVersion"), query(2, "allowWatchBookmarks")), (Some("10"), Some("true")));
    assert_eq!(query(3, "resourceVersion"), Some("11"), "resumed");
}

fn named(name: &str) -> WatchOptions {
    WatchOptions { field_selector: Some(format!("metadata.name={name}")), ..WatchOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn selection_shares_the_watch_of_all_objects() {
    let (watch, watch_reply) = stream();
    let (cluster, requests) =
        scripted(vec![list(10, "", vec![thing("a", 5, "red"), thing("b", 6, "red")]), watch_reply]);
    let all = cluster.store::<Thing>(WatchOptions::default());
    let one = cluster.store::<Thing>(named("b"));
    one.wait_synced().await;
    assert_eq!((names(&all).len(), names(&one), one.len()), (2, vec!["b".to_owned()], 1));
    assert!(one.get(&key("a")).is_none() && one.get(&key("b")).is_some());
    let mut changes = one.subscribe();
    watch.send(line("MODIFIED", thing("a", 11, "blue"))).unwrap();
    watch.send(line("MODIFIED", thing("b", 12, "blue"))).unwrap();
    watch.send(line("DELETED", thing("b", 13, "blue"))).unwrap();
    assert!(matches!(changes.next().await, Some(StoreEvent::Resync)));
    for exists in [true, false] {
        let Some(StoreEvent::Change(change)) = changes.next().await else { panic!() };
        assert_eq!((change.key.name.as_str(), change.new.is_some()), ("b", exists));
    }
    assert_eq!(all.get(&key("a")).unwrap().color, "blue");
    assert_eq!(requests.lock().unwrap().len(), 2, "both stores share one watch");
}

#[tokio::test(start_paused = true)]
async fn each_selection_has_a_watch_if_nothing_watches_all_objects() {
    let watched = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&watched);
    let cluster = crate::testing::cluster(move |request| match request.is_watch() {
        true => {
            log.lock().unwrap().push(request.query["fieldSelector"].clone());
            Reply::Never
        }
        false => list(10, "", vec![]),
    });
    let stores = [cluster.store::<Thing>(named("a")), cluster.store(named("b")), cluster.store(named("a"))];
    for store in &stores {
        store.wait_synced().await;
    }
    eventually("two watches", || watched.lock().unwrap().len() == 2).await;
    assert_eq!(*watched.lock().unwrap(), ["metadata.name%3Da", "metadata.name%3Db"]);
}

/// The node agent of `wharf up` sends requests as its node, and reads the stores of the whole process.
#[tokio::test(start_paused = true)]
async fn cluster_with_another_user_shares_the_stores() {
    let (_watch, watch_reply) = stream();
    let (cluster, requests) = scripted(vec![list(10, "", vec![thing("a", 5, "red")]), watch_reply]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    eventually("the watch is open", || requests.lock().unwrap().len() == 2).await;
    let (other, others_requests) = scripted_client(vec![Reply::Json(200, thing("a", 12, "blue"))]);
    let user = cluster.with_user(other);
    assert_eq!(names(&user.store::<Thing>(named("a"))), ["a"]);
    user.patch(&Thing::API, &key("a"), None, Patch::Merge(json!({"color": "blue"}))).await.unwrap();
    assert_eq!(store.get(&key("a")).unwrap().color, "blue");
    assert_eq!((requests.lock().unwrap().len(), others_requests.lock().unwrap().len()), (2, 1));
}

/// A caller that needs full views gets them even in a process that uses slim views by default.
#[tokio::test(start_paused = true)]
async fn store_is_slim_only_if_process_and_caller_allow_it() {
    let slim = || WatchOptions { view: View::Slim, ..WatchOptions::default() };
    let view_of = |cluster: &Cluster, options| cluster.store::<wharf_model::Pod>(options).view();
    let (full, _) = scripted(Vec::new());
    assert_eq!((view_of(&full, slim()), view_of(&full, WatchOptions::default())), (View::Full, View::Full));
    assert_eq!(full.inner.watches.stores.lock().unwrap().len(), 1);
    let (sidecar, _) = scripted(Vec::new());
    let sidecar = sidecar.with_slim_views();
    assert_eq!(
        (view_of(&sidecar, slim()), view_of(&sidecar, WatchOptions::default())),
        (View::Slim, View::Full)
    );
}

/// A connection can break without notice, for example when the server's address moves to another machine.
#[tokio::test(start_paused = true)]
async fn idle_watch_is_resumed_on_another_connection() {
    let (silent, silent_reply) = stream();
    let (second, second_reply) = stream();
    let (cluster, requests) = scripted(vec![list(10, "", vec![]), silent_reply, second_reply]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    // Bookmarks count as activity.
    for version in 11..13 {
        silent.send(line("BOOKMARK", thing("", version, ""))).unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(requests.lock().unwrap().len(), 2);
    second.send(line("ADDED", thing("a", 20, "red"))).unwrap();
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(names(&store), ["a"]);
    assert_eq!(requests.lock().unwrap()[2].query["resourceVersion"], "12");
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn expired_watch_relists_and_notifies_only_the_difference() {
    let (first, first_reply) = stream();
    let (_second, second_reply) = stream();
    let (cluster, _) = scripted(vec![
        list(10, "", vec![thing("a", 5, "red"), thing("b", 6, "red")]),
        first_reply,
        status(503, "ServiceUnavailable", ""),
        list(30, "", vec![thing("b", 6, "red"), thing("c", 22, "red")]),
        second_reply,
    ]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    let mut changes = store.subscribe();
    first.send(line("BOOKMARK", thing("", 15, ""))).unwrap();
    first.send(line("ERROR", json!({"kind": "Status", "code": 410, "reason": "Expired"}))).unwrap();
    eventually("the objects are listed again", || names(&store) == ["b", "c"]).await;
    assert!(matches!(changes.next().await, Some(StoreEvent::Resync)));
    for expected in ["c", "a"] {
        let Some(StoreEvent::Change(change)) = changes.next().await else { panic!() };
        assert_eq!(change.key.name, expected);
    }
    assert!(tokio::time::timeout(Duration::from_secs(9), changes.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn invalid_or_oversized_events_do_not_stop_the_watch() {
    let (first, first_reply) = stream();
    let (second, second_reply) = stream();
    let (cluster, _) = scripted(vec![
        Reply::Text(500, "oops"),
        Reply::Text(200, "not json"),
        list(10, "", vec![json!({"metadata": {"name": "bad", "labels": 7}}), thing("a", 5, "red")]),
        first_reply,
        // It is not known which object has changed.
        list(11, "", vec![thing("a", 5, "red"), thing("b", 11, "red")]),
        second_reply,
    ]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    assert_eq!(names(&store), ["a"]);
    first.send(b"{\"type\":\"ADDED\",\"object\":".to_vec()).unwrap();
    for _ in 0..9 {
        first.send(vec![b'x'; 1 << 20]).unwrap();
    }
    first.send(b"\n".to_vec()).unwrap();
    second.send(line("ADDED", json!({"metadata": {"name": "bad", "labels": 7}}))).unwrap();
    second.send(line("ADDED", thing("c", 12, "red"))).unwrap();
    eventually("c is cached", || names(&store) == ["a", "b", "c"]).await;
    let mut registry = prometheus_client::registry::Registry::default();
    cluster.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("wharf_undecodable_objects_total{resource=\"things\"} 3"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn unserved_kind_is_empty_until_it_is_served() {
    let (_open, reply) = stream();
    let (cluster, _) = scripted(vec![
        Reply::Text(404, "404 page not found"),
        Reply::Text(404, "404 page not found"),
        list(10, "", vec![thing("a", 5, "red")]),
        reply,
    ]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    assert_eq!(
        (store.is_synced(), store.wait_settled().await, store.len()),
        (false, SyncState::NotServed, 0)
    );
    let started = tokio::time::Instant::now();
    eventually("served", || store.is_synced()).await;
    assert_eq!((started.elapsed().as_secs(), store.len()), (60, 1));
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_visible_immediately() {
    let (watch, watch_reply) = stream();
    let (cluster, requests) = scripted(vec![
        list(10, "", vec![thing("a", 5, "red")]),
        watch_reply,
        Reply::Json(201, thing("b", 11, "red")),
        Reply::Json(200, thing("a", 12, "blue")),
        Reply::Json(200, json!({"kind": "Status", "status": "Success", "details": {"uid": "u-a"}})),
        Reply::Json(200, thing("b", 14, "green")),
        status(404, "NotFound", "a"),
    ]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    eventually("the watch is open", || requests.lock().unwrap().len() == 2).await;

    cluster.create(&Thing::API, Some("ns"), &thing("b", 0, "red")).await.unwrap();
    assert_eq!(names(&store), ["a", "b"]);
    let patch = Patch::Merge(json!({"color": "blue"}));
    cluster.patch(&Thing::API, &key("a"), Some("status"), patch).await.unwrap();
    assert_eq!(store.get(&key("a")).unwrap().color, "blue");
    let preconditions = Preconditions { uid: Some("u-a".into()), resource_version: Some("12".into()) };
    cluster.delete(&Thing::API, &key("a"), preconditions).await.unwrap();
    assert_eq!(names(&store), ["b"]);
    // The watch delivers the older events later.
    watch.send(line("ADDED", thing("b", 11, "red"))).unwrap();
    watch.send(line("MODIFIED", thing("a", 12, "blue"))).unwrap();
    watch.send(line("DELETED", thing("a", 13, "blue"))).unwrap();
    assert_eq!(cluster.get::<Thing>(&key("b")).await.unwrap().unwrap().color, "green");
    assert_eq!(store.get(&key("b")).unwrap().color, "green");
    assert_eq!(names(&store), ["b"]);
    assert!(cluster.get_raw(&Thing::API, &key("a")).await.unwrap().is_none());

    let requests = requests.lock().unwrap();
    assert_eq!(requests[3].path, "/apis/t.dev/v1/namespaces/ns/things/a/status");
    assert_eq!(requests[4].body["preconditions"], json!({"uid": "u-a", "resourceVersion": "12"}));
}

#[tokio::test(start_paused = true)]
async fn only_not_found_for_the_object_means_that_it_is_absent() {
    let (cluster, _) = scripted(vec![
        Reply::Text(404, "404 page not found"),
        status(409, "AlreadyExists", "a"),
        Reply::Never,
        Reply::Text(200, "{}"),
    ]);
    assert_eq!(cluster.get::<Thing>(&key("a")).await.unwrap_err().reason(), "NotServed");
    let error = cluster.create(&Thing::API, Some("ns"), &thing("a", 0, "red")).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.to_string()),
        ("AlreadyExists", "POST Thing ns/a: AlreadyExists of a".into())
    );
    let started = tokio::time::Instant::now();
    assert_eq!(cluster.get::<Thing>(&key("a")).await.unwrap_err().reason(), "Unavailable");
    assert_eq!(started.elapsed().as_secs(), 30);
    let error = cluster.get::<Thing>(&key("a")).await.unwrap_err();
    let expected = "GET Thing ns/a: failed to decode the response at line 1 column 2 (HTTP 200)";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn lists_report_undecodable_objects() {
    let (cluster, _) = scripted(vec![
        list(10, "next", vec![thing("a", 5, "red"), json!({"metadata": {"name": "bad"}, "color": 1})]),
        list(10, "", vec![thing("b", 5, "red")]),
    ]);
    let listed = cluster.list::<Thing>(&WatchOptions::default()).await.unwrap();
    assert_eq!(listed.items.len(), 2);
    assert_eq!(listed.undecodable, [Some(Key::cluster("bad"))]);
}

#[tokio::test(start_paused = true)]
async fn watches_stop_with_the_cluster() {
    let (watch, reply) = stream();
    let (cluster, _) = scripted(vec![list(10, "", vec![]), reply]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(cluster);
    eventually("the stream is closed", || watch.is_closed()).await;
}

/// A pod is bound by a POST to its subresource, which responds with a Status, not with a pod.
#[tokio::test(start_paused = true)]
async fn subresource_response_is_not_stored() {
    let (_watch, watch_reply) = stream();
    let done = json!({"kind": "Status", "metadata": {}, "status": "Success"});
    let (cluster, requests) =
        scripted(vec![list(10, "", vec![thing("a", 5, "red")]), watch_reply, Reply::Json(201, done)]);
    let store = cluster.store::<Thing>(WatchOptions::default());
    store.wait_synced().await;
    eventually("the watch is open", || requests.lock().unwrap().len() == 2).await;
    let response = cluster
        .create_subresource(&Thing::API, &key("a"), "binding", &json!({"target": {"name": "n"}}))
        .await;
    assert_eq!(response.unwrap()["status"], "Success");
    let ReceivedRequest { method, path, body, .. } = requests.lock().unwrap()[2].clone();
    assert_eq!((method.as_str(), path.as_str()), ("POST", "/apis/t.dev/v1/namespaces/ns/things/a/binding"));
    assert_eq!(body, json!({"target": {"name": "n"}}));
    assert_eq!(names(&store), ["a"]);
}

/// Requests through the limited handle wait for each other, and nothing else waits for them.
#[tokio::test(start_paused = true)]
async fn limited_handle_has_its_own_limit() {
    let replies = (0..8).map(|_| Reply::Json(200, thing("a", 5, "red"))).collect();
    let (cluster, _) = scripted(replies);
    let limited = cluster.limited(1.0, 2);
    let started = tokio::time::Instant::now();
    for (handle, expected) in [(&limited, [0, 0, 1, 2]), (&cluster, [2; 4])] {
        for seconds in expected {
            handle.get::<Thing>(&key("a")).await.unwrap();
            assert_eq!(started.elapsed().as_secs(), seconds);
        }
    }
}
