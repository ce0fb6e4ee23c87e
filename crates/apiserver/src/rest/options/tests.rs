use serde_json::json;

use super::*;

#[test]
fn lists() {
    let token = Token { revision: Some(7), start: "a/x\0".into() };
    let behind = format!("continue={}&limit=2", token.text());
    for (query, at, limit) in [
        ("", At::Newest, 0),
        ("limit=5", At::Newest, 5),
        ("limit=-5", At::Newest, 0),
        ("resourceVersion=0&limit=5", At::Newest, 0),
        ("resourceVersion=9", At::NotOlder(9), 0),
        ("resourceVersion=9&limit=5", At::Exactly(9), 5),
        ("resourceVersion=9&limit=5&resourceVersionMatch=NotOlderThan", At::NotOlder(9), 5),
        ("resourceVersion=9&resourceVersionMatch=Exact", At::Exactly(9), 0),
        (&behind, At::Behind(token), 2),
    ] {
        assert_eq!(list(&Query::parse(query)).unwrap(), ListPlan { at, limit }, "{query}");
    }
}

#[test]
fn lists_that_make_no_sense() {
    for (query, code, words) in [
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
        let refusal = list(&Query::parse(query)).unwrap_err();
        assert_eq!(refusal.code, code, "{query}");
        assert!(refusal.message.contains(words), "{query}: {refusal}");
    }
}

#[test]
fn watches() {
    let state = |not_older, marked| Start::State { not_older, marked };
    for (query, start, bookmarks) in [
        ("", state(0, false), false),
        ("resourceVersion=0", state(0, false), false),
        ("resourceVersion=9&allowWatchBookmarks=true", Start::Behind(9), true),
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
            Start::Behind(4),
            false,
        ),
    ] {
        let plan = watch(&Query::parse(query)).unwrap();
        assert_eq!(plan, WatchPlan { start, bookmarks, timeout: None }, "{query}");
    }
    assert_eq!(watch(&Query::parse("timeoutSeconds=5")).unwrap().timeout, Some(Duration::from_secs(5)));
}

#[test]
fn watches_that_make_no_sense() {
    for (query, words) in [
        ("sendInitialEvents=true", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        ("resourceVersionMatch=NotOlderThan", "forbidden for watch unless sendInitialEvents is provided"),
        ("resourceVersionMatch=Exact&sendInitialEvents=true", "supported values: \"NotOlderThan\""),
    ] {
        let refusal = watch(&Query::parse(query)).unwrap_err();
        assert_eq!(refusal.code, 422, "{query}");
        assert!(refusal.message.contains(words), "{query}: {refusal}");
    }
}

#[test]
fn writes() {
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
    for (query, words) in [
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
        let refusal = write(&Query::parse(query), "CreateOptions").unwrap_err();
        assert!(refusal.message.contains(words), "{query}: {refusal}");
    }
}

#[test]
fn deletions() {
    let options = |body: Value| delete(body.to_string().as_bytes(), &Query::default()).unwrap();
    assert_eq!(delete(b" ", &Query::default()).unwrap(), DeleteOptions::default());
    let all = options(json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "dryRun": ["All"],
        "preconditions": {"uid": "u", "resourceVersion": "3"}, "propagationPolicy": "Foreground",
    }));
    let expected = DeleteOptions {
        grace: Some(0),
        uid: Some("u".into()),
        version: Some("3".into()),
        propagation: Some(Propagation::Foreground),
        old_way: false,
        dry_run: true,
    };
    assert_eq!(all, expected);
    assert_eq!(options(json!({"orphanDependents": true})).propagation, Some(Propagation::Orphan));
    assert_eq!(options(json!({"orphanDependents": false})).propagation, Some(Propagation::Background));
    let query = Query::parse("gracePeriodSeconds=5&propagationPolicy=Orphan");
    let asked = delete(b"", &query).unwrap();
    assert_eq!((asked.grace, asked.propagation), (Some(5), Some(Propagation::Orphan)));
    for (body, code, words) in [
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
        let refusal = delete(body.to_string().as_bytes(), &Query::default()).unwrap_err();
        assert_eq!(refusal.code, code, "{body}");
        assert!(refusal.message.contains(words), "{body}: {refusal}");
    }
}

proptest::proptest! {
    #[test]
    fn no_query_and_no_body_makes_it_panic(query: String, body: Vec<u8>) {
        let query = Query::parse(&query);
        let _ = (list(&query), watch(&query), write(&query, "PatchOptions"), delete(&body, &query));
    }
}
