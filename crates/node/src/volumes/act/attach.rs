//! Reads the VolumeAttachment of a volume: before the volume is touched, and while waiting for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::ApiError;
use wharf_model::{Key, VolumeAttachment};

use super::super::manager::{Inputs, Manager};
use super::super::names;
use super::super::world::Volume;
use super::StepError;

/// gRPC's RESOURCE_EXHAUSTED: the node takes no more volumes.
const EXHAUSTED: i32 = 8;
/// Poll interval of the VolumeAttachment where it cannot be watched. The Node itself reports attached volumes.
const ATTACHMENT_POLL: Duration = Duration::from_secs(10);

impl Manager {
    /// The last step of the handshake: one GET of the attachment.
    pub(super) async fn verify(&self, unique: &str, inputs: &Inputs) -> Result<(), StepError> {
        let name = self.attachment(&inputs.volume);
        let attachment = self.parts.cluster.get::<VolumeAttachment>(&Key::cluster(&name)).await;
        let context = attached(&name, attachment).map_err(StepError::transient)?;
        self.change(unique, |volume| volume.context = Some(context));
        Ok(())
    }

    /// Fetches the attacher's error for display while the volume waits. If the node is full, its volume limit may have
    /// changed. Returns when to poll again, if the attachment is not watched.
    pub(in super::super) async fn check_attachment(&self, unique: &str, volume: &Volume) -> Option<Duration> {
        let key = Key::cluster(self.attachment(volume));
        let (attachment, poll_after) = match &self.privileged {
            Some(privileged) => (privileged.attachments.get(&key), None),
            // A node may not read the attachment before it exists.
            None => {
                let read = self.parts.cluster.get::<VolumeAttachment>(&key).await;
                (read.ok().flatten().map(Arc::new), Some(ATTACHMENT_POLL))
            }
        };
        let error = attachment.and_then(|attachment| attachment.status.attach_error.clone());
        let message = error.as_ref().map(|error| error.message.clone());
        if message == volume.attach_error {
            return poll_after;
        }
        self.change(unique, |volume| volume.attach_error = message);
        if error.and_then(|error| error.error_code) == Some(EXHAUSTED) {
            self.parts.plugins.refresh(&volume.driver);
        }
        poll_after
    }

    fn attachment(&self, volume: &Volume) -> String {
        names::attachment(&volume.handle, &volume.driver, &self.parts.node)
    }
}

/// The publish context, if the volume is attached and not being detached.
fn attached(
    name: &str,
    attachment: Result<Option<VolumeAttachment>, ApiError>,
) -> Result<BTreeMap<String, String>, String> {
    let attachment = match attachment {
        Ok(Some(attachment)) => attachment,
        Ok(None) => return Err(format!("volumeattachments.storage.k8s.io \"{name}\" not found")),
        Err(error) => return Err(format!("cannot read VolumeAttachment {name}: {error}")),
    };
    if attachment.metadata.is_deleting() {
        return Err(format!("volume attachment is being deleted: {name}, and the volume will be detached"));
    }
    let status = &attachment.status;
    match (status.attached, &status.attach_error) {
        (true, _) => Ok((&status.attachment_metadata).into()),
        (false, Some(error)) => Err(format!("volume attachment {name} failed: {}", error.message)),
        (false, None) => Err(format!("volume attachment {name} is not attached yet")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn attachment(value: Value) -> Result<Option<VolumeAttachment>, ApiError> {
        Ok(Some(serde_json::from_value(value).unwrap()))
    }

    /// kubernetes.md 1.8 "Attach handshake": attached, not deleting; its metadata is the publish context.
    #[test]
    fn attachment_is_usable_only_when_attached_and_not_deleting() {
        let metadata = json!({"attached": true, "attachmentMetadata": {"a": "1"}});
        let whole = attached("x", attachment(json!({"status": metadata})));
        assert_eq!(whole, Ok(BTreeMap::from([("a".to_owned(), "1".to_owned())])));
        let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": metadata});
        for (response, expected) in [
            (attachment(deleting), "volume attachment is being deleted"),
            (attachment(json!({"status": {"attached": false}})), "not attached yet"),
            (attachment(json!({"status": {"attachError": {"message": "no slot"}}})), "no slot"),
            (Ok(None), "\"x\" not found"),
        ] {
            let error = attached("x", response).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
