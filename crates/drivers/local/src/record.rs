//! The durable records of a pool. A record is accepted only if it is complete, has a known version and belongs to the
//! object in whose directory it is. Anything else is an error that names the file; nothing is guessed or skipped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wharf_driver::backend::{FormatState, VolumeContentSource};
use wharf_linux::FsType;

/// The record version that this release writes, and the newest that it reads.
pub(crate) const VERSION: u32 = 1;

/// The pool itself: `pool.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PoolRecord {
    pub version: u32,
    /// Assigned when the pool is created: distinguishes this pool from another one mounted at the same path.
    pub uuid: String,
    pub created: Timestamp,
}

/// When a volume's blocks are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Provisioning {
    /// When they are first written.
    #[default]
    Thin,
    /// All at creation. (Blocks shared with a snapshot are allocated again when they are written.)
    Thick,
}

/// An access type that was requested when the volume was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum Access {
    Block,
    Mount { fs: FsType },
}

/// The state of an image. `creating` is the intent: after a crash it is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub(crate) enum Phase {
    /// Undone at startup. Becomes `copying` or `ready`.
    Creating,
    /// The first `done` of `total` bytes are copied from the source and durable; resumed at startup. Becomes `ready`.
    Copying { done: u64, total: u64 },
    /// Complete and durable.
    Ready,
}

/// The node to which ControllerPublishVolume attached a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Attachment {
    pub node: String,
    pub read_only: bool,
}

/// A volume: `volumes/<id>/record.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct VolumeRecord {
    pub version: u32,
    pub id: String,
    pub name: String,
    pub created: Timestamp,
    pub state: Phase,
    pub size: u64,
    /// The size that was requested, if it was rounded up to `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<u64>,
    /// An expansion in progress; finished or undone at startup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growing_to: Option<u64>,
    pub provisioning: Provisioning,
    pub access: Vec<Access>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mkfs_options: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<VolumeContentSource>,
    pub format: FormatState,
    /// The inode of the image: a different file with the same name is not this volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_inode: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attachment>,
    /// The file system is being grown while it is not mounted: damage found now comes from that, and is repaired.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub growing_offline: bool,
}

/// A snapshot: `snapshots/<id>/record.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SnapshotRecord {
    pub version: u32,
    pub id: String,
    pub name: String,
    pub created: Timestamp,
    pub state: Phase,
    /// The source volume, which may have been deleted since.
    pub source: String,
    pub size: u64,
    /// The size that was requested for the volume, if it was rounded up to `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<u64>,
    /// The format state of the volume at the time of the snapshot.
    pub format: FormatState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_inode: Option<u64>,
    /// The freeze expired before the copy was complete: it has what a disk has after a power failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub crash_consistent: bool,
    /// Whether the volume was created from a snapshot or another volume, so that other volumes may share blocks of this
    /// snapshot. `None` if the record is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_copy: Option<bool>,
}

impl SnapshotRecord {
    /// Whether the volume of this snapshot was a copy and is gone, so that only this snapshot accounts for the blocks that it
    /// shares with other volumes. `source` is the volume that now has the id of the
    /// snapshot's volume; if it was created after the snapshot, it is another volume of the same name.
    pub(crate) fn is_left_by_copy(&self, source: Option<&VolumeRecord>) -> bool {
        self.of_copy.unwrap_or(true) && source.is_none_or(|source| source.created > self.created)
    }

    /// Sets what an older record lacks, while the volume exists.
    pub(crate) fn complete(&mut self, source: Option<&VolumeRecord>) {
        if let Some(source) = source.filter(|source| source.created <= self.created) {
            self.of_copy.get_or_insert(source.source.is_some());
        }
    }
}

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum GroupState {
    /// Undone at startup, with all members.
    Creating,
    /// All members are taken.
    Ready,
    /// Finished at startup. Expressed by the record's file name, not its content; see [`crate::store::deleting_of`].
    #[serde(skip)]
    Deleting,
}

/// A group snapshot: `groups/<id>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct GroupRecord {
    pub version: u32,
    pub id: String,
    pub name: String,
    pub created: Timestamp,
    pub state: GroupState,
    pub members: Vec<Member>,
}

/// One volume of a group and the snapshot taken of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Member {
    pub source: String,
    pub snapshot: String,
}

/// File systems that are about to be frozen: `freeze.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FreezeRecord {
    pub version: u32,
    pub mount_points: Vec<PathBuf>,
}

/// A timestamp, serialized as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp(jiff::Timestamp);

impl Timestamp {
    pub(crate) fn now() -> Self {
        Self(jiff::Timestamp::now())
    }
}

impl From<Timestamp> for SystemTime {
    fn from(moment: Timestamp) -> Self {
        moment.0.into()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        jiff::Timestamp::from_str(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(
        "{} has version {version}, but this release reads versions up to {VERSION}: run the Wharf release that wrote it, or a newer one",
        file.display()
    )]
    Newer { file: PathBuf, version: u32 },
    #[error("{} is damaged: {reason}; restore it from a backup", file.display())]
    Damaged { file: PathBuf, reason: String },
}

/// A record that names the object it belongs to.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// The object's id, which must match the path; `None` for records without an id.
    fn id(&self) -> Option<&str>;
}

impl Record for PoolRecord {
    fn id(&self) -> Option<&str> {
        None
    }
}

impl Record for FreezeRecord {
    fn id(&self) -> Option<&str> {
        None
    }
}

impl Record for VolumeRecord {
    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }
}

impl Record for SnapshotRecord {
    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }
}

impl Record for GroupRecord {
    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Parses the record in `file`, which belongs to the object `id`.
pub(crate) fn parse<T: Record>(file: &Path, id: Option<&str>, bytes: &[u8]) -> Result<T, RecordError> {
    let damaged = |reason: String| RecordError::Damaged { file: file.to_owned(), reason };
    let Version { version } = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    match version {
        0 => return Err(damaged("version 0 was never written".into())),
        1..=VERSION => {}
        version => return Err(RecordError::Newer { file: file.to_owned(), version }),
    }
    let record: T = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if record.id() != id {
        return Err(damaged(format!("it is the record of {}", record.id().unwrap_or("something else"))));
    }
    Ok(record)
}

/// Serializes a record as JSON that an operator can read.
pub(crate) fn to_bytes<T: Record>(record: &T) -> Vec<u8> {
    // Serializing plain structs with string keys cannot fail.
    let mut bytes = serde_json::to_vec_pretty(record).unwrap_or_default();
    debug_assert!(!bytes.is_empty());
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> VolumeRecord {
        VolumeRecord {
            version: VERSION,
            id: "vol-1".into(),
            name: "pvc-1".into(),
            created: Timestamp::now(),
            state: Phase::Copying { done: 1, total: 2 },
            size: 4096,
            requested: Some(1),
            growing_to: Some(8192),
            provisioning: Provisioning::Thick,
            access: vec![Access::Block, Access::Mount { fs: FsType::Xfs }],
            mkfs_options: vec!["-K".into()],
            source: Some(VolumeContentSource::Snapshot("snap-1".into())),
            format: FormatState::Copied { fs: FsType::Xfs, uuid: "u".into() },
            image_inode: Some(7),
            attached: Some(Attachment { node: "n".into(), read_only: true }),
            growing_offline: true,
        }
    }

    #[test]
    fn records_round_trip() {
        let record = volume();
        let bytes = to_bytes(&record);
        let read: VolumeRecord = parse(Path::new("r"), Some("vol-1"), &bytes).unwrap();
        assert_eq!(read, record);
        let group = GroupRecord {
            version: VERSION,
            id: "group-1".into(),
            name: "g".into(),
            created: Timestamp::now(),
            state: GroupState::Ready,
            members: vec![Member { source: "vol-1".into(), snapshot: "snap-1".into() }],
        };
        let read: GroupRecord = parse(Path::new("r"), Some("group-1"), &to_bytes(&group)).unwrap();
        assert_eq!(read, group);
    }

    #[test]
    fn invalid_record_is_refused_and_error_names_the_file() {
        let good = String::from_utf8(to_bytes(&volume())).unwrap();
        let cases = [
            ("newer", good.replace("\"version\": 1", "\"version\": 2"), "has version 2"),
            // A newer record may have any fields.
            ("newer, other shape", r#"{"version": 9, "what": []}"#.into(), "has version 9"),
            ("version 0", good.replace("\"version\": 1", "\"version\": 0"), "damaged"),
            ("no version", "{}".into(), "damaged"),
            ("empty", String::new(), "damaged"),
            ("torn", good[..good.len() / 2].into(), "damaged"),
            ("unknown field", good.replacen('{', "{\"knob\": 1,", 1), "damaged"),
            ("another's", good.replace("vol-1", "vol-2"), "record of vol-2"),
            ("negative size", good.replace("\"size\": 4096", "\"size\": -1"), "damaged"),
            ("unknown state", good.replace("copying", "pondering"), "damaged"),
        ];
        for (name, text, expected) in cases {
            let error =
                parse::<VolumeRecord>(Path::new("volumes/vol-1/record.json"), Some("vol-1"), text.as_bytes())
                    .unwrap_err()
                    .to_string();
            assert!(
                error.contains(expected) && error.contains("volumes/vol-1/record.json"),
                "{name}: {error}"
            );
        }
    }
}
