//! The records of a share: plain data, and the rules to read and write it.
//!
//! `.wharf` (0700) in the root of the export has:
//!
//! | Path | Content |
//! |---|---|
//! | `share.json` | [`ShareRecord`] |
//! | `volumes/<sha256 of the handle>/<generation>.json` | [`VolumeRecord`] |
//! | `names/<sha256 of the name>/<generation>.json` | [`NameRecord`] |
//! | `directories/<sha256 of the path>/<generation>.json` | [`DirectoryRecord`] |
//! | `staging/<id>/data` | A new directory, renamed into place when it is complete |
//! | `trash/<id>/` | A removed directory `data`, and `item.json`, which proves that it may be purged |
//! | `tmp/<id>` | A record that is being written |
//!
//! A volume references its directory. The directory's record, not the volume's, decides who created the directory and
//! whether it may be removed: two volumes can reference one directory.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use wharf_driver::backend::VolumeContentSource;

use crate::parameters::{OnDelete, QuotaMode};
use crate::path::SharePath;

/// The record version that this release writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// What to do about a damaged record. Without its record a volume can be used, but is not deleted; adoption writes it again.
pub(super) const REPAIR: &str =
    "restore the file from a backup, or move its directory out of .wharf and adopt the volume again";

/// The share itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareRecord {
    /// Distinguishes this share from another one at the same address.
    pub uuid: String,
}

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum VolumeState {
    /// CreateVolume has not returned it yet.
    Creating,
    /// Returned by CreateVolume.
    Ready,
    /// DeleteVolume was called; finished by repeats and by recovery.
    Deleting {
        /// What happens to the directory, decided by the first call.
        on_delete: OnDelete,
    },
}

/// A volume, by its handle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    /// The volume handle.
    pub handle: String,
    /// The name of the CSI request.
    pub name: String,
    /// The volume's directory.
    pub path: SharePath,
    /// Where the volume is in its life.
    pub state: VolumeState,
    /// The size in bytes; 0 if none was requested.
    pub size: u64,
    /// The volume context.
    pub context: BTreeMap<String, String>,
    /// The mount options of the class.
    pub options: Vec<String>,
    /// What DeleteVolume does, if the class says it.
    pub on_delete: Option<OnDelete>,
    /// The content source.
    pub source: Option<VolumeContentSource>,
    /// The mode of a new directory.
    pub mode: Option<u32>,
    /// The owner of a new directory.
    pub uid: Option<u32>,
    /// The group of a new directory.
    pub gid: Option<u32>,
    /// Whether the volume must be limited to its size.
    #[serde(default)]
    pub quota: QuotaMode,
}

/// The name of a CreateVolume request, and the volume that was created for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NameRecord {
    /// The name.
    pub name: String,
    /// The volume handle.
    pub handle: String,
}

/// Who created a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// The driver: removed with its last reference.
    Created,
    /// It was there before: never removed.
    Existing,
    /// csi-driver-nfs or nfs-subdir-external-provisioner, for a volume that was adopted: removed with its last reference.
    Adopted,
}

/// What identifies a directory, beyond its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryIdentity {
    /// The file ID (inode number).
    pub file_id: u64,
    /// The value of the user xattr `user.wharf.id`, where the server has xattrs. File IDs can be reused; this cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattr: Option<String>,
}

/// What a directory is used for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "use")]
pub enum DirectoryUse {
    /// The directory of one or more volumes.
    Volume {
        /// The handles of the volumes.
        references: BTreeSet<String>,
        /// Where the directory is in its life.
        state: DirectoryState,
    },
    /// Above a volume's directory. Removed only while it is empty, and only if the driver created it.
    Parent,
    /// Was above a volume's directory, and was removed. Until the record is dropped, after the grace period, the path is not used
    /// for a volume: a slow controller could still remove an empty directory there.
    Removed,
    /// The archived directory of a deleted volume. Never removed.
    Archive {
        /// The handle of the deleted volume.
        handle: String,
    },
}

/// Where a volume's directory is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum DirectoryState {
    /// Not in place yet. With an identity, `staging/<id>/data` is the directory that will be renamed into place.
    Creating {
        /// The winning staging directory.
        staging: Option<String>,
    },
    /// In place.
    Ready,
    /// On its way to the trash or the archive.
    Removing {
        /// The directory's new path, relative to the share's root.
        destination: Destination,
    },
}

/// Where a removed directory goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Destination {
    /// `trash/<id>/data`.
    Trash(String),
    /// A path in the share, claimed by a record with [`DirectoryUse::Archive`].
    Archive(SharePath),
}

/// A directory of the share that a volume uses, by its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryRecord {
    /// The path.
    pub path: SharePath,
    /// Who created it.
    pub origin: Origin,
    /// What identifies it; `None` while it is not created yet.
    pub identity: Option<DirectoryIdentity>,
    /// The most careful `onDelete` of the volumes in it that were deleted before the last one.
    #[serde(default)]
    pub kept: OnDelete,
    /// Whether the server's agent limits it.
    #[serde(default)]
    pub limited: bool,
    /// What it is used for.
    #[serde(flatten)]
    pub usage: DirectoryUse,
}

impl DirectoryRecord {
    /// Whether more than one volume uses it.
    pub fn is_shared(&self) -> bool {
        matches!(&self.usage, DirectoryUse::Volume { references, .. } if references.len() > 1)
    }
}

/// A kind of record that is kept in a [`super::store::Store`].
pub trait Record: Clone + PartialEq + Serialize + DeserializeOwned {
    /// The directory of its store, in `.wharf`.
    const STORE: &'static str;
    /// What identifies the object; its hash is the record's directory.
    fn key(&self) -> &str;
}

impl Record for VolumeRecord {
    const STORE: &'static str = "volumes";

    fn key(&self) -> &str {
        &self.handle
    }
}

impl Record for NameRecord {
    const STORE: &'static str = "names";

    fn key(&self) -> &str {
        &self.name
    }
}

impl Record for DirectoryRecord {
    const STORE: &'static str = "directories";

    fn key(&self) -> &str {
        self.path.as_str()
    }
}

/// The content of a record file. A record without a body is a tombstone: the object was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<T> {
    /// [`VERSION`].
    pub version: u32,
    /// A random ID of this write: whether an uncertain write took effect is decided by reading it again.
    pub write: String,
    /// The object's key, also in a tombstone.
    pub key: String,
    /// The record.
    pub record: Option<T>,
}

/// Why a record could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Written by a newer release.
    #[error(
        "{file} has version {version}, but this release reads versions up to {VERSION}: run the Wharf release that wrote it, or a newer one"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its version.
        version: u32,
    },
    /// Not a record.
    #[error("{file} is damaged: {reason}; {REPAIR}")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// Parses the record file `file` of the object `key`.
pub fn parse<T: Record>(file: &str, key: &str, bytes: &[u8]) -> Result<Envelope<T>, RecordError> {
    let damaged = |reason: String| RecordError::Damaged { file: file.to_owned(), reason };
    let VersionOnly { version } =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    match version {
        0 => return Err(damaged("version 0 was never written".into())),
        1..=VERSION => {}
        version => return Err(RecordError::Newer { file: file.to_owned(), version }),
    }
    let envelope: Envelope<T> = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    let own = envelope.record.as_ref().is_none_or(|record| record.key() == key);
    if envelope.key != key || !own {
        return Err(damaged(format!("it is the record of {:?}", envelope.key)));
    }
    Ok(envelope)
}

/// Serializes a record as JSON that an operator can read.
pub fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    // Serializing plain structs with string keys cannot fail.
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    debug_assert!(!bytes.is_empty());
    bytes.push(b'\n');
    bytes
}

/// The name of an object's directory in its store: keys can have any length and any characters.
pub fn key_hash(key: &str) -> String {
    base16ct::lower::encode_string(&Sha256::digest(key.as_bytes()))
}
