//! Table tests of request validation, authorization, and the lookup of snapshot handles and classes.

use serde_json::{Value, json};
use wharf_model::snapshot::names::IS_DEFAULT_CLASS;

use super::*;

fn request(token: &str, namespace: &str, snapshot: &str, base: Option<&str>) -> MetadataRequest {
    MetadataRequest {
        token: token.into(),
        namespace: namespace.into(),
        snapshot: snapshot.into(),
        base: base.map(str::to_owned),
    }
}

#[test]
fn request_without_required_field_is_refused() {
    for (request, refusal) in [
        (request("t", "n", "s", None), None),
        (request("t", "n", "s", Some("b")), None),
        (request("", "n", "s", None), Some(Refusal::NoToken)),
        (request("t", "", "s", None), Some(Refusal::NoNamespace)),
        (request("t", "n", "", None), Some(Refusal::NoSnapshotName)),
        (request("t", "n", "", Some("b")), Some(Refusal::NoTargetName)),
        (request("t", "n", "s", Some("")), Some(Refusal::NoBase)),
    ] {
        let refused = request.validate().err();
        assert_eq!(refused, refusal);
        if let Some(refusal) = refusal {
            assert_eq!(Status::from(refusal).code(), Code::InvalidArgument);
        }
    }
}

#[test]
fn token_is_valid_only_for_its_audience() {
    let status = |authenticated, audiences: Value| -> TokenStatus {
        let user = json!({"username": "u", "groups": ["g"], "extra": {"k": ["v"]}});
        serde_json::from_value(json!({"authenticated": authenticated, "audiences": audiences, "user": user}))
            .unwrap()
    };
    let user = User {
        username: "u".into(),
        groups: Some(vec!["g".into()]),
        extra: Some(json!({"k": ["v"]})),
        ..User::default()
    };
    for (status, audience, valid) in [
        (status(true, json!(["a"])), "a", true),
        (status(true, json!(["x", "a"])), "a", true),
        (status(true, json!(["x"])), "a", false),
        (status(true, json!([])), "a", false),
        // An API server that does not check audiences returns none.
        (status(true, Value::Null), "a", false),
        (status(false, json!(["a"])), "a", false),
        (status(true, json!([""])), "", false),
        (serde_json::from_value(json!({"error": "invalid bearer token"})).unwrap(), "a", false),
    ] {
        let row = format!("{status:?} {audience}");
        let expected = if valid { Ok(user.clone()) } else { Err(Refusal::Unauthenticated) };
        assert_eq!(authenticated(status, audience), expected, "{row}");
    }
    assert_eq!(Status::from(Refusal::Unauthenticated).code(), Code::Unauthenticated);
}

#[test]
fn denied_user_gets_permission_denied() {
    for (allow, denied, ok) in [(true, false, true), (true, true, false), (false, false, false)] {
        let status = AccessStatus { allowed: allow, denied, reason: "no".into() };
        assert_eq!(allowed(status).is_ok(), ok, "{allow} {denied}");
    }
    let denied = Status::from(Refusal::Denied("no".into()));
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert_eq!(denied.message(), "user does not have permissions to perform the operation: no");
}

fn snapshot(edit: impl FnOnce(&mut Value)) -> VolumeSnapshot {
    let mut snapshot = json!({
        "metadata": {"name": "s", "namespace": "n", "uid": "u"},
        "status": {"readyToUse": true, "boundVolumeSnapshotContentName": "c"},
    });
    edit(&mut snapshot);
    serde_json::from_value(snapshot).unwrap()
}

fn content(edit: impl FnOnce(&mut Value)) -> VolumeSnapshotContent {
    let mut content = json!({
        "metadata": {"name": "c"},
        "spec": {"driver": "d", "volumeSnapshotRef": {"namespace": "n", "name": "s", "uid": "u"}},
        "status": {"readyToUse": true, "snapshotHandle": "h"},
    });
    edit(&mut content);
    serde_json::from_value(content).unwrap()
}

#[test]
fn only_ready_and_bound_snapshots_have_content() {
    assert_eq!(content_name(&snapshot(|_| {})), Ok("c"));
    let not_ready = || Err(Refusal::SnapshotNotReady("s".into()));
    for (other, expected) in [
        (snapshot(|s| s["status"] = Value::Null), not_ready()),
        (snapshot(|s| s["status"]["readyToUse"] = json!(false)), not_ready()),
        (
            snapshot(|s| s["status"]["boundVolumeSnapshotContentName"] = Value::Null),
            Err(Refusal::NotBound("s".into())),
        ),
    ] {
        assert_eq!(content_name(&other), expected, "{other:?}");
    }
}

#[test]
fn handle_comes_only_from_bound_content() {
    let handle_of =
        |content: &VolumeSnapshotContent| handle(&snapshot(|_| {}), content, "d").map(str::to_owned);
    assert_eq!(handle_of(&content(|_| {})), Ok("h".to_owned()));
    let not_bound = || Err(Refusal::NotBound("s".into()));
    for (content, expected) in [
        (content(|c| c["status"] = Value::Null), Err(Refusal::ContentNotReady("c".into()))),
        (content(|c| c["status"]["readyToUse"] = json!(false)), Err(Refusal::ContentNotReady("c".into()))),
        (content(|c| c["status"]["snapshotHandle"] = Value::Null), Err(Refusal::NoHandle("c".into()))),
        (
            content(|c| c["spec"]["driver"] = json!("e")),
            Err(Refusal::OtherDriver { snapshot: "s".into(), driver: "d".into() }),
        ),
        (content(|c| c["spec"]["volumeSnapshotRef"]["uid"] = json!("v")), not_bound()),
        (content(|c| c["spec"]["volumeSnapshotRef"]["namespace"] = json!("m")), not_bound()),
        (content(|c| c["spec"]["volumeSnapshotRef"]["name"] = json!("t")), not_bound()),
    ] {
        assert_eq!(handle_of(&content), expected, "{content:?}");
    }
}

#[test]
fn snapshot_without_class_uses_single_default_class() {
    let class = |name: &str, driver: &str, default: &str| -> VolumeSnapshotClass {
        let annotations = json!({IS_DEFAULT_CLASS: default});
        serde_json::from_value(
            json!({"metadata": {"name": name, "annotations": annotations}, "driver": driver}),
        )
        .unwrap()
    };
    let found = |classes: &[VolumeSnapshotClass]| {
        default_class(classes, "d").map(|class| class.metadata.name.clone())
    };
    let one = [class("a", "d", "false"), class("b", "d", "true"), class("c", "e", "true")];
    assert_eq!(found(&one), Ok("b".to_owned()));
    assert_eq!(found(&one[..1]), Err(Refusal::NoDefault("d".into())));
    let two = [class("a", "d", "true"), class("b", "d", "true")];
    assert_eq!(found(&two), Err(Refusal::ManyDefaults("d".into())));
}

/// If it were accepted, any user who may create a snapshot could send one driver's secrets to another driver.
#[test]
fn class_of_another_driver_is_refused() {
    let class = |driver: &str| -> VolumeSnapshotClass {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "driver": driver})).unwrap()
    };
    assert_eq!(named_class(class("d"), "d").map(|class| class.driver), Ok("d".to_owned()));
    for other in ["e", ""] {
        let refused = named_class(class(other), "d").map(|class| class.driver);
        assert_eq!(
            refused,
            Err(Refusal::ClassOfOtherDriver { class: "a".into(), driver: "d".into() }),
            "{other:?}"
        );
    }
}

#[test]
fn status_codes_match_upstream() {
    for (refusal, code) in [
        (Refusal::Authentication("x".into()), Code::Internal),
        (Refusal::Authorization("x".into()), Code::Internal),
        (Refusal::OtherDriver { snapshot: "s".into(), driver: "d".into() }, Code::InvalidArgument),
        (Refusal::ClassOfOtherDriver { class: "c".into(), driver: "d".into() }, Code::InvalidArgument),
        (Refusal::DriverNotReady, Code::Unavailable),
        (Refusal::SnapshotNotReady("s".into()), Code::Unavailable),
        (Refusal::NoDefault("d".into()), Code::Unavailable),
        (Refusal::Credentials("x".into()), Code::Unavailable),
    ] {
        assert_eq!(Status::from(refusal.clone()).code(), code, "{refusal}");
    }
}
