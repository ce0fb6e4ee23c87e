//! Events as they are read, with what stories need of them.

use serde::Deserialize;
use wharf_model::{Api, Kind, Meta, Scope, Time};

use crate::facts::Told;

/// An event with what stories need of it.
pub(crate) struct Event {
    metadata: Meta,
    pub(crate) told: Told,
}

impl Kind for Event {
    const API: Api =
        Api { group: "", version: "v1", kind: "Event", plural: "events", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Wire { metadata, involved_object, kind, reason, message, last_timestamp, event_time } =
            Wire::deserialize(deserializer)?;
        let last = last_timestamp.or(event_time).or(metadata.creation_timestamp).unwrap_or_default();
        let warning = kind.as_deref() == Some("Warning");
        let told = Told {
            uid: involved_object.uid.unwrap_or_default(),
            warning,
            reason: reason.unwrap_or_default(),
            message: message.unwrap_or_default(),
            last,
        };
        Ok(Self { metadata, told })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    metadata: Meta,
    involved_object: Involved,
    #[serde(rename = "type")]
    kind: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    last_timestamp: Option<Time>,
    event_time: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Involved {
    uid: Option<String>,
}
