use serde_json::json;

use super::*;

#[test]
fn list_options_select_revision_and_limit() {
    let token = ContinueToken { revision: Some(7), start: "a/x\0".into() };
    let continued = format!("continue={}&limit=2", token.encode());
    for (query, at, limit) in [
        ("", RevisionMatch::Newest, 0),
        ("limit=5", RevisionMatch::Newest, 5),
        ("limit=-5", RevisionMatch::Newest, 0),
        ("resourceVersion=0&limit=5", RevisionMatch::Newest, 0),
        ("resourceVersion=9", RevisionMatch::NotOlderThan(9), 0),
        ("resourceVersion=9&limit=5", RevisionMatch::Exact(9), 5),
        ("resourceVersion=9&limit=5&resourceVersionMatch=NotOlderThan", RevisionMatch::NotOlderThan(9), 5),
        ("resourceVersion=9&resourceVersionMatch=Exact", RevisionMatch::Exact(9), 0),
        (&continued, RevisionMatch::Continue(token), 2),
    ] {
        assert_eq!(list(&Query::parse(query)).unwrap(), ListPlan { at, limit }, "{query}");
    }
}

#[test]
fn invalid_list_options_are_rejected() {
    for (query, code, message) in [
        ("resourceVersionMatch=Exact", 422, "forbidden unless resourceVersion is provided"),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            422,
            "\"exact\" is forbidden for resourceVersion \"0\"",
        ),
        (
            "resourceVersionMatch=x&resourceVersion=1",
            422,
            "supported values: \"Exact\", \"NotOlderThan\", \"\"",
        ),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=x", 422, "forbidden when continue"),
        ("sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list"),
        (
            "resourceVersion=x",
            400,
            "invalid resource version: resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\"",
        ),
        ("continue=x", 400, "continue key is not valid"),
        ("continue=eA&resourceVersion=3", 400, "specifying resource version is not allowed"),
        ("limit=x", 400, "parsing \"x\""),
    ] {
        let status_error = list(&Query::parse(query)).unwrap_err();
        assert_eq!(status_error.code, code, "{query}");
        assert!(status_error.message.contains(message), "{query}: {status_error}");
    }
}

#[test]
fn watch_options_select_the_start() {
    let state = |not_older_than, initial_bookmark| Start::InitialState { not_older_than, initial_bookmark };
    for (query, start, bookmarks) in [
        ("", state(0, false), false),
        ("resourceVersion=0", state(0, false), false),
        ("resourceVersion=9&allowWatchBookmarks=true", Start::After(9), true),
        (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1",
            state(0, true),
            true,
        ),
        (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=4",
            state(4, false),
            false,
        ),
        ("sendInitialEvents=false&resourceVersionMatch=NotOlderThan", Start::Now, false),
        (
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=4",
            Start::After(4),
            false,
        ),
    ] {
        let plan = watch(&Query::parse(query)).unwrap();
        assert_eq!(plan, WatchPlan { start, bookmarks, timeout: None }, "{query}");
    }
    let timeout = |seconds: i64| watch(&Query::parse(&format!("timeoutSeconds={seconds}"))).unwrap().timeout;
    assert_eq!(timeout(5), Some(Duration::from_secs(5)));
    assert_eq!(timeout(0), None);
    assert_eq!(timeout(-5), None);
    // Adding this to the current time must not overflow.
    assert_eq!(timeout(i64::MAX), Some(MAX_TIMEOUT));
}

#[test]
fn invalid_watch_options_are_rejected() {
    for (query, message) in [
        ("sendInitialEvents=true", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        ("resourceVersionMatch=NotOlderThan", "forbidden for watch unless sendInitialEvents is provided"),
        ("resourceVersionMatch=Exact&sendInitialEvents=true", "supported values: \"NotOlderThan\""),
    ] {
        let status_error = watch(&Query::parse(query)).unwrap_err();
        assert_eq!(status_error.code, 422, "{query}");
        assert!(status_error.message.contains(message), "{query}: {status_error}");
    }
}

#[test]
fn write_options_are_parsed_or_rejected() {
    use FieldValidation::{Ignore, Strict, Warn};
    for (query, dry_run, fields) in [
        ("", false, Warn),
        ("dryRun=All&fieldValidation=Strict", true, Strict),
        ("dryRun=&fieldValidation=Ignore", false, Ignore),
        ("fieldManager=kubectl&fieldValidation=Warn", false, Warn),
    ] {
        assert_eq!(
            write(&Query::parse(query), "CreateOptions").unwrap(),
            WriteOptions { dry_run, fields },
            "{query}"
        );
    }
    for (query, message) in [
        (
            "dryRun=x",
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"x\"]: supported values: \"All\"",
        ),
        (
            "fieldValidation=x",
            "fieldValidation: Unsupported value: \"x\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
        ),
        (
            &format!("fieldManager={}", "x".repeat(129)),
            "fieldManager: Too long: may not be more than 128 bytes",
        ),
    ] {
        let status_error = write(&Query::parse(query), "CreateOptions").unwrap_err();
        assert!(status_error.message.contains(message), "{query}: {status_error}");
    }
}

#[test]
fn delete_options_are_parsed_or_rejected() {
    let options = |body: Value| delete(body.to_string().as_bytes(), &Query::default()).unwrap();
    assert_eq!(delete(b" ", &Query::default()).unwrap(), DeleteOptions::default());
    let all = options(json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "dryRun": ["All"],
        "preconditions": {"uid": "u", "resourceVersion": "3"}, "propagationPolicy": "Foreground",
    }));
    let expected = DeleteOptions {
        grace: Some(0),
        uid: Some("u".into()),
        resource_version: Some("3".into()),
        propagation: Some(Propagation::Foreground),
        uses_orphan_dependents: false,
        dry_run: true,
    };
    assert_eq!(all, expected);
    assert_eq!(options(json!({"orphanDependents": true})).propagation, Some(Propagation::Orphan));
    assert_eq!(options(json!({"orphanDependents": false})).propagation, Some(Propagation::Background));
    let query = Query::parse("gracePeriodSeconds=5&propagationPolicy=Orphan");
    let parsed = delete(b"", &query).unwrap();
    assert_eq!((parsed.grace, parsed.propagation), (Some(5), Some(Propagation::Orphan)));
    for (body, code, message) in [
        (json!({"kind": "Pod"}), 400, "cannot be converted to DeleteOptions"),
        (json!({"gracePeriodSeconds": "x"}), 400, "cannot be handled as a DeleteOptions"),
        (json!({"dryRun": ["x"]}), 422, "dryRun: Unsupported value"),
        (
            json!({"propagationPolicy": "x"}),
            422,
            "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
        ),
        (json!({"propagationPolicy": "Orphan", "orphanDependents": true}), 422, "cannot be both set"),
    ] {
        let status_error = delete(body.to_string().as_bytes(), &Query::default()).unwrap_err();
        assert_eq!(status_error.code, code, "{body}");
        assert!(status_error.message.contains(message), "{body}: {status_error}");
    }
}

proptest::proptest! {
    #[test]
    fn arbitrary_query_and_body_do_not_panic(query: String, body: Vec<u8>) {
        let query = Query::parse(&query);
        let _ = (list(&query), watch(&query), write(&query, "PatchOptions"), delete(&body, &query));
    }
}
