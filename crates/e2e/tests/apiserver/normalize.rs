//! Normalizes the responses of two servers: only UIDs, resourceVersions, timestamps and ages may differ. They are
//! found by field, not by line.

use serde_json::Value;

/// Fields whose values differ between servers.
const FIELDS: [&str; 16] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "lastTimestamp",
    "firstTimestamp",
    "eventTime",
    "lastTransitionTime",
    "lastPhaseTransitionTime",
    "lastProbeTime",
    "time",
    "renewTime",
    "acquireTime",
    "expirationTimestamp",
    "token",
    // Each server has its own certificate authority.
    "ca.crt",
];

/// Replaces the values of those fields by the fields' names.
pub(crate) fn value(value: &mut Value) {
    match value {
        Value::Object(map) => {
            // Managed fields belong to server-side apply, which the embedded API does not implement.
            map.remove("managedFields");
            ages(map);
            for (field, inner) in map.iter_mut() {
                match FIELDS.iter().find(|known| *known == field) {
                    // Keep empty values: empty is different from present.
                    Some(known) if inner.as_str().is_some_and(|text| !text.is_empty()) => {
                        *inner = format!("<{known}>").into()
                    }
                    _ => self::value(inner),
                }
                // Discovery returns custom resources in any order.
                if let ("resources", Value::Array(list)) = (field.as_str(), inner) {
                    list.sort_by_key(|resource| resource["name"].as_str().unwrap_or_default().to_owned());
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(self::value),
        Value::String(text) => *text = words(text),
        _ => {}
    }
}

/// Replaces the age cells of a table.
fn ages(table: &mut serde_json::Map<String, Value>) {
    let mut columns = table.get("columnDefinitions").and_then(Value::as_array).into_iter().flatten();
    let column = columns.position(|column| column["name"] == "Age");
    let rows = table.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten();
    for cell in rows.filter_map(|row| row.get_mut("cells")?.get_mut(column?)) {
        *cell = "<age>".into();
    }
}

/// The leaves of a JSON value as lines, so that differences are reported by field.
pub(crate) fn leaves(value: &Value) -> Vec<String> {
    fn walk(path: &str, value: &Value, lines: &mut Vec<String>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                map.iter().for_each(|(field, inner)| walk(&format!("{path}.{field}"), inner, lines));
            }
            Value::Array(list) if !list.is_empty() => {
                list.iter().enumerate().for_each(|(at, inner)| walk(&format!("{path}[{at}]"), inner, lines));
            }
            leaf => lines.push(format!("{path} = {leaf}")),
        }
    }
    let mut lines = Vec::new();
    walk("", value, &mut lines);
    lines
}

/// The cells of a table without column widths, with ages replaced. Columns are separated by three spaces, and a
/// cell may be empty: the header determines where each column begins.
pub(crate) fn table(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut columns: Vec<(usize, &str)> = Vec::new();
    for line in text.lines() {
        if ["NAME", "LAST SEEN", "NAMESPACE", "EVENT "].iter().any(|head| line.starts_with(head)) {
            columns = headings(line);
        }
        let end = |at: usize| columns.get(at + 1).map_or(line.len(), |next| next.0);
        let cells = columns.iter().enumerate().map(|(at, (begin, heading))| {
            let cell = line.get(*begin..end(at).min(line.len())).unwrap_or_default().trim();
            let is_age = matches!(*heading, "AGE" | "LAST SEEN") && cell != *heading;
            if is_age && !cell.is_empty() { "<age>".to_owned() } else { words(cell) }
        });
        lines.push(cells.collect::<Vec<_>>().join(" | "));
    }
    lines
}

/// The start of each column. A heading may contain single spaces.
fn headings(line: &str) -> Vec<(usize, &str)> {
    let mut columns = Vec::new();
    let mut at = 0;
    for piece in line.split("   ") {
        let heading = piece.trim_start();
        if !heading.is_empty() {
            columns.push((at + piece.len() - heading.len(), heading.trim_end()));
        }
        at += piece.len() + 3;
    }
    columns
}

/// The text of `describe` and of messages, by field.
pub(crate) fn text(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut events = false;
    for line in text.lines() {
        events |= line.starts_with("Events:") || line.trim_start().starts_with("LAST SEEN");
        let (field, rest) = line.split_once(':').unwrap_or((line, ""));
        match field.trim() {
            "Age" | "CreationTimestamp" | "Creation Timestamp" | "UID" | "Uid" | "Resource Version"
            | "Start Time" | "RenewTime" | "Renew Time" | "Acquire Time" => {
                lines.push(format!("{field}: <{}>", field.trim()))
            }
            _ if events && line.starts_with("  ") => {
                let cells: Vec<&str> =
                    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
                // Type, reason, age, from, message.
                let kept = cells.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, cell)| words(cell));
                lines.push(kept.collect::<Vec<_>>().join(" | "));
            }
            _ if rest.is_empty() => lines.push(words(line.trim_end())),
            _ => lines.push(format!("{field}:{}", words(rest.trim_end()))),
        }
    }
    lines
}

/// Replaces UIDs, times and generated suffixes in a text.
fn words(text: &str) -> String {
    let uid = |word: &str| {
        let parts: Vec<&str> = word.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        lengths == [8, 4, 4, 4, 12]
            && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let mut out = String::new();
    for piece in text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
        let word = piece.trim_end_matches(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        // The messages that contain a resourceVersion.
        let is_version = ["ResourceVersion in record (", "too old resource version: 1 (", ", current: "]
            .iter()
            .any(|before| out.ends_with(before));
        out.push_str(if uid(word) {
            "<uid>"
        } else if is_version {
            "<resourceVersion>"
        } else {
            word
        });
        out.push_str(&piece[word.len()..]);
    }
    out
}

/// The differences as lines: `-` only the real server, `+` only the embedded one.
pub(crate) fn difference(theirs: &[String], ours: &[String]) -> Vec<String> {
    let missing = |from: &[String], of: &[String], sign: char| {
        let mut rest: Vec<&String> = of.iter().collect();
        let mut lines = Vec::new();
        for line in from {
            match rest.iter().position(|other| *other == line) {
                Some(at) => drop(rest.remove(at)),
                None => lines.push(format!("{sign} {line}")),
            }
        }
        lines
    };
    let mut lines = missing(theirs, ours, '-');
    lines.extend(missing(ours, theirs, '+'));
    if lines.is_empty() && theirs != ours {
        lines.push("! the same lines in another order".to_owned());
    }
    lines
}

#[test]
fn normalize_replaces_only_server_specific_values() {
    let mut object =
        serde_json::json!({"metadata": {"uid": "1", "name": "a", "resourceVersion": ""}, "time": null});
    value(&mut object);
    assert_eq!(object["metadata"], serde_json::json!({"uid": "<uid>", "name": "a", "resourceVersion": ""}));
    assert_eq!(object["time"], Value::Null);
    let mut rows = serde_json::json!({
        "columnDefinitions": [{"name": "Name"}, {"name": "Age"}], "rows": [{"cells": ["a", "1s"]}],
    });
    value(&mut rows);
    assert_eq!(rows["rows"][0]["cells"], serde_json::json!(["a", "<age>"]));
    assert_eq!(
        table("NAME   STATUS   AGE\na      Bound    5m"),
        ["NAME | STATUS | AGE", "a | Bound | <age>"]
    );
    assert_eq!(words("uid 6a7f1d3e-1111-2222-3333-444455556666, b"), "uid <uid>, b");
    assert_eq!(
        words("the ResourceVersion in record (12)."),
        "the ResourceVersion in record (<resourceVersion>)."
    );
    assert_eq!(words("too old resource version: 1 (12)"), "too old resource version: 1 (<resourceVersion>)");
    assert_eq!(text("Name:  a\nAge:   3s"), ["Name:  a", "Age: <Age>"]);
    let (a, b) = (vec!["x".to_owned(), "y".to_owned()], vec!["y".to_owned(), "z".to_owned()]);
    assert_eq!(difference(&a, &b), ["- x", "+ z"]);
    assert_eq!(difference(&a, &["y".to_owned(), "x".to_owned()]), ["! the same lines in another order"]);
}
