use super::*;
use crate::kinds;

const NOW: Time = Time(1_000_000);
const SOON: &str = "1970-01-01T00:16:40Z";

fn kind(plural: &str) -> &'static Kind {
    kinds::find("", "v1", plural).unwrap()
}

fn object(metadata: Value) -> Value {
    let mut object = json!({"metadata": {"name": "x", "uid": "u", "resourceVersion": "3"}});
    meta::map(&mut object, "metadata").extend(metadata.as_object().unwrap().clone());
    object
}

fn options(propagation: Option<Propagation>) -> DeleteOptions {
    DeleteOptions { propagation, ..DeleteOptions::default() }
}

#[test]
fn object_with_finalizers_is_marked() {
    let claims = kind("persistentvolumeclaims");
    let free = object(json!({}));
    assert_eq!(decide(claims, &free, &options(None), NOW).unwrap(), Deletion::Remove(free));
    let held = object(json!({"finalizers": ["a/b"], "generation": 2}));
    let marked = object(json!({
        "finalizers": ["a/b"], "generation": 3, "deletionTimestamp": SOON, "deletionGracePeriodSeconds": 0,
    }));
    assert_eq!(decide(claims, &held, &options(None), NOW).unwrap(), Deletion::Mark(marked.clone()));
    assert_eq!(decide(claims, &marked, &options(None), Time(2_000_000)).unwrap(), Deletion::Wait);
}

#[test]
fn propagation_sets_a_finalizer() {
    use Propagation::{Background, Foreground, Orphan};
    for (existing, asked, expected) in [
        (json!([]), Some(Background), None),
        (json!([]), Some(Orphan), Some(json!(["orphan"]))),
        (json!([]), Some(Foreground), Some(json!(["foregroundDeletion"]))),
        (json!(["a/b"]), Some(Foreground), Some(json!(["a/b", "foregroundDeletion"]))),
        (json!(["orphan"]), None, Some(json!(["orphan"]))),
        (json!(["orphan", "a/b"]), Some(Foreground), Some(json!(["a/b", "foregroundDeletion"]))),
        (json!(["foregroundDeletion"]), Some(Background), None),
    ] {
        let held = object(json!({"finalizers": existing}));
        let decided = decide(kind("configmaps"), &held, &options(asked), NOW).unwrap();
        match (decided, expected) {
            (Deletion::Remove(_), None) => {}
            (Deletion::Mark(next), Some(expected)) => {
                assert_eq!(next["metadata"]["finalizers"], expected, "{existing} {asked:?}");
            }
            (decided, _) => panic!("{existing} {asked:?}: {decided:?}"),
        }
    }
    // Events own no objects.
    let event = object(json!({}));
    let decided = decide(kind("events"), &event, &options(Some(Foreground)), NOW).unwrap();
    assert_eq!(decided, Deletion::Remove(event));
}

#[test]
fn failed_precondition_is_a_conflict() {
    let claims = kind("persistentvolumeclaims");
    for (uid, version, message) in [
        (Some("v"), None, "the UID in the precondition (v) does not match the UID in record (u)"),
        (
            None,
            Some("4"),
            "the ResourceVersion in the precondition (4) does not match the ResourceVersion in record (3)",
        ),
    ] {
        let options = DeleteOptions {
            uid: uid.map(Into::into),
            resource_version: version.map(Into::into),
            ..options(None)
        };
        let status_error = decide(claims, &object(json!({})), &options, NOW).unwrap_err();
        assert_eq!((status_error.code, status_error.reason), (409, "Conflict"));
        let start = "Operation cannot be fulfilled on PersistentVolumeClaim \"x\": ";
        assert!(status_error.message.starts_with(start), "{status_error}");
        assert!(status_error.message.contains(message), "{status_error}");
    }
    let right = DeleteOptions { uid: Some("u".into()), resource_version: Some("3".into()), ..options(None) };
    assert!(matches!(decide(claims, &object(json!({})), &right, NOW), Ok(Deletion::Remove(_))));
}

#[test]
fn pod_on_a_node_gets_a_grace_period() {
    let pod = |node: &str, phase: &str, metadata: Value| {
        let mut pod = object(metadata);
        pod["spec"] = json!({"nodeName": node, "terminationGracePeriodSeconds": 30});
        pod["status"] = json!({"phase": phase});
        pod
    };
    let decide = |pod: &Value, grace| {
        decide(kind("pods"), pod, &DeleteOptions { grace, ..options(None) }, NOW).unwrap()
    };
    for (node, phase, asked, seconds, remains) in [
        ("n", "Running", None, 30, true),
        ("n", "Running", Some(5), 5, true),
        ("n", "Running", Some(-1), 1, true),
        ("n", "Running", Some(0), 0, false),
        ("", "Pending", None, 0, false),
        ("n", "Succeeded", None, 0, false),
    ] {
        let (decided, remained) = match decide(&pod(node, phase, json!({})), asked) {
            Deletion::Mark(next) => (next, true),
            Deletion::Remove(next) => (next, false),
            Deletion::Wait => panic!("no deletion was in progress"),
        };
        assert_eq!((meta::grace(&decided), remained), (Some(seconds), remains), "{node} {phase} {asked:?}");
        assert_eq!(
            meta::text(&decided, "/metadata/deletionTimestamp"),
            NOW.plus(Duration::from_secs(seconds as u64)).to_string()
        );
    }
    // The grace period can only be shortened.
    let running = pod(
        "n",
        "Running",
        json!({"deletionTimestamp": "1970-01-01T00:17:10Z", "deletionGracePeriodSeconds": 30}),
    );
    assert_eq!(decide(&running, None), Deletion::Wait);
    assert_eq!(decide(&running, Some(30)), Deletion::Wait);
    assert_eq!(decide(&running, Some(60)), Deletion::Wait);
    let Deletion::Mark(shorter) = decide(&running, Some(10)) else {
        panic!("expected a grace period of 10 s")
    };
    assert_eq!(meta::text(&shorter, "/metadata/deletionTimestamp"), "1970-01-01T00:16:50Z");
    assert_eq!(meta::grace(&shorter), Some(10));
    assert!(matches!(decide(&running, Some(0)), Deletion::Remove(_)));
    // A finalizer holds the pod even without a grace period.
    let held = pod("", "Pending", json!({"finalizers": ["a/b"]}));
    assert!(matches!(decide(&held, Some(0)), Deletion::Mark(_)));
}

#[test]
fn namespace_terminates_before_it_is_removed() {
    let namespaces = kind("namespaces");
    let mut active = object(json!({}));
    active["spec"] = json!({"finalizers": ["kubernetes"]});
    active["status"] = json!({"phase": "Active"});
    let Deletion::Mark(terminating) = decide(namespaces, &active, &options(None), NOW).unwrap() else {
        panic!("expected the namespace to be marked")
    };
    assert_eq!(terminating["status"]["phase"], "Terminating");
    assert_eq!(terminating["metadata"]["deletionTimestamp"], SOON);
    assert_eq!(meta::grace(&terminating), None);
    assert_eq!(decide(namespaces, &terminating, &options(None), NOW).unwrap(), Deletion::Wait);
    let mut empty = terminating;
    empty["spec"] = json!({});
    assert!(matches!(decide(namespaces, &empty, &options(None), NOW).unwrap(), Deletion::Remove(_)));
}
