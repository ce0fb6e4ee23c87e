//! The objects of the DigitalOcean API, reduced to the fields that the driver reads or writes.
//!
//! Unknown fields and values are accepted. `null` in place of a list or string is read as empty, as in other clients of
//! the API.

use serde::{Deserialize, Deserializer, Serialize};

/// The account that the API token belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Account {
    /// Maximum number of volumes in all regions together; 0 means no limit.
    #[serde(default)]
    pub volume_limit: u64,
    /// `active`, `warning` or `locked`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: String,
    /// The reason why the account is not active.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status_message: String,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Volume {
    /// A UUID: the CSI volume id.
    pub id: String,
    /// Unique in its region; the device on the droplet is named after it.
    pub name: String,
    /// The volume's region.
    pub region: Region,
    /// The droplet it is attached to: none or one.
    #[serde(default, deserialize_with = "null_as_default")]
    pub droplet_ids: Vec<u64>,
    /// The size in GiB, although the API calls it gigabytes.
    pub size_gigabytes: u64,
    /// Free text.
    #[serde(default, deserialize_with = "null_as_default")]
    pub description: String,
    /// RFC 3339.
    #[serde(default, deserialize_with = "null_as_default")]
    pub created_at: String,
    /// The file system that the API formatted it with; empty if it did not.
    #[serde(default, deserialize_with = "null_as_default")]
    pub filesystem_type: String,
    /// Its tags.
    #[serde(default, deserialize_with = "null_as_default")]
    pub tags: Vec<String>,
}

/// A region; only the slug is read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Region {
    /// For example `nyc3`.
    pub slug: String,
}

/// A volume's snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Snapshot {
    /// A UUID: the CSI snapshot id.
    pub id: String,
    /// The requested name.
    pub name: String,
    /// Slugs of its regions.
    #[serde(default, deserialize_with = "null_as_default")]
    pub regions: Vec<String>,
    /// RFC 3339.
    pub created_at: String,
    /// The source volume, which may have been deleted.
    #[serde(default, deserialize_with = "null_as_default")]
    pub resource_id: String,
    /// `volume`; droplets have snapshots too.
    #[serde(default, deserialize_with = "null_as_default")]
    pub resource_type: String,
    /// Minimum size in GiB of a volume created from it.
    pub min_disk_size: u64,
    /// Its tags.
    #[serde(default, deserialize_with = "null_as_default")]
    pub tags: Vec<String>,
}

/// A droplet: the node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Droplet {
    /// The CSI node id, in decimal.
    pub id: u64,
    /// Usually its host name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// `new`, `active`, `off` or `archive`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: String,
    /// The droplet's region.
    pub region: Region,
    /// Ids of its attached volumes.
    #[serde(default, deserialize_with = "null_as_default")]
    pub volume_ids: Vec<String>,
}

/// An asynchronous operation of the API.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Action {
    /// The id of the action.
    pub id: u64,
    /// The status of the action.
    pub status: ActionStatus,
    /// `attach_volume`, `detach_volume`, `resize_volume`.
    #[serde(rename = "type", default, deserialize_with = "null_as_default")]
    pub kind: String,
}

/// The status of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionStatus {
    /// Still running.
    InProgress,
    /// Succeeded.
    Completed,
    /// Failed permanently; the API gives no reason.
    Errored,
    /// An unknown status: the action has neither completed nor failed.
    #[serde(other)]
    Unknown,
}

/// A request to create a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NewVolume {
    /// At most 64 lowercase letters, digits and `-`, starting with a letter; unique in the region.
    pub name: String,
    /// The region's slug.
    pub region: String,
    /// 1 to 16384 GiB. A volume restored from a snapshot starts with the snapshot's size, regardless of this value.
    pub size_gigabytes: u64,
    /// Free text.
    pub description: String,
    /// The snapshot to restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Tags; the API creates those that do not exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// A request to create a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NewSnapshot {
    /// The source volume.
    pub volume_id: String,
    /// Its name.
    pub name: String,
    /// Free text.
    pub description: String,
    /// Tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// An asynchronous operation on a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum VolumeAction {
    /// Attach it to this droplet.
    Attach {
        /// The droplet.
        droplet_id: u64,
    },
    /// Detach it from this droplet.
    Detach {
        /// The droplet.
        droplet_id: u64,
    },
    /// Grow it.
    Resize {
        /// The new size in GiB, larger than the current one.
        size_gigabytes: u64,
        /// Its region's slug.
        region: String,
    },
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_unknown_fields_are_accepted() {
        let volume: Volume = serde_json::from_str(
            r#"{"id":"i","name":"n","region":{"slug":"nyc3","features":["x"]},"droplet_ids":null,
                "size_gigabytes":10,"description":null,"tags":null,"created_at":"2016-03-02T17:00:49Z","new":1}"#,
        )
        .unwrap();
        assert_eq!((volume.droplet_ids, volume.tags), (vec![], vec![]));
        let action: Action =
            serde_json::from_str(r#"{"id":1,"status":"paused","type":"attach_volume","resource_id":null}"#)
                .unwrap();
        assert_eq!(action.status, ActionStatus::Unknown);
        let errored: ActionStatus = serde_json::from_str(r#""errored""#).unwrap();
        assert_eq!(errored, ActionStatus::Errored);
        let running: ActionStatus = serde_json::from_str(r#""in-progress""#).unwrap();
        assert_eq!(running, ActionStatus::InProgress);
    }

    #[test]
    fn request_bodies_match_the_api() {
        for (action, body) in [
            (VolumeAction::Attach { droplet_id: 7 }, r#"{"type":"attach","droplet_id":7}"#),
            (VolumeAction::Detach { droplet_id: 7 }, r#"{"type":"detach","droplet_id":7}"#),
            (
                VolumeAction::Resize { size_gigabytes: 9, region: "nyc3".into() },
                r#"{"type":"resize","size_gigabytes":9,"region":"nyc3"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&action).unwrap(), body);
        }
        let new_volume =
            NewVolume { name: "n".into(), region: "r".into(), size_gigabytes: 1, ..NewVolume::default() };
        assert_eq!(
            serde_json::to_string(&new_volume).unwrap(),
            r#"{"name":"n","region":"r","size_gigabytes":1,"description":""}"#
        );
    }
}
