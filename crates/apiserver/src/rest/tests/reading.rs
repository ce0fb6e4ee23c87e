use super::*;
use crate::rest::page::Token;

fn names(list: &Value) -> Vec<String> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap().into())
        .collect()
}

#[tokio::test]
async fn pages_are_of_one_state() {
    let server = Server::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        server.make(CONFIGS, config(name, "red")).await;
    }
    let first = server.get(&format!("{CONFIGS}?limit=2")).await.body;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    // What happens now is not in the list that has begun.
    server.make(CONFIGS, config("bb", "red")).await;
    server.delete(&format!("{CONFIGS}/d")).await;
    let second = server.get(&format!("{CONFIGS}?limit=2&continue={token}")).await.body;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = server.get(&format!("{CONFIGS}?limit=2&continue={token}")).await.body;
    assert_eq!(names(&last), ["e"]);
    assert_eq!(last["metadata"].get("continue"), None);
    // Any state is whole.
    let whole = server.get(&format!("{CONFIGS}?limit=2&resourceVersion=0")).await.body;
    assert_eq!(names(&whole).len(), 5);
}

#[tokio::test]
async fn a_page_that_is_too_old_can_be_taken_up_inconsistently() {
    let store = store::Options { sync: false, history: 4, ..store::Options::default() };
    let server = Server::with(store, Options::default()).await;
    for name in ["a", "b", "c"] {
        server.make(CONFIGS, config(name, "red")).await;
    }
    let first = server.get(&format!("{CONFIGS}?limit=1")).await.body;
    let token = first["metadata"]["continue"].as_str().unwrap();
    for number in 0..20 {
        server.ask("PATCH", &format!("{CONFIGS}/c"), MERGE, json!({"data": {"n": number.to_string()}})).await;
    }
    let expired = server.get(&format!("{CONFIGS}?continue={token}")).await;
    assert_eq!((expired.code, &expired.body["reason"]), (410, &json!("Expired")), "{}", expired.body);
    let token = expired.body["metadata"]["continue"].as_str().unwrap();
    assert_eq!(Token::parse(token).unwrap(), Token { revision: None, start: "a\0".into() });
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
async fn versions_that_are_yet_to_come() {
    let server = Server::start().await;
    let list = server.get(&format!("{CONFIGS}?resourceVersion=1000000")).await;
    assert_eq!((list.code, &list.body["reason"]), (504, &json!("Timeout")));
    assert!(
        list.message().starts_with("Timeout: Too large resource version: 1000000, current: "),
        "{}",
        list.body
    );
    let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
    assert_eq!(list.body["details"]["causes"], causes);
    let mut watch = server.watch(&format!("{CONFIGS}?watch=1&resourceVersion=1000000")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
}

#[tokio::test]
async fn selectors() {
    let server = Server::start().await;
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red"), ("d", "blue"), ("e", "red")] {
        server.make(CONFIGS, config(name, color)).await;
    }
    let ask = async |query: &str| names(&server.get(&format!("{CONFIGS}?{query}")).await.body);
    assert_eq!(ask("labelSelector=color%3Dred").await, ["a", "c", "e"]);
    assert_eq!(ask("labelSelector=color%20in%20(blue)").await, ["b", "d"]);
    assert_eq!(ask("fieldSelector=metadata.name%3Dc").await, ["c"]);
    assert_eq!(ask("fieldSelector=metadata.name!%3Dc&labelSelector=color%3Dred").await, ["a", "e"]);
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
async fn a_watch_goes_on_from_a_list() {
    let server = Server::start().await;
    server.make(CONFIGS, config("a", "red")).await;
    let version = server.get(CONFIGS).await.version();
    let mut watch = server.watch(&format!("{CONFIGS}?watch=true&resourceVersion={version}")).await;
    server.make(CONFIGS, config("b", "red")).await;
    server.ask("PATCH", &format!("{CONFIGS}/a"), MERGE, json!({"data": {"n": "1"}})).await;
    server.delete(&format!("{CONFIGS}/b")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("ConfigMap")));
    assert_eq!(watch.told().await, told("MODIFIED", "a"));
    let gone = watch.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("b")));
    // The last state is that of the deletion: who goes on from here hears nothing twice.
    let version = gone["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, server.api.store().revision().to_string());
}

#[tokio::test]
async fn a_watch_from_the_beginning() {
    let server = Server::start().await;
    server.make(CONFIGS, config("a", "red")).await;
    server.make(CONFIGS, config("b", "blue")).await;
    let mut plain = server.watch(&format!("{CONFIGS}?watch=1&labelSelector=color%3Dred")).await;
    assert_eq!(plain.told().await, told("ADDED", "a"));
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut marked = server.watch(&format!("{CONFIGS}?{query}")).await;
    assert_eq!(marked.told().await, told("ADDED", "a"));
    assert_eq!(marked.told().await, told("ADDED", "b"));
    let mark = marked.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // Out of the selection and in again.
    let recolor = async |color: &str| {
        server
            .ask("PATCH", &format!("{CONFIGS}/a"), MERGE, json!({"metadata": {"labels": {"color": color}}}))
            .await;
    };
    recolor("blue").await;
    recolor("red").await;
    assert_eq!(plain.told().await, told("DELETED", "a"));
    assert_eq!(plain.told().await, told("ADDED", "a"));
    assert_eq!(marked.told().await, told("MODIFIED", "a"));
}

#[tokio::test]
async fn a_watch_has_an_end_and_a_bookmark_before_it() {
    let server = Server::start().await;
    let version = server.get(CONFIGS).await.version();
    let query = format!("watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=1");
    let mut watch = server.watch(&format!("{CONFIGS}?{query}")).await;
    // Something of others, of which the bookmark tells.
    server.make("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], server.api.store().revision().to_string());
    assert!(watch.body.frame().await.is_none());
}

#[tokio::test]
async fn watches_are_counted() {
    let options = Options { watches: 1, ..Options::default() };
    let server = Server::with(store::Options { sync: false, ..store::Options::default() }, options).await;
    let watch = server.watch(&format!("{CONFIGS}?watch=1")).await;
    let refused = server.get(&format!("{CONFIGS}?watch=1")).await;
    assert_eq!((refused.code, &refused.body["reason"]), (429, &json!("TooManyRequests")));
    drop(watch);
    server.watch(&format!("{CONFIGS}?watch=1")).await;
}

#[tokio::test]
async fn tables_and_metadata() {
    let server = Server::start().await;
    server.make(CLAIMS, claim("c")).await;
    let ask = async |path: &str, accept: &str| {
        answered(server.raw(&User::admin(), "GET", path, &[("accept", accept)], "").await).await
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let list = ask(CLAIMS, table).await.body;
    assert_eq!(list["kind"], "Table");
    assert_eq!(list["rows"][0]["cells"][0], "c");
    assert_eq!(list["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(ask(&format!("{CLAIMS}/c"), table).await.body["rows"].as_array().unwrap().len(), 1);
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = ask(CLAIMS, partial).await.body;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0].get("spec"), None);
    let refused = ask(CLAIMS, "application/yaml").await;
    assert_eq!((refused.code, &refused.body["reason"]), (406, &json!("NotAcceptable")));
}

#[tokio::test]
async fn pages_about_the_server() {
    let server = Server::start().await;
    for (path, kind) in [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/apis/storage.k8s.io", "APIGroup"),
        ("/api/v1", "APIResourceList"),
        ("/apis/storage.k8s.io/v1", "APIResourceList"),
    ] {
        let answer = server.get(path).await;
        assert_eq!((answer.code, &answer.body["kind"]), (200, &json!(kind)), "{path}");
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
