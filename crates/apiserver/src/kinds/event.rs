//! Event, in both of its API groups. Both groups serve the same objects. Events are stored in the form of the core group;
//! [`event_from_core`] converts them for requests to events.k8s.io.

use serde_json::{Map, Value, json};
use wharf_model::Time;

use super::{BASE, Column, Field, Kind, age, go, json, meta, names};
use crate::status::Cause;

/// Event of the core group.
pub(super) static EVENT: Kind = Kind {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    namespaced: true,
    create_on_update: true,
    default: |event| {
        let Value::Object(event) = event else { return };
        for field in ["involvedObject", "source"] {
            json::set_default(event, field, json!({}));
        }
        for field in ["reportingComponent", "reportingInstance"] {
            json::set_default(event, field, "");
        }
        for field in ["eventTime", "firstTimestamp", "lastTimestamp"] {
            event.entry(field).or_insert(Value::Null);
        }
    },
    validate: |event| validate_legacy(event, "reportingComponent"),
    validate_update: |event, _| validate_legacy(event, "reportingComponent"),
    fields: FIELDS,
    columns: COLUMNS,
    row: |event, now| row(event, now),
    ..BASE
};

/// Event of events.k8s.io.
pub(super) static EVENTS_GROUP_EVENT: Kind = Kind {
    group: "events.k8s.io",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    namespaced: true,
    create_on_update: true,
    default: |event| {
        let Value::Object(event) = event else { return };
        for field in ["regarding", "deprecatedSource"] {
            json::set_default(event, field, json!({}));
        }
        for field in ["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"] {
            event.entry(field).or_insert(Value::Null);
        }
    },
    validate: |event| validate_v1(&event_to_core(event)),
    validate_update: |event, old| validate_v1_update(&event_to_core(event), &event_to_core(old)),
    fields: NEW_FIELDS,
    columns: COLUMNS,
    row: |event, now| row(&event_to_core(event), now),
    ..BASE
};

/// Fields with different names: the name in events.k8s.io, the name in the core group.
const RENAMED: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Converts an event of either group to the form of the core group.
pub fn event_to_core(event: &Value) -> Value {
    let Value::Object(event) = event else { return event.clone() };
    let mut core = Map::new();
    for (field, value) in event {
        let renamed = RENAMED.iter().find(|(new, _)| new == field).map(|(_, old)| *old);
        core.insert(renamed.unwrap_or(field).into(), value.clone());
    }
    if core.contains_key("apiVersion") {
        core.insert("apiVersion".into(), "v1".into());
    }
    let mut core = Value::Object(core);
    (EVENT.default)(&mut core);
    core
}

/// Converts a stored event to the form of events.k8s.io.
pub fn event_from_core(event: &Value) -> Value {
    let Value::Object(event) = event else { return event.clone() };
    let mut new = Map::new();
    for (field, value) in event {
        let renamed = RENAMED.iter().find(|(_, old)| old == field).map(|(new, _)| *new);
        // events.k8s.io omits these fields if they are empty.
        if !(matches!(field.as_str(), "reportingComponent" | "reportingInstance") && value == "") {
            new.insert(renamed.unwrap_or(field).into(), value.clone());
        }
    }
    if new.contains_key("apiVersion") {
        new.insert("apiVersion".into(), "events.k8s.io/v1".into());
    }
    let mut new = Value::Object(new);
    (EVENTS_GROUP_EVENT.default)(&mut new);
    new
}

const FIELDS: &[Field] = &[
    ("involvedObject.kind", |event| involved(event, "kind")),
    ("involvedObject.namespace", |event| involved(event, "namespace")),
    ("involvedObject.name", |event| involved(event, "name")),
    ("involvedObject.uid", |event| involved(event, "uid")),
    ("involvedObject.apiVersion", |event| involved(event, "apiVersion")),
    ("involvedObject.resourceVersion", |event| involved(event, "resourceVersion")),
    ("involvedObject.fieldPath", |event| involved(event, "fieldPath")),
    ("reason", |event| json::text(event, "/reason").into()),
    ("reportingComponent", |event| json::text(event, "/reportingComponent").into()),
    ("source", |event| match json::text(event, "/source/component") {
        "" => json::text(event, "/reportingComponent").into(),
        component => component.into(),
    }),
    ("type", |event| json::text(event, "/type").into()),
];

const NEW_FIELDS: &[Field] = &[
    ("regarding.kind", |event| involved(event, "kind")),
    ("regarding.namespace", |event| involved(event, "namespace")),
    ("regarding.name", |event| involved(event, "name")),
    ("regarding.uid", |event| involved(event, "uid")),
    ("regarding.apiVersion", |event| involved(event, "apiVersion")),
    ("regarding.resourceVersion", |event| involved(event, "resourceVersion")),
    ("regarding.fieldPath", |event| involved(event, "fieldPath")),
    ("reason", |event| json::text(event, "/reason").into()),
    ("reportingController", |event| json::text(event, "/reportingController").into()),
    ("type", |event| json::text(event, "/type").into()),
];

fn involved(event: &Value, field: &str) -> String {
    let object = event.get("involvedObject").or_else(|| event.get("regarding"));
    object.and_then(|object| object.get(field)).and_then(Value::as_str).unwrap_or_default().into()
}

const COLUMNS: &[Column] = &[
    Column::text("Last Seen", "The time since the event was last observed."),
    Column::text("Type", "Normal or Warning."),
    Column::text("Reason", "The machine-readable reason for the event."),
    Column::text("Object", "The object that the event is about."),
    Column::text("Subobject", "The part of the object that the event is about.").wide(),
    Column::text("Source", "The component that reported the event.").wide(),
    Column::text("Message", "A human-readable description of the event."),
    Column::text("First Seen", "The time since the event was first observed.").wide(),
    Column::text("Count", "The number of times the event was observed.").wide(),
    Column { format: "name", ..Column::text("Name", "The name of the event, unique within its namespace.") }
        .wide(),
];

fn row(event: &Value, now: Time) -> Vec<Value> {
    let since = |pointer: &str| age::timestamp(event, pointer).map(|_| age::since(event, pointer, now));
    let unknown = || "<unknown>".to_owned();
    let first = since("/firstTimestamp").or_else(|| since("/eventTime")).unwrap_or_else(unknown);
    let mut last = since("/lastTimestamp").unwrap_or_else(|| first.clone());
    let mut count = json::number(event, "/count").filter(|count| *count != 0).unwrap_or(1);
    if json::has(event, "/series") {
        last = since("/series/lastObservedTime").unwrap_or_else(unknown);
        count = json::number(event, "/series/count").unwrap_or_default();
    }
    let kind = json::text(event, "/involvedObject/kind").to_lowercase();
    let object = match json::text(event, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let or = |first: &str, second: &str| match json::text(event, first) {
        "" => json::text(event, second).to_owned(),
        text => text.to_owned(),
    };
    let component = or("/source/component", "/reportingComponent");
    let source = match or("/source/host", "/reportingInstance") {
        host if host.is_empty() => component,
        host => format!("{component}, {host}"),
    };
    vec![
        last.into(),
        json::text(event, "/type").into(),
        json::text(event, "/reason").into(),
        object.into(),
        json::text(event, "/involvedObject/fieldPath").into(),
        source.into(),
        json::text(event, "/message").trim().into(),
        first.into(),
        count.into(),
        json::text(event, "/metadata/name").into(),
    ]
}

/// Upstream's legacy validation, which applies to both groups.
fn validate_legacy(event: &Value, controller: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (namespace, involved_namespace) =
        (json::text(event, "/metadata/namespace"), json::text(event, "/involvedObject/namespace"));
    let mismatch = || {
        Cause::invalid(
            "involvedObject.namespace",
            &involved_namespace.into(),
            "does not match event.namespace",
        )
    };
    let is_new = json::has(event, "/eventTime");
    if !is_new {
        let fits = if involved_namespace.is_empty() {
            matches!(namespace, "" | "default")
        } else {
            namespace == involved_namespace
        };
        if !fits {
            causes.push(mismatch());
        }
    } else {
        if involved_namespace.is_empty() && !matches!(namespace, "default" | "kube-system") {
            causes.push(mismatch());
        }
        let name = json::text(event, "/reportingComponent");
        if name.is_empty() {
            causes.push(Cause::required(controller, ""));
        }
        causes.extend(meta::invalid_causes(controller, name, names::qualified_name(name)));
        for (field, most, required) in [
            ("reportingInstance", 128, true),
            ("action", 128, true),
            ("reason", 128, true),
            ("message", 1024, false),
        ] {
            let text = json::text(event, &format!("/{field}"));
            if required && text.is_empty() {
                causes.push(Cause::required(field, ""));
            }
            if text.len() > most {
                let detail = format!("can have at most {most} characters");
                causes.push(Cause::invalid(field, &"".into(), &detail));
            }
        }
    }
    causes.extend(meta::invalid_causes("namespace", namespace, names::subdomain(namespace, false)));
    causes
}

fn validate_series(event: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if json::has(event, "/series") {
        if json::number(event, "/series/count").unwrap_or_default() < 2 {
            causes.push(Cause::invalid("series.count", &"".into(), "should be at least 2"));
        }
        if !json::has(event, "/series/lastObservedTime") {
            causes.push(Cause::required("series.lastObservedTime", ""));
        }
    }
    causes
}

fn validate_v1(event: &Value) -> Vec<Cause> {
    let mut causes = validate_legacy(event, "reportingController");
    causes.extend(meta::validate(event, true, names::subdomain));
    causes.extend(validate_series(event));
    if !json::has(event, "/eventTime") {
        causes.push(Cause::required("eventTime", ""));
    }
    let kind = json::text(event, "/type");
    if !matches!(kind, "Normal" | "Warning") {
        causes.push(Cause::invalid("type", &"".into(), &format!("has invalid value: {kind}")));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count"] {
        if json::has(event, &format!("/{field}")) && json::number(event, &format!("/{field}")) != Some(0) {
            causes.push(Cause::invalid(field, &"".into(), "needs to be unset"));
        }
    }
    if ["component", "host"].iter().any(|part| !json::text(event, &format!("/source/{part}")).is_empty()) {
        causes.push(Cause::invalid("source", &"".into(), "needs to be unset"));
    }
    causes
}

fn validate_v1_update(event: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = validate_legacy(event, "reportingController");
    causes.extend(meta::validate_update(event, old));
    if event.get("series") != old.get("series") {
        causes.extend(validate_series(event));
    }
    let is_text = |field: &str| {
        matches!(field, "reason" | "message" | "type" | "action" | "reportingComponent" | "reportingInstance")
    };
    for (field, named) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        let value = json::at(event, &format!("/{field}"));
        if value == json::at(old, &format!("/{field}")) {
            continue;
        }
        let printed = match field {
            "involvedObject" => go::compact(&value, "ObjectReference"),
            "related" => go::compact(&value, "*ObjectReference"),
            "source" => go::compact(&value, "EventSource"),
            "count" if value.is_null() => "0".into(),
            field if is_text(field) && value.is_null() => "\"\"".into(),
            _ => value.to_string(),
        };
        causes.push(meta::invalid_raw(named, &printed, "field is immutable"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::{invalid, invalid_update, with};

    fn old() -> Value {
        json!({
            "metadata": {"name": "e", "namespace": "ns"}, "type": "Normal", "reason": "Bound", "message": " it is bound\n",
            "involvedObject": {"kind": "PersistentVolumeClaim", "name": "c", "namespace": "ns", "uid": "u"},
            "source": {"component": "binder", "host": "n1"}, "count": 3,
            "firstTimestamp": "1970-01-01T00:00:00Z", "lastTimestamp": "1970-01-01T00:00:05Z",
        })
    }

    fn new() -> Value {
        json!({
            "metadata": {"name": "e", "namespace": "ns"}, "type": "Normal", "reason": "Bound", "note": "it is bound",
            "regarding": {"kind": "PersistentVolumeClaim", "name": "c", "namespace": "ns"}, "action": "Bind",
            "eventTime": "1970-01-01T00:00:04.000000Z", "reportingController": "wharf.dev/binder",
            "reportingInstance": "binder-1",
        })
    }

    #[test]
    fn events_convert_between_groups() {
        let core = event_to_core(&with(&new(), &json!({"apiVersion": "events.k8s.io/v1"})));
        assert_eq!(core["apiVersion"], "v1");
        assert_eq!(core["involvedObject"]["name"], "c");
        assert_eq!(core["message"], "it is bound");
        assert_eq!(core["reportingComponent"], "wharf.dev/binder");
        assert_eq!(core["firstTimestamp"], Value::Null);
        assert_eq!(core["source"], json!({}));
        assert_eq!(event_to_core(&core), core);
        let back = event_from_core(&core);
        assert_eq!(back["regarding"]["name"], "c");
        assert_eq!(back["apiVersion"], "events.k8s.io/v1");
        assert_eq!(back["deprecatedSource"], json!({}));
        let mut old = old();
        (EVENT.default)(&mut old);
        assert_eq!(event_to_core(&event_from_core(&old)), old);
        assert_eq!(event_from_core(&old).get("reportingController"), None);
    }

    #[test]
    fn core_group_create_is_validated() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (
                json!({"involvedObject": {"namespace": "other"}}),
                vec!["involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"],
            ),
            (json!({"involvedObject": {"namespace": null}, "metadata": {"namespace": "default"}}), vec![]),
            (
                json!({"eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "x"}),
                vec!["reportingInstance: Required value", "action: Required value"],
            ),
        ] {
            assert_eq!(invalid(&EVENT, &old(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn events_group_create_and_update_are_validated() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"type": "Bad"}), vec!["type: Invalid value: \"\": has invalid value: Bad"]),
            (
                json!({"series": {"count": 1}}),
                vec![
                    "series.count: Invalid value: \"\": should be at least 2",
                    "series.lastObservedTime: Required value",
                ],
            ),
            (json!({"deprecatedCount": 2}), vec!["count: Invalid value: \"\": needs to be unset"]),
            (
                json!({"note": "x".repeat(1025)}),
                vec!["message: Invalid value: \"\": can have at most 1024 characters"],
            ),
            (json!({"eventTime": null}), vec!["eventTime: Required value"]),
        ] {
            assert_eq!(invalid(&EVENTS_GROUP_EVENT, &new(), &patch), expected, "{patch}");
        }
        assert_eq!(
            invalid_update(
                &EVENTS_GROUP_EVENT,
                &new(),
                &json!({"note": "other", "regarding": {"name": "d"}})
            ),
            [
                "involvedObject: Invalid value: {\"Kind\":\"PersistentVolumeClaim\",\"Namespace\":\"ns\",\"Name\":\"d\",\
                 \"UID\":\"\",\"APIVersion\":\"\",\"ResourceVersion\":\"\",\"FieldPath\":\"\"}: field is immutable",
                "message: Invalid value: \"other\": field is immutable",
            ]
        );
        let more = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}});
        assert!(invalid_update(&EVENTS_GROUP_EVENT, &new(), &more).is_empty());
    }

    #[test]
    fn table_rows_match_upstream() {
        let expected = json!([
            "5s",
            "Normal",
            "Bound",
            "persistentvolumeclaim/c",
            "",
            "binder, n1",
            "it is bound",
            "10s",
            3,
            "e",
        ]);
        assert_eq!(Value::from((EVENT.row)(&old(), Time(10_000))), expected);
        let expected = json!([
            "6s",
            "Normal",
            "Bound",
            "persistentvolumeclaim/c",
            "",
            "wharf.dev/binder, binder-1",
            "it is bound",
            "6s",
            1,
            "e",
        ]);
        assert_eq!(Value::from((EVENTS_GROUP_EVENT.row)(&new(), Time(10_000))), expected);
        let again =
            with(&new(), &json!({"series": {"count": 4, "lastObservedTime": "1970-01-01T00:00:09.000000Z"}}));
        let cells = (EVENTS_GROUP_EVENT.row)(&again, Time(10_000));
        assert_eq!((&cells[0], &cells[7], &cells[8]), (&json!("1s"), &json!("6s"), &json!(4)));
    }

    #[test]
    fn field_selectors_read_supported_fields() {
        let value = |kind: &Kind, event: &Value, field: &str| kind.field(field).map(|value| value(event));
        for (kind, event, field, expected) in [
            (&EVENT, old(), "involvedObject.uid", Some("u")),
            (&EVENT, old(), "source", Some("binder")),
            (&EVENT, event_to_core(&new()), "source", Some("wharf.dev/binder")),
            (&EVENT, old(), "type", Some("Normal")),
            (&EVENT, old(), "regarding.name", None),
            (&EVENTS_GROUP_EVENT, new(), "regarding.name", Some("c")),
            (&EVENTS_GROUP_EVENT, new(), "reportingController", Some("wharf.dev/binder")),
            (&EVENTS_GROUP_EVENT, new(), "involvedObject.name", None),
        ] {
            assert_eq!(value(kind, &event, field).as_deref(), expected, "{field}");
        }
    }
}
