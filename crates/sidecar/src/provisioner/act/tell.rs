//! What people are told of a claim's way to its volume: upstream's events in upstream's words.

use std::collections::BTreeMap;

use serde_json::Value;
use tonic::Status;
use wharf_cluster::{Event, EventType, Regarding};
use wharf_csi::ErrorClass;
use wharf_model::names::reason;
use wharf_model::{Key, Kind, PersistentVolumeClaim};

use crate::driver::described;
use crate::provisioner::intent::{ContentSource, Intent};

/// For whom a step is done.
pub(super) struct Whom<'a> {
    pub(super) volume: &'a str,
    pub(super) claim: Key,
    uid: String,
    pub(super) class: String,
    /// The kind that the content comes from; empty for a new volume.
    pub(super) source: &'static str,
    /// Whether there still is somebody to tell.
    pub(super) there: bool,
}

/// What there is to tell.
pub(super) enum Told<'a> {
    /// Work begins.
    Beginning,
    /// The volume is there.
    Made,
    /// It is not, and why.
    Failed(&'a str),
    /// Somebody else sees to it.
    Left,
}

impl<'a> Whom<'a> {
    /// A claim that waits for its volume.
    pub(super) fn waits(volume: &'a str, claim: &PersistentVolumeClaim) -> Self {
        let source = match claim.source().map(|source| source.kind.as_str()) {
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
            there: true,
        }
    }

    /// A claim for which an intent was written.
    pub(super) fn intended(intent: &'a Intent, claim: Option<&PersistentVolumeClaim>) -> Self {
        let class = intent.template.pointer("/spec/storageClassName").and_then(Value::as_str);
        Self {
            volume: &intent.volume,
            claim: Key::namespaced(&intent.claim.namespace, &intent.claim.name),
            uid: intent.claim.uid.clone(),
            class: class.unwrap_or_default().to_owned(),
            source: match &intent.request.source {
                Some(ContentSource::Snapshot(_)) => "VolumeSnapshot",
                Some(ContentSource::Volume(_)) => "PersistentVolumeClaim",
                None => "",
            },
            there: claim.is_some(),
        }
    }

    /// The event.
    pub(super) fn event(&self, told: &Told<'_>) -> Event {
        let (kind, reason, note) = match told {
            Told::Beginning => (
                EventType::Normal,
                reason::PROVISIONING,
                format!("External provisioner is provisioning volume for claim \"{}\"", self.claim),
            ),
            Told::Made => (
                EventType::Normal,
                reason::PROVISIONING_SUCCEEDED,
                format!("Successfully provisioned volume {}", self.volume),
            ),
            Told::Failed(error) => (
                EventType::Warning,
                reason::PROVISIONING_FAILED,
                format!("failed to provision volume with StorageClass \"{}\": {error}", self.class),
            ),
            Told::Left => (
                EventType::Normal,
                reason::PROVISIONING,
                "Assuming an external populator will provision the volume".to_owned(),
            ),
        };
        let regarding = Regarding {
            api_version: PersistentVolumeClaim::API.api_version(),
            kind: PersistentVolumeClaim::API.kind.to_owned(),
            key: self.claim.clone(),
            uid: self.uid.clone(),
        };
        Event { regarding, kind, reason: reason.to_owned(), note }
    }
}

/// What a refusal of the driver is to people. Without the secrets that it was given.
pub(super) fn refusal(status: &Status, class: ErrorClass, secrets: &BTreeMap<String, String>) -> String {
    let words = described(status, secrets);
    match class {
        ErrorClass::Infeasible => format!("{words}. Retries will be delayed"),
        ErrorClass::StillRunning | ErrorClass::Final => words,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::testing::{VOLUME, claim, intent};

    /// sidecars.md 1.1 "Events"
    #[test]
    fn events_are_upstreams() {
        let claim = claim(json!({}));
        for whom in [Whom::waits(VOLUME, &claim), Whom::intended(&intent(), Some(&claim))] {
            let told = |told: Told<'_>| {
                let Event { regarding, kind, reason, note } = whom.event(&told);
                assert_eq!((regarding.api_version.as_str(), regarding.uid.as_str()), ("v1", "u1"));
                assert_eq!((regarding.kind.as_str(), regarding.key), ("PersistentVolumeClaim", claim.key()));
                (kind, reason, note)
            };
            let event = |kind, reason: &str, note: &str| (kind, reason.to_owned(), note.to_owned());
            let (normal, warning) = (EventType::Normal, EventType::Warning);
            let begins = "External provisioner is provisioning volume for claim \"shop/data\"";
            assert_eq!(told(Told::Beginning), event(normal, "Provisioning", begins));
            let made = "Successfully provisioned volume pvc-u1";
            assert_eq!(told(Told::Made), event(normal, "ProvisioningSucceeded", made));
            let failed = "failed to provision volume with StorageClass \"fast\": no";
            assert_eq!(told(Told::Failed("no")), event(warning, "ProvisioningFailed", failed));
            let left = "Assuming an external populator will provision the volume";
            assert_eq!(told(Told::Left), event(normal, "Provisioning", left));
        }
    }

    /// sidecars.md 1.1 "Error classes": what a driver says is quoted as Go quotes it, but for the secrets in it.
    #[test]
    fn refusals_are_quoted() {
        let secrets = BTreeMap::from([("password".to_owned(), "hunter2".to_owned())]);
        let status = Status::invalid_argument("no such pool for hunter2");
        let quoted = "rpc error: code = InvalidArgument desc = no such pool for ***";
        assert_eq!(refusal(&status, ErrorClass::Final, &secrets), quoted);
        assert_eq!(refusal(&status, ErrorClass::StillRunning, &secrets), quoted);
        let delayed = format!("{quoted}. Retries will be delayed");
        assert_eq!(refusal(&status, ErrorClass::Infeasible, &secrets), delayed);
    }

    /// sidecars.md 1.1 "Metrics": the kind of the source is a label.
    #[test]
    fn the_kind_of_source() {
        let of = |kind: &str| {
            let claim = claim(json!({"spec": {"dataSource": {"kind": kind, "name": "s"}}}));
            Whom::waits(VOLUME, &claim).source
        };
        assert_eq!(
            ["VolumeSnapshot", "PersistentVolumeClaim", "Bucket"].map(of),
            ["VolumeSnapshot", "PersistentVolumeClaim", ""]
        );
        let intended = |source| {
            let mut intent = intent();
            intent.request.source = source;
            let whom = Whom::intended(&intent, None);
            assert!(!whom.there);
            whom.source
        };
        assert_eq!(intended(Some(ContentSource::Snapshot("s".into()))), "VolumeSnapshot");
        assert_eq!(intended(Some(ContentSource::Volume("v".into()))), "PersistentVolumeClaim");
        assert_eq!(intended(None), "");
    }
}
