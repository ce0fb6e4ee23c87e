//! Events about provisioning, with upstream's reasons and messages.

use std::collections::BTreeMap;

use serde_json::Value;
use tonic::Status;
use wharf_cluster::{Event, EventType, ObjectReference};
use wharf_csi::ErrorClass;
use wharf_model::names::reason;
use wharf_model::{Key, Kind, PersistentVolumeClaim};

use crate::driver::redacted_status_text;
use crate::provisioner::intent::{ContentSource, Intent};
use crate::suspects;

/// The claim that a step is for.
pub(super) struct EventTarget<'a> {
    pub(super) volume: &'a str,
    pub(super) claim: Key,
    uid: String,
    pub(super) class: String,
    /// The kind of the data source; empty for an empty volume.
    pub(super) source: &'static str,
    /// Whether the claim still exists. Without it no event is recorded.
    pub(super) claim_exists: bool,
}

/// An event about a claim.
pub(super) enum EventRecord<'a> {
    /// Provisioning starts.
    Provisioning,
    /// The PersistentVolume exists.
    Provisioned,
    /// An attempt failed with this error.
    Failed(&'a str),
    /// A volume populator provisions the claim.
    LeftToPopulator,
    /// A volume may exist without an object that refers to it, with this text.
    SuspectedOrphan(&'a str),
}

impl<'a> EventTarget<'a> {
    /// A pending claim.
    pub(super) fn for_claim(volume: &'a str, claim: &PersistentVolumeClaim) -> Self {
        let source = match claim.data_source().map(|source| source.kind.as_str()) {
            Some("VolumeSnapshot") => "VolumeSnapshot",
            Some("PersistentVolumeClaim") => "PersistentVolumeClaim",
            _ => "",
        };
        Self {
            volume,
            claim: claim.key(),
            uid: claim.metadata.uid.clone(),
            class: claim.class().unwrap_or_default().to_owned(),
            source,
            claim_exists: true,
        }
    }

    /// The claim of an intent.
    pub(super) fn for_intent(intent: &'a Intent, claim: Option<&PersistentVolumeClaim>) -> Self {
        let class = intent.template.pointer("/spec/storageClassName").and_then(Value::as_str);
        Self {
            volume: &intent.volume,
            claim: intent.claim.key(),
            uid: intent.claim.uid.clone(),
            class: class.unwrap_or_default().to_owned(),
            source: match &intent.request.source {
                Some(ContentSource::Snapshot(_)) => "VolumeSnapshot",
                Some(ContentSource::Volume(_)) => "PersistentVolumeClaim",
                None => "",
            },
            claim_exists: claim.is_some(),
        }
    }

    /// The event as it is recorded.
    pub(super) fn event(&self, event: &EventRecord<'_>) -> Event {
        let (kind, reason, note) = match event {
            EventRecord::Provisioning => (
                EventType::Normal,
                reason::PROVISIONING,
                format!("External provisioner is provisioning volume for claim \"{}\"", self.claim),
            ),
            EventRecord::Provisioned => (
                EventType::Normal,
                reason::PROVISIONING_SUCCEEDED,
                format!("Successfully provisioned volume {}", self.volume),
            ),
            EventRecord::Failed(error) => {
                (EventType::Warning, reason::PROVISIONING_FAILED, (*error).to_owned())
            }
            EventRecord::LeftToPopulator => (
                EventType::Normal,
                reason::PROVISIONING,
                "Assuming an external populator will provision the volume".to_owned(),
            ),
            EventRecord::SuspectedOrphan(note) => {
                (EventType::Warning, suspects::EVENT_REASON, (*note).to_owned())
            }
        };
        let regarding = ObjectReference {
            api_version: PersistentVolumeClaim::API.api_version(),
            kind: PersistentVolumeClaim::API.kind.to_owned(),
            key: self.claim.clone(),
            uid: self.uid.clone(),
        };
        Event { regarding, event_type: kind, reason: reason.to_owned(), note }
    }
}

/// The error text for a driver's error, without the secrets that the driver received.
pub(super) fn error_text(status: &Status, class: ErrorClass, secrets: &BTreeMap<String, String>) -> String {
    let text = redacted_status_text(status, secrets);
    match class {
        ErrorClass::Infeasible => {
            format!("Volume provisioning failed with infeasible error. Retries will be delayed. {text}")
        }
        ErrorClass::StillRunning | ErrorClass::Final => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::testing::{VOLUME, claim, intent};

    /// sidecars.md 1.1 "Events"
    #[test]
    fn events_match_upstream() {
        let claim = claim(json!({}));
        for target in
            [EventTarget::for_claim(VOLUME, &claim), EventTarget::for_intent(&intent(), Some(&claim))]
        {
            let recorded = |event: EventRecord<'_>| {
                let Event { regarding, event_type: kind, reason, note } = target.event(&event);
                assert_eq!((regarding.api_version.as_str(), regarding.uid.as_str()), ("v1", "u1"));
                assert_eq!((regarding.kind.as_str(), regarding.key), ("PersistentVolumeClaim", claim.key()));
                (kind, reason, note)
            };
            let event = |kind, reason: &str, note: &str| (kind, reason.to_owned(), note.to_owned());
            let (normal, warning) = (EventType::Normal, EventType::Warning);
            let provisioning = "External provisioner is provisioning volume for claim \"shop/data\"";
            assert_eq!(recorded(EventRecord::Provisioning), event(normal, "Provisioning", provisioning));
            let created = "Successfully provisioned volume pvc-u1";
            assert_eq!(recorded(EventRecord::Provisioned), event(normal, "ProvisioningSucceeded", created));
            assert_eq!(recorded(EventRecord::Failed("no")), event(warning, "ProvisioningFailed", "no"));
            let left = "Assuming an external populator will provision the volume";
            assert_eq!(recorded(EventRecord::LeftToPopulator), event(normal, "Provisioning", left));
        }
    }

    /// sidecars.md 1.1 "Error classes": a driver's error is formatted as Go formats it, with secrets redacted.
    #[test]
    fn driver_errors_are_formatted_like_gos() {
        let secrets = BTreeMap::from([("password".to_owned(), "hunter2".to_owned())]);
        let status = Status::invalid_argument("no such pool for hunter2");
        let quoted = "rpc error: code = InvalidArgument desc = no such pool for ***";
        assert_eq!(error_text(&status, ErrorClass::Final, &secrets), quoted);
        assert_eq!(error_text(&status, ErrorClass::StillRunning, &secrets), quoted);
        let delayed = "Volume provisioning failed with infeasible error. Retries will be delayed. ";
        let delayed = format!("{delayed}{quoted}");
        assert_eq!(error_text(&status, ErrorClass::Infeasible, &secrets), delayed);
    }

    /// sidecars.md 1.1 "Metrics": the kind of the source is a label.
    #[test]
    fn source_label_is_kind_of_data_source() {
        let of = |kind: &str| {
            let claim = claim(json!({"spec": {"dataSource": {"kind": kind, "name": "s"}}}));
            EventTarget::for_claim(VOLUME, &claim).source
        };
        assert_eq!(
            ["VolumeSnapshot", "PersistentVolumeClaim", "Bucket"].map(of),
            ["VolumeSnapshot", "PersistentVolumeClaim", ""]
        );
        let for_intent = |source| {
            let mut intent = intent();
            intent.request.source = source;
            let target = EventTarget::for_intent(&intent, None);
            assert!(!target.claim_exists);
            target.source
        };
        assert_eq!(for_intent(Some(ContentSource::Snapshot("s".into()))), "VolumeSnapshot");
        assert_eq!(for_intent(Some(ContentSource::Volume("v".into()))), "PersistentVolumeClaim");
        assert_eq!(for_intent(None), "");
    }
}
