use super::*;
use crate::rest::continue_token::ContinueToken;

fn names(list: &Value) -> Vec<String> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap().into())
        .collect()
}

#[tokio::test]
async fn pages_of_a_list_share_one_revision() {
    let server = Server::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        server.create(CONFIGS, config(name, "red")).await;
    }
    let first = server.get(&format!("{CONFIGS}?limit=2")).await.body;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    // Later writes are not part of the list.
    server.create(CONFIGS, config("bb", "red")).await;
    server.delete(&format!("{CONFIGS}/d")).await;
    let second = server.get(&format!("{CONFIGS}?limit=2&continue={token}")).await.body;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = server.get(&format!("{CONFIGS}?limit=2&continue={token}")).await.body;
    assert_eq!(names(&last), ["e"]);
    assert_eq!(last["metadata"].get("continue"), None);
    // A list at version 0 ignores the limit.
    let whole = server.get(&format!("{CONFIGS}?limit=2&resourceVersion=0")).await.body;
    assert_eq!(names(&whole).len(), 5);
}

#[tokio::test]
async fn expired_page_can_be_continued_inconsistently() {
    let store = store::Options { sync: false, history: 4, ..store::Options::default() };
    let server = Server::with(store, Options::default()).await;
    for name in ["a", "b", "c"] {
        server.create(CONFIGS, config(name, "red")).await;
    }
    let first = server.get(&format!("{CONFIGS}?limit=1")).await.body;
    let token = first["metadata"]["continue"].as_str().unwrap();
    for number in 0..20 {
        server
            .request("PATCH", &format!("{CONFIGS}/c"), MERGE, json!({"data": {"n": number.to_string()}}))
            .await;
    }
    let expired = server.get(&format!("{CONFIGS}?continue={token}")).await;
    assert_eq!((expired.code, &expired.body["reason"]), (410, &json!("Expired")), "{}", expired.body);
    let token = expired.body["metadata"]["continue"].as_str().unwrap();
    assert_eq!(ContinueToken::parse(token).unwrap(), ContinueToken { revision: None, start: "a\0".into() });
    let rest = server.get(&format!("{CONFIGS}?continue={token}")).await.body;
    assert_eq!(names(&rest), ["b", "c"]);
    let version = &first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = server.get(&format!("{CONFIGS}?resourceVersion={version}&resourceVersionMatch=Exact")).await;
    assert_eq!((exact.code, exact.message()), (410, "The resourceVersion for the provided list is too old."));
    let mut watch = server.watch(&format!("{CONFIGS}?watch=1&resourceVersion={version}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["reason"]), (&json!("ERROR"), &json!("Expired")));
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn future_versions_are_rejected() {
    let server = Server::start().await;
    let list = server.get(&format!("{CONFIGS}?resourceVersion=9007199254740993")).await;
    assert_eq!((list.code, &list.body["reason"]), (504, &json!("Timeout")));
    assert!(
        list.message().starts_with("Timeout: Too large resource version: 9007199254740993, current: "),
        "{}",
        list.body
    );
    let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
    assert_eq!(list.body["details"]["causes"], causes);
    let mut watch = server.watch(&format!("{CONFIGS}?watch=1&resourceVersion=9007199254740993")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
}

#[tokio::test]
async fn selectors_filter_lists_and_pages() {
    let server = Server::start().await;
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red"), ("d", "blue"), ("e", "red")] {
        server.create(CONFIGS, config(name, color)).await;
    }
    let query = async |query: &str| names(&server.get(&format!("{CONFIGS}?{query}")).await.body);
    assert_eq!(query("labelSelector=color%3Dred").await, ["a", "c", "e"]);
    assert_eq!(query("labelSelector=color%20in%20(blue)").await, ["b", "d"]);
    assert_eq!(query("fieldSelector=metadata.name%3Dc").await, ["c"]);
    assert_eq!(query("fieldSelector=metadata.name!%3Dc&labelSelector=color%3Dred").await, ["a", "e"]);
    let page = server.get(&format!("{CONFIGS}?labelSelector=color%3Dred&limit=2")).await.body;
    assert_eq!(names(&page), ["a", "c"]);
    assert_eq!(page["metadata"].get("remainingItemCount"), None);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let rest =
        server.get(&format!("{CONFIGS}?labelSelector=color%3Dred&limit=2&continue={token}")).await.body;
    assert_eq!(names(&rest), ["e"]);
    let refused = server.get(&format!("{CONFIGS}?fieldSelector=spec.unicorn%3Dc")).await;
    assert_eq!(refused.code, 400);
    assert!(refused.message().contains("\"spec.unicorn\" is not a known field selector"), "{}", refused.body);
}

#[tokio::test]
async fn watch_continues_from_a_list() {
    let server = Server::start().await;
    server.create(CONFIGS, config("a", "red")).await;
    let version = server.get(CONFIGS).await.version();
    let mut watch = server.watch(&format!("{CONFIGS}?watch=true&resourceVersion={version}")).await;
    server.create(CONFIGS, config("b", "red")).await;
    server.request("PATCH", &format!("{CONFIGS}/a"), MERGE, json!({"data": {"n": "1"}})).await;
    server.delete(&format!("{CONFIGS}/b")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("ConfigMap")));
    assert_eq!(watch.next_summary().await, summary("MODIFIED", "a"));
    let deleted = watch.next().await.unwrap();
    assert_eq!((&deleted["type"], &deleted["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("b")));
    // The event has the revision of the deletion, so a resumed watch repeats nothing.
    let version = deleted["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, server.api.store().revision().to_string());
}

#[tokio::test]
async fn watch_without_version_starts_with_existing_objects() {
    let server = Server::start().await;
    server.create(CONFIGS, config("a", "red")).await;
    server.create(CONFIGS, config("b", "blue")).await;
    let mut plain = server.watch(&format!("{CONFIGS}?watch=1&labelSelector=color%3Dred")).await;
    assert_eq!(plain.next_summary().await, summary("ADDED", "a"));
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut marked = server.watch(&format!("{CONFIGS}?{query}")).await;
    assert_eq!(marked.next_summary().await, summary("ADDED", "a"));
    assert_eq!(marked.next_summary().await, summary("ADDED", "b"));
    let mark = marked.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // The object leaves the selection and enters it again.
    let recolor = async |color: &str| {
        server
            .request(
                "PATCH",
                &format!("{CONFIGS}/a"),
                MERGE,
                json!({"metadata": {"labels": {"color": color}}}),
            )
            .await;
    };
    recolor("blue").await;
    recolor("red").await;
    assert_eq!(plain.next_summary().await, summary("DELETED", "a"));
    assert_eq!(plain.next_summary().await, summary("ADDED", "a"));
    assert_eq!(marked.next_summary().await, summary("MODIFIED", "a"));
}

#[tokio::test]
async fn watch_sends_a_bookmark_before_it_times_out() {
    let server = Server::start().await;
    let version = server.get(CONFIGS).await.version();
    let query = format!("watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=1");
    let mut watch = server.watch(&format!("{CONFIGS}?{query}")).await;
    // A write to another kind, which the bookmark reports.
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], server.api.store().revision().to_string());
    assert!(watch.body.frame().await.is_none());
}

#[tokio::test]
async fn watches_above_the_limit_are_rejected() {
    let options = Options { max_watches: 1, ..Options::default() };
    let server = Server::with(store::Options { sync: false, ..store::Options::default() }, options).await;
    let watch = server.watch(&format!("{CONFIGS}?watch=1")).await;
    let refused = server.get(&format!("{CONFIGS}?watch=1")).await;
    assert_eq!((refused.code, &refused.body["reason"]), (429, &json!("TooManyRequests")));
    drop(watch);
    server.watch(&format!("{CONFIGS}?watch=1")).await;
}

/// As upstream's `apiserver_longrunning_requests`: by resource, and whether a watch selects one object.
#[tokio::test]
async fn open_watches_are_counted() {
    let server = Server::start().await;
    let counted = async || {
        let response = server.raw(&User::admin(), "GET", "/metrics", &[], "").await;
        let text = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let label = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.to_owned()
        };
        let count = |line: &str| line.rsplit_once(' ').unwrap().1.to_owned();
        lines
            .map(|line| format!("{} {} {}", label(line, "resource"), label(line, "scope"), count(line)))
            .collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(counted().await, none);
    let first = server.watch(&format!("{CONFIGS}?watch=1")).await;
    let second = server.watch(&format!("{CONFIGS}?watch=1")).await;
    let one = server.watch(&format!("{CONFIGS}?watch=1&fieldSelector=metadata.name%3Da")).await;
    let nodes = server.watch("/api/v1/nodes?watch=1").await;
    let expected = ["configmaps namespace 2", "configmaps resource 1", "nodes cluster 1"];
    assert_eq!(counted().await, expected);
    drop((first, one));
    assert_eq!(counted().await, ["configmaps namespace 1", "nodes cluster 1"]);
    drop((second, nodes));
    assert_eq!(counted().await, none);
}

#[tokio::test]
async fn tables_and_partial_metadata_are_served() {
    let server = Server::start().await;
    server.create(CLAIMS, claim("c")).await;
    let query = async |path: &str, accept: &str| {
        read_response(server.raw(&User::admin(), "GET", path, &[("accept", accept)], "").await).await
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let list = query(CLAIMS, table).await.body;
    assert_eq!(list["kind"], "Table");
    assert_eq!(list["rows"][0]["cells"][0], "c");
    assert_eq!(list["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(query(&format!("{CLAIMS}/c"), table).await.body["rows"].as_array().unwrap().len(), 1);
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = query(CLAIMS, partial).await.body;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0].get("spec"), None);
    let refused = query(CLAIMS, "application/yaml").await;
    assert_eq!((refused.code, &refused.body["reason"]), (406, &json!("NotAcceptable")));
}

#[tokio::test]
async fn non_resource_urls_are_served() {
    let server = Server::start().await;
    for (path, kind) in [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/apis/storage.k8s.io", "APIGroup"),
        ("/api/v1", "APIResourceList"),
        ("/apis/storage.k8s.io/v1", "APIResourceList"),
    ] {
        let response = server.get(path).await;
        assert_eq!((response.code, &response.body["kind"]), (200, &json!(kind)), "{path}");
    }
    assert_eq!(server.get("/version").await.body["minor"], "34");
    assert_eq!(server.get("/readyz").await.body, json!("ok"));
    assert!(server.get("/livez?verbose").await.body.as_str().unwrap().contains("livez check passed"));
    assert!(server.get("/openapi/v3").await.body["paths"]["api/v1"].is_object());
    assert!(server.get("/openapi/v3/api/v1").await.body["components"].is_object());
    assert_eq!(server.get("/openapi/v3/apis/none/v1").await.code, 404);
    assert!(server.get("/openid/v1/jwks").await.body["keys"].is_array());
    assert_eq!(server.get("/apis/apps").await.code, 404);
    let old = server.get("/apis/storage.k8s.io/v1beta1/storageclasses").await;
    assert_eq!(old.code, 404);
    assert!(old.message().contains("storage.k8s.io/v1"), "{}", old.body);
}
