//! Attachments of volumes that are gone: a request that arrived when its pod, claim and volume were deleted already. No
//! volume leads to them any more, so nobody would ever ask for their end; upstream leaves them, and the attacher tries for
//! ever.
//!
//! What is deleted was never attached: an attacher puts its finalizer on attachment and volume before it calls the driver. The
//! deletion is of the very version that has none, and the server itself says that the volume is not there.

use wharf_cluster::work::Outcome;
use wharf_cluster::{ApiError, Preconditions};
use wharf_model::{Key, Kind as _, PersistentVolume, VolumeAttachment};

use super::AttachDetach;
use super::act::Then;

/// Whether an attachment was made here, and no attacher has begun with it.
pub(super) fn is_untouched(attachment: &VolumeAttachment) -> bool {
    let meta = &attachment.metadata;
    let ours = meta.name.strip_prefix("csi-").is_some_and(|hash| {
        hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    });
    ours && !meta.is_deleting() && meta.finalizers.is_empty() && !attachment.status.attached
}

impl AttachDetach {
    /// Deletes an attachment whose volume is gone.
    pub(super) async fn forget(&self, name: &str) -> Then {
        let cluster = &self.context.cluster;
        let attachment = self.attachments.get(&Key::cluster(name));
        let Some(attachment) = attachment.filter(|attachment| is_untouched(attachment)) else {
            return Then::End(Outcome::Done);
        };
        let Some(volume) = attachment.spec.source.persistent_volume_name.as_ref() else {
            return Then::End(Outcome::Done);
        };
        match cluster.get::<PersistentVolume>(&Key::cluster(volume.as_str())).await {
            Ok(None) => {}
            // It comes into the store, and is looked at like any other.
            Ok(Some(_)) => return Then::End(Outcome::Done),
            Err(error) => return not_yet(name, &error),
        }
        let preconditions = Preconditions {
            uid: Some(attachment.metadata.uid.clone()),
            resource_version: Some(attachment.metadata.resource_version.clone()),
        };
        match cluster.delete(&VolumeAttachment::API, &Key::cluster(name), preconditions).await {
            Ok(()) => {
                tracing::info!(
                    attachment = name,
                    volume,
                    "deleted: its volume is gone and was never attached"
                );
                Then::End(Outcome::Done)
            }
            Err(ApiError::NotFound(_)) => Then::End(Outcome::Done),
            Err(error) => not_yet(name, &error),
        }
    }
}

fn not_yet(name: &str, error: &ApiError) -> Then {
    tracing::warn!(attachment = name, %error, "cannot delete an attachment whose volume is gone");
    Then::End(Outcome::Retry)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_no_attacher_has_begun_with() {
        let name = format!("csi-{}", "0a".repeat(32));
        let deleting = "2026-01-01T00:00:00Z";
        for (what, metadata, status, expected) in [
            ("made and left", json!({"name": name}), json!({}), true),
            ("failed before the driver was asked", json!({"name": name}), json!({"attachError": {}}), true),
            ("of somebody else", json!({"name": "mine"}), json!({}), false),
            ("much like ours", json!({"name": format!("{name}x")}), json!({}), false),
            ("begun", json!({"name": name, "finalizers": ["external-attacher/x"]}), json!({}), false),
            ("attached", json!({"name": name}), json!({"attached": true}), false),
            ("going", json!({"name": name, "deletionTimestamp": deleting}), json!({}), false),
        ] {
            let attachment = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
            assert_eq!(is_untouched(&attachment), expected, "{what}");
        }
    }
}
