use bytes::Bytes;
use wharf_model::Time;

use super::*;
use crate::kinds;
use crate::store::Event;

#[test]
fn what_is_told() {
    for (before, now, expected) in [
        (None, Some(true), Some(Told::Added)),
        (None, Some(false), None),
        (Some(false), Some(true), Some(Told::Added)),
        (Some(true), Some(true), Some(Told::Modified)),
        (Some(true), Some(false), Some(Told::Left)),
        (Some(false), Some(false), None),
        (Some(true), None, Some(Told::Deleted)),
        (Some(false), None, None),
        (None, None, None),
    ] {
        assert_eq!(tell(before, now), expected, "{before:?} {now:?}");
    }
}

fn lines(selector: &str, shape: Shape) -> Lines {
    let kind = kinds::find("", "v1", "configmaps").unwrap();
    let query = Query::parse(&format!("labelSelector={selector}"));
    let look = Look { shape, pretty: false, now: Time(0) };
    Lines { kind, selection: Selection::parse(kind, &query).unwrap(), look, columns: true }
}

fn config(revision: u64, color: &str) -> Bytes {
    let revision = revision.to_string();
    json!({"metadata": {"name": "x", "resourceVersion": revision, "labels": {"color": color}}})
        .to_string()
        .into()
}

fn said(out: &[u8]) -> Vec<Value> {
    out.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[test]
fn an_object_that_leaves_the_selection_is_told_as_it_was() {
    let mut lines = lines("color=red", Shape::Object);
    let mut out = Vec::new();
    let mut write = |revision, before: Option<&str>, now: &str, deleted| {
        let event = Event {
            revision,
            key: "/configmaps/a/x".into(),
            value: config(revision, now),
            deleted,
            previous: before.map(|color| config(revision - 1, color)),
        };
        lines.event(&event, &mut out).unwrap();
    };
    write(1, None, "blue", false);
    write(2, Some("blue"), "red", false);
    write(3, Some("red"), "red", false);
    write(4, Some("red"), "blue", false);
    write(5, Some("blue"), "blue", true);
    write(7, Some("red"), "red", true);
    let said: Vec<(String, String, String)> = said(&out)
        .iter()
        .map(|line| {
            let of = |pointer: &str| line.pointer(pointer).unwrap().as_str().unwrap().to_owned();
            (of("/type"), of("/object/metadata/resourceVersion"), of("/object/metadata/labels/color"))
        })
        .collect();
    let expected =
        [("ADDED", "2", "red"), ("MODIFIED", "3", "red"), ("DELETED", "4", "red"), ("DELETED", "7", "red")];
    let expected: Vec<_> =
        expected.iter().map(|(a, b, c)| (a.to_string(), b.to_string(), c.to_string())).collect();
    assert_eq!(said, expected);
}

#[test]
fn columns_come_once() {
    let mut lines = lines("", Shape::Table(table::Include::None));
    let mut out = Vec::new();
    lines.initial(&config(1, "red"), &mut out).unwrap();
    lines.initial(&config(2, "red"), &mut out).unwrap();
    lines.bookmark(3, false, &mut out);
    let said = said(&out);
    assert!(said[0]["object"]["columnDefinitions"].is_array());
    assert!(said[1]["object"]["columnDefinitions"].is_null());
    assert_eq!(said[2]["type"], "BOOKMARK");
    assert_eq!(said[2]["object"]["metadata"]["resourceVersion"], "3");
}

#[test]
fn the_end_of_the_beginning_is_marked() {
    let mut out = Vec::new();
    lines("", Shape::Object).bookmark(9, true, &mut out);
    assert_eq!(
        said(&out)[0],
        json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
            "resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}})
    );
}
