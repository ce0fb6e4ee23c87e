//! Proves on the server that no attachment refers to volumes in deletion, with one request for all of them, however many
//! attachments exist.
//!
//! The request reads the first page of the attachments. If that is the whole list, it is the proof. Otherwise it tells
//! the server's newest version: once the store has reached that version, its index is the proof. An attachment that
//! cannot be decoded counts for the volume that it names; only one whose volume cannot be read at all, of this driver,
//! delays all volumes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wharf_cluster::{ApiError, Cluster, Store, WatchOptions};
use wharf_model::{Key, Kind, VolumeAttachment};

use super::BY_SUBJECT;
use super::view::Subject;

/// Volumes in deletion, by name, with their UIDs.
pub(super) type DeletedVolumes = BTreeMap<String, String>;

/// Volumes whose check waits until the store has reached a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AwaitedVersion {
    /// The server's version after the deletion of the volumes was observed.
    pub(super) version: String,
    pub(super) volumes: DeletedVolumes,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReferenceCheck {
    /// The volumes that were checked, and those that no attachment refers to.
    Done { checked: DeletedVolumes, unreferenced: DeletedVolumes },
    /// The store does not prove anything yet.
    Await(AwaitedVersion),
}

/// Why no check was possible.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReferenceError {
    #[error("failed to read VolumeAttachments: {0}")]
    Api(#[from] ApiError),
    #[error(
        "VolumeAttachment {0} cannot be decoded, and it cannot be read which volume it names: repair or delete it"
    )]
    Unreadable(String),
}

/// What a raw attachment refers to.
#[derive(Debug, PartialEq, Eq)]
enum RawReference<'a> {
    Volume(&'a str),
    /// An inline volume, or a volume of another driver.
    NoneOfOurs,
    Unknown,
}

/// Makes the checks of one driver.
pub(super) struct ReferenceChecker<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) attachments: &'a Store<VolumeAttachment>,
    pub(super) driver: &'a str,
}

impl ReferenceChecker<'_> {
    /// Starts a check. The deletion of all volumes was observed before.
    pub(super) async fn start(&self, volumes: DeletedVolumes) -> Result<ReferenceCheck, ReferenceError> {
        let page = self.cluster.list_first_page::<VolumeAttachment>(&WatchOptions::default()).await?;
        if !page.is_complete {
            return self.proceed(AwaitedVersion { version: page.version, volumes }).await;
        }
        let named = page.list.items.into_iter().filter_map(|a| a.spec.source.persistent_volume_name);
        let mut referenced: BTreeSet<String> = named.collect();
        referenced.extend(self.undecodable_references(page.list.undecodable).await?);
        Ok(finished(volumes, |volume| referenced.contains(volume)))
    }

    /// Continues a check, if the store has reached the version.
    pub(super) async fn proceed(&self, awaited: AwaitedVersion) -> Result<ReferenceCheck, ReferenceError> {
        if !self.attachments.has_reached(&awaited.version) {
            return Ok(ReferenceCheck::Await(awaited));
        }
        let undecodable = self.undecodable_references(self.attachments.undecodable()).await?;
        let is_referenced = |volume: &str| {
            let subject = Subject::Volume(volume.to_owned());
            undecodable.contains(volume)
                || self.attachments.first_by_index(BY_SUBJECT, &subject.index()).is_some()
        };
        Ok(finished(awaited.volumes, is_referenced))
    }

    /// The volumes that attachments refer to that cannot be decoded.
    async fn undecodable_references(
        &self,
        keys: Vec<Option<Key>>,
    ) -> Result<BTreeSet<String>, ReferenceError> {
        let mut referenced = BTreeSet::new();
        for key in keys {
            let key = key.ok_or_else(|| ReferenceError::Unreadable("without a name".to_owned()))?;
            let Some(raw) = self.cluster.get_raw(&VolumeAttachment::API, &key).await? else { continue };
            match raw_reference(&raw, self.driver) {
                RawReference::Volume(volume) => _ = referenced.insert(volume.to_owned()),
                RawReference::NoneOfOurs => {}
                RawReference::Unknown => return Err(ReferenceError::Unreadable(key.to_string())),
            }
        }
        Ok(referenced)
    }
}

fn finished(volumes: DeletedVolumes, is_referenced: impl Fn(&str) -> bool) -> ReferenceCheck {
    let free = volumes.iter().filter(|(volume, _)| !is_referenced(volume));
    let unreferenced = free.map(|(volume, uid)| (volume.clone(), uid.clone())).collect();
    ReferenceCheck::Done { checked: volumes, unreferenced }
}

fn raw_reference<'a>(attachment: &'a Value, driver: &str) -> RawReference<'a> {
    match (attachment.pointer("/spec/source/persistentVolumeName"), attachment.pointer("/spec/attacher")) {
        (Some(Value::String(volume)), _) => RawReference::Volume(volume),
        (_, Some(Value::String(attacher))) if attacher != driver => RawReference::NoneOfOurs,
        (None | Some(Value::Null), _)
            if attachment.pointer("/spec/source/inlineVolumeSpec").is_some_and(Value::is_object) =>
        {
            RawReference::NoneOfOurs
        }
        _ => RawReference::Unknown,
    }
}

#[cfg(test)]
mod tests;
