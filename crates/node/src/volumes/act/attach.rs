//! The attachment of a volume, as its attacher has it: read before a volume is touched, and while it is waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::ApiError;
use wharf_model::{Key, VolumeAttachment};

use super::super::manager::{Manager, Seen};
use super::super::names;
use super::super::world::Volume;
use super::Trouble;

/// gRPC's RESOURCE_EXHAUSTED: the node takes no more volumes.
const EXHAUSTED: i32 = 8;
/// How often the attacher's word is looked for where nobody tells of changes. That a volume is attached, the Node says.
const ASK_AGAIN: Duration = Duration::from_secs(10);

impl Manager {
    /// The last step of the handshake: one GET of the attachment.
    pub(super) async fn verify(&self, unique: &str, seen: &Seen) -> Result<(), Trouble> {
        let name = self.attachment(&seen.volume);
        let attachment = self.parts.cluster.get::<VolumeAttachment>(&Key::cluster(&name)).await;
        let context = attached(&name, attachment).map_err(Trouble::transient)?;
        self.change(unique, |volume| volume.context = Some(context));
        Ok(())
    }

    /// What the attacher says is the matter, for whoever asks what the volume waits for. A node that is full may have
    /// another limit than it says. Answers when to ask again, if nobody tells.
    pub(in super::super) async fn ask_attacher(&self, unique: &str, volume: &Volume) -> Option<Duration> {
        let key = Key::cluster(self.attachment(volume));
        let (attachment, again) = match &self.wide {
            Some(wide) => (wide.attachments.get(&key), None),
            // Until it is there, a node has nothing to do with it and is refused.
            None => {
                let read = self.parts.cluster.get::<VolumeAttachment>(&key).await;
                (read.ok().flatten().map(Arc::new), Some(ASK_AGAIN))
            }
        };
        let error = attachment.and_then(|attachment| attachment.status.attach_error.clone());
        let message = error.as_ref().map(|error| error.message.clone());
        if message == volume.attach_error {
            return again;
        }
        self.change(unique, |volume| volume.attach_error = message);
        if error.and_then(|error| error.error_code) == Some(EXHAUSTED) {
            self.parts.plugins.refresh(&volume.driver);
        }
        again
    }

    fn attachment(&self, volume: &Volume) -> String {
        names::attachment(&volume.handle, &volume.driver, &self.parts.node)
    }
}

/// The publish context, if the volume is attached and stays so.
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
        return Err(format!("volume attachment is being deleted: {name} goes, and the volume with it"));
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

    /// kubernetes.md 1.8 "Handshake": attached, not deleting; its metadata is the publish context.
    #[test]
    fn what_an_attachment_says() {
        let metadata = json!({"attached": true, "attachmentMetadata": {"a": "1"}});
        let whole = attached("x", attachment(json!({"status": metadata})));
        assert_eq!(whole, Ok(BTreeMap::from([("a".to_owned(), "1".to_owned())])));
        let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": metadata});
        for (answer, words) in [
            (attachment(deleting), "volume attachment is being deleted"),
            (attachment(json!({"status": {"attached": false}})), "not attached yet"),
            (attachment(json!({"status": {"attachError": {"message": "no slot"}}})), "no slot"),
            (Ok(None), "\"x\" not found"),
        ] {
            let error = attached("x", answer).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
