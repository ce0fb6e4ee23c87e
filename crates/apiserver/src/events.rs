//! Events in both of their shapes: `v1` of the core group, in which they are stored, and `events.k8s.io/v1`.

use serde_json::Value;

/// What the core group calls it, and what the newer one does.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// From the newer shape to the core group's.
pub(crate) fn to_core(event: Value) -> Value {
    rename(event, |(core, newer)| (newer, core))
}

/// From the core group's shape to the newer one.
pub(crate) fn to_new(event: Value) -> Value {
    rename(event, |names| names)
}

fn rename(
    mut event: Value,
    direction: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Value {
    if let Value::Object(map) = &mut event {
        for (from, to) in NAMES.iter().copied().map(direction) {
            if let Some(value) = map.remove(from) {
                map.insert(to.into(), value);
            }
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_shapes_say_the_same() {
        let core = json!({
            "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod"}, "reason": "R", "message": "m",
            "source": {"component": "c"}, "firstTimestamp": "t1", "lastTimestamp": "t2", "count": 3,
            "type": "Normal", "eventTime": "t3", "series": {"count": 2}, "action": "A", "related": {"kind": "Node"},
            "reportingComponent": "rc", "reportingInstance": "ri",
        });
        let newer = json!({
            "metadata": {"name": "e"}, "regarding": {"kind": "Pod"}, "reason": "R", "note": "m",
            "deprecatedSource": {"component": "c"}, "deprecatedFirstTimestamp": "t1",
            "deprecatedLastTimestamp": "t2", "deprecatedCount": 3,
            "type": "Normal", "eventTime": "t3", "series": {"count": 2}, "action": "A", "related": {"kind": "Node"},
            "reportingController": "rc", "reportingInstance": "ri",
        });
        assert_eq!(to_new(core.clone()), newer);
        assert_eq!(to_core(newer), core);
    }
}
