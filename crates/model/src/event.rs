//! Event: what was recorded about an object, and when last. For components that look up what they recorded before they
//! were restarted.

use serde::{Deserialize, Deserializer};

use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};
use crate::{Meta, Time};

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Metadata: only the name, UID, resource version and deletion timestamp.
    pub metadata: Meta,
    /// The UID of the object it is about.
    pub regarding_uid: String,
    /// Whether its type is Warning.
    pub warning: bool,
    /// A machine-readable reason in CamelCase.
    pub reason: String,
    /// A human-readable message.
    pub message: String,
    /// When it last occurred.
    pub last_timestamp: Time,
}

impl Kind for Event {
    const API: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Event", plural: "events", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut wire = Wire::deserialize(deserializer)?;
        let created = wire.metadata.creation_timestamp;
        // Reporters that use the events.k8s.io API leave the older fields empty.
        let last = wire.last_timestamp.or(wire.event_time).or(created).unwrap_or_default();
        let Meta { name, namespace, uid, resource_version, deletion_timestamp, .. } =
            std::mem::take(&mut wire.metadata);
        Ok(Self {
            metadata: Meta { name, namespace, uid, resource_version, deletion_timestamp, ..Meta::default() },
            regarding_uid: wire.involved_object.uid,
            warning: wire.kind == "Warning",
            reason: wire.reason,
            message: wire.message,
            last_timestamp: last,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    metadata: Meta,
    involved_object: WireObject,
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    kind: String,
    #[serde(deserialize_with = "null_as_default")]
    reason: String,
    #[serde(deserialize_with = "null_as_default")]
    message: String,
    last_timestamp: Option<Time>,
    event_time: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireObject {
    #[serde(deserialize_with = "null_as_default")]
    uid: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn last_time_is_decoded_from_either_api() {
        let (first, last) = ("2026-11-15T10:00:00Z", "2026-11-15T11:00:00Z");
        for times in [
            json!({"firstTimestamp": first, "lastTimestamp": last, "eventTime": null}),
            json!({"lastTimestamp": null, "eventTime": "2026-11-15T11:00:00.000000Z"}),
            json!({"metadata": {"creationTimestamp": last}}),
        ] {
            let mut event = json!({"reason": "R", "message": "m", "involvedObject": {"uid": "u"}});
            event.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            let event: Event = serde_json::from_value(event).unwrap();
            assert_eq!(event.last_timestamp.to_string(), last, "{times}");
            assert_eq!((event.regarding_uid.as_str(), event.reason.as_str()), ("u", "R"));
        }
    }

    #[test]
    fn warnings_are_recognized() {
        for (kind, warning) in [(json!("Warning"), true), (json!("Normal"), false), (json!(null), false)] {
            let event: Event = serde_json::from_value(json!({"type": kind})).unwrap();
            assert_eq!(event.warning, warning, "{kind}");
        }
    }
}
