//! Proves on the server that no attachment refers to volumes in deletion, with one request for all of them, however many
//! attachments exist.
//!
//! The request reads the first page of the attachments. If that is the whole list, it is the proof. Otherwise the page
//! contains the server's newest version: once the store has reached that version, its index is the proof. An attachment
//! that cannot be decoded counts as a reference to the volume that it names. If even the name of its volume cannot be
//! read, and its attacher may be this driver, it delays all volumes.
//!
//! If the server's data was restored from a backup, its versions can be lower than those that the store has reached, and
//! the store may have missed changes. So a lower version proves nothing.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wharf_cluster::{ApiError, Cluster, Store, WatchOptions, compare_versions};
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
    /// The volumes whose check is complete, and those of them that no attachment refers to. The volumes in `blocked` are
    /// named by an attachment that cannot be decoded. The store reports no change when that is deleted, so they must be
    /// checked again.
    Done { checked: DeletedVolumes, unreferenced: DeletedVolumes, blocked: DeletedVolumes },
    /// The store does not prove anything yet.
    Await(AwaitedVersion),
}

/// Why no check was possible.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReferenceError {
    #[error("failed to read VolumeAttachments: {0}")]
    Api(#[from] ApiError),
    #[error("VolumeAttachment {0} cannot be decoded, not even the name of its volume: repair or delete it")]
    Unreadable(String),
    #[error(
        "the API server's version {server} is older than version {reached}, which the watch has reached: its data was \
         restored, or it lags behind"
    )]
    OlderServer { server: String, reached: String },
}

/// What a raw attachment refers to.
#[derive(Debug, PartialEq, Eq)]
enum RawReference<'a> {
    Volume(&'a str),
    /// An inline volume, or a volume of another driver.
    NotOurs,
    Unknown,
}

/// Checks references for one driver.
pub(super) struct ReferenceChecker<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) attachments: &'a Store<VolumeAttachment>,
    pub(super) driver: &'a str,
}

impl ReferenceChecker<'_> {
    /// Starts a check. The caller has already observed the deletion of all these volumes.
    pub(super) async fn start(&self, volumes: DeletedVolumes) -> Result<ReferenceCheck, ReferenceError> {
        let reached = self.attachments.reached_version();
        let page = self.cluster.list_first_page::<VolumeAttachment>(&WatchOptions::default()).await?;
        if !page.is_complete {
            if let Some(reached) = reached
                && compare_versions(&page.version, &reached) == Some(Ordering::Less)
            {
                return Err(ReferenceError::OlderServer { server: page.version, reached });
            }
            return self.resume(AwaitedVersion { version: page.version, volumes }).await;
        }
        let named = page.list.items.into_iter().filter_map(|a| a.spec.source.persistent_volume_name);
        let referenced: BTreeSet<String> = named.collect();
        let undecodable = self.undecodable_references(page.list.undecodable).await?;
        Ok(finished(volumes, &undecodable, |volume| referenced.contains(volume)))
    }

    /// Continues a check, if the store has reached the version.
    pub(super) async fn resume(&self, awaited: AwaitedVersion) -> Result<ReferenceCheck, ReferenceError> {
        if !self.attachments.has_reached(&awaited.version) {
            return Ok(ReferenceCheck::Await(awaited));
        }
        let undecodable = self.undecodable_references(self.attachments.undecodable()).await?;
        let is_referenced = |volume: &str| {
            let subject = Subject::Volume(volume.to_owned());
            self.attachments.first_by_index(BY_SUBJECT, &subject.index()).is_some()
        };
        Ok(finished(awaited.volumes, &undecodable, is_referenced))
    }

    /// The volumes that undecodable attachments refer to.
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
                RawReference::NotOurs => {}
                RawReference::Unknown => return Err(ReferenceError::Unreadable(key.to_string())),
            }
        }
        Ok(referenced)
    }
}

fn finished(
    volumes: DeletedVolumes,
    undecodable: &BTreeSet<String>,
    is_referenced: impl Fn(&str) -> bool,
) -> ReferenceCheck {
    let (blocked, checked): (DeletedVolumes, DeletedVolumes) =
        volumes.into_iter().partition(|(volume, _)| undecodable.contains(volume));
    let unreferenced = checked.iter().filter(|(volume, _)| !is_referenced(volume));
    let unreferenced = unreferenced.map(|(volume, uid)| (volume.clone(), uid.clone())).collect();
    ReferenceCheck::Done { checked, unreferenced, blocked }
}

fn raw_reference<'a>(attachment: &'a Value, driver: &str) -> RawReference<'a> {
    match (attachment.pointer("/spec/source/persistentVolumeName"), attachment.pointer("/spec/attacher")) {
        (Some(Value::String(volume)), _) => RawReference::Volume(volume),
        (_, Some(Value::String(attacher))) if attacher != driver => RawReference::NotOurs,
        (None | Some(Value::Null), _)
            if attachment.pointer("/spec/source/inlineVolumeSpec").is_some_and(Value::is_object) =>
        {
            RawReference::NotOurs
        }
        _ => RawReference::Unknown,
    }
}

#[cfg(test)]
mod tests;
