//! Orphans: VolumeAttachments of deleted volumes, from a create request that took effect after its pod, claim and
//! volume were deleted. No volume leads to them, so nothing would delete them; upstream leaves them, and the attacher
//! retries endlessly.
//!
//! Only attachments that were never attached are deleted: an attacher puts its finalizer on attachment and volume
//! before it calls the driver. The deletion is limited to the version without finalizers, after the API server itself
//! reported that the volume does not exist.

use wharf_cluster::work::StepOutcome;
use wharf_cluster::{ApiError, Preconditions};
use wharf_model::{Key, Kind as _, PersistentVolume, VolumeAttachment};

use super::AttachDetach;

/// Whether this controller created the attachment and no attacher has started on it.
pub(super) fn is_untouched(attachment: &VolumeAttachment) -> bool {
    let meta = &attachment.metadata;
    let has_our_name = meta.name.strip_prefix("csi-").is_some_and(|hash| {
        hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    });
    has_our_name && !meta.is_deleting() && meta.finalizers.is_empty() && !attachment.status.attached
}

impl AttachDetach {
    /// Deletes an attachment whose volume was deleted.
    pub(super) async fn delete_orphan(&self, name: &str) -> StepOutcome {
        let cluster = &self.context.cluster;
        let attachment = self.attachments.get(&Key::cluster(name));
        let Some(attachment) = attachment.filter(|attachment| is_untouched(attachment)) else {
            return StepOutcome::DONE;
        };
        let Some(volume) = attachment.spec.source.persistent_volume_name.as_ref() else {
            return StepOutcome::DONE;
        };
        match cluster.get::<PersistentVolume>(&Key::cluster(volume.as_str())).await {
            Ok(None) => {}
            // The volume enters the store and is reconciled as usual.
            Ok(Some(_)) => return StepOutcome::DONE,
            Err(error) => return retry_delete(name, &error),
        }
        let preconditions = Preconditions {
            uid: Some(attachment.metadata.uid.clone()),
            resource_version: Some(attachment.metadata.resource_version.clone()),
        };
        match cluster.delete(&VolumeAttachment::API, &Key::cluster(name), preconditions).await {
            Ok(()) => {
                tracing::info!(
                    volume_attachment = name,
                    pv = volume,
                    "deleted VolumeAttachment of a volume that does not exist and was never attached"
                );
                StepOutcome::DONE
            }
            Err(ApiError::NotFound(_)) => StepOutcome::DONE,
            Err(error) => retry_delete(name, &error),
        }
    }
}

fn retry_delete(name: &str, error: &ApiError) -> StepOutcome {
    tracing::warn!(volume_attachment = name, %error, "failed to delete VolumeAttachment of a deleted volume");
    StepOutcome::RETRY
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn attachments_are_untouched_until_an_attacher_starts() {
        let name = format!("csi-{}", "0a".repeat(32));
        let deleting = "2026-01-01T00:00:00Z";
        for (what, metadata, status, expected) in [
            ("created and not started", json!({"name": name}), json!({}), true),
            ("failed before the driver was called", json!({"name": name}), json!({"attachError": {}}), true),
            ("name of another controller", json!({"name": "mine"}), json!({}), false),
            ("name with a longer suffix", json!({"name": format!("{name}x")}), json!({}), false),
            ("started", json!({"name": name, "finalizers": ["external-attacher/x"]}), json!({}), false),
            ("attached", json!({"name": name}), json!({"attached": true}), false),
            ("being deleted", json!({"name": name, "deletionTimestamp": deleting}), json!({}), false),
        ] {
            let attachment = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
            assert_eq!(is_untouched(&attachment), expected, "{what}");
        }
    }
}
