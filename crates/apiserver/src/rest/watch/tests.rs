use bytes::Bytes;
use wharf_model::Time;

use super::*;
use crate::kinds;
use crate::store::Event;

#[test]
fn event_type_follows_the_selection() {
    for (before, now, expected) in [
        (None, Some(true), Some(WatchEventType::Added)),
        (None, Some(false), None),
        (Some(false), Some(true), Some(WatchEventType::Added)),
        (Some(true), Some(true), Some(WatchEventType::Modified)),
        (Some(true), Some(false), Some(WatchEventType::Deselected)),
        (Some(false), Some(false), None),
        (Some(true), None, Some(WatchEventType::Deleted)),
        (Some(false), None, None),
        (None, None, None),
    ] {
        assert_eq!(watch_event_type(before, now), expected, "{before:?} {now:?}");
    }
}

fn encoder(selector: &str, shape: Shape) -> EventEncoder {
    let kind = kinds::find("", "v1", "configmaps").unwrap();
    let query = Query::parse(&format!("labelSelector={selector}"));
    let format = OutputFormat { shape, pretty: false, now: Time(0) };
    EventEncoder { kind, selection: Selection::parse(kind, &query).unwrap(), format, columns: true }
}

fn config(revision: u64, color: &str) -> Bytes {
    let revision = revision.to_string();
    json!({"metadata": {"name": "x", "resourceVersion": revision, "labels": {"color": color}}})
        .to_string()
        .into()
}

fn events(out: &[u8]) -> Vec<Value> {
    out.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[test]
fn deselected_object_is_sent_in_its_last_selected_state() {
    let mut encoder = encoder("color=red", Shape::Object);
    let mut out = Vec::new();
    let mut write = |revision, before: Option<&str>, now: &str, deleted| {
        let event = Event {
            revision,
            key: "/configmaps/a/x".into(),
            value: config(revision, now),
            deleted,
            previous: before.map(|color| config(revision - 1, color)),
        };
        encoder.event(&event, &mut out).unwrap();
    };
    write(1, None, "blue", false);
    write(2, Some("blue"), "red", false);
    write(3, Some("red"), "red", false);
    write(4, Some("red"), "blue", false);
    write(5, Some("blue"), "blue", true);
    write(7, Some("red"), "red", true);
    let events: Vec<(String, String, String)> = events(&out)
        .iter()
        .map(|line| {
            let field = |pointer: &str| line.pointer(pointer).unwrap().as_str().unwrap().to_owned();
            (
                field("/type"),
                field("/object/metadata/resourceVersion"),
                field("/object/metadata/labels/color"),
            )
        })
        .collect();
    let expected =
        [("ADDED", "2", "red"), ("MODIFIED", "3", "red"), ("DELETED", "4", "red"), ("DELETED", "7", "red")];
    let expected: Vec<_> =
        expected.iter().map(|(a, b, c)| (a.to_string(), b.to_string(), c.to_string())).collect();
    assert_eq!(events, expected);
}

#[test]
fn table_columns_are_sent_once() {
    let mut encoder = encoder("", Shape::Table(table::IncludeObject::None));
    let mut out = Vec::new();
    encoder.initial(&config(1, "red"), &mut out).unwrap();
    encoder.initial(&config(2, "red"), &mut out).unwrap();
    encoder.bookmark(3, false, &mut out);
    let events = events(&out);
    assert!(events[0]["object"]["columnDefinitions"].is_array());
    assert!(events[1]["object"]["columnDefinitions"].is_null());
    assert_eq!(events[2]["type"], "BOOKMARK");
    assert_eq!(events[2]["object"]["metadata"]["resourceVersion"], "3");
}

#[test]
fn initial_events_end_with_an_annotated_bookmark() {
    let mut out = Vec::new();
    encoder("", Shape::Object).bookmark(9, true, &mut out);
    assert_eq!(
        events(&out)[0],
        json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
            "resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}})
    );
}
