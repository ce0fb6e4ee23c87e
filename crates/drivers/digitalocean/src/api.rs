//! The API's things, as far as the driver reads or writes them.
//!
//! Promise: an unknown field or word breaks nothing; `null` where a list or text belongs is an empty one, as
//! the API itself and its other clients write it.

use serde::{Deserialize, Deserializer, Serialize};

/// The account behind the token.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Account {
    /// How many volumes it may have in all regions together; 0 is no limit.
    #[serde(default)]
    pub volume_limit: u64,
    /// `active`, `warning` or `locked`.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub status: String,
    /// Why, if it is not active.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub status_message: String,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Volume {
    /// A UUID: the CSI volume id.
    pub id: String,
    /// Unique in its region; the device on the droplet is named after it.
    pub name: String,
    /// Where it is.
    pub region: Region,
    /// Where it is attached: none or one.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub droplet_ids: Vec<u64>,
    /// Its size in GiB, whatever the API calls them.
    pub size_gigabytes: u64,
    /// Free text.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub description: String,
    /// RFC 3339.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub created_at: String,
    /// What the API formatted it with; empty if it did not.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub filesystem_type: String,
    /// Its tags.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub tags: Vec<String>,
}

/// A region; the rest of what the API tells of it is not read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Region {
    /// `nyc3`, for one.
    pub slug: String,
}

/// A volume's snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Snapshot {
    /// A UUID: the CSI snapshot id.
    pub id: String,
    /// As it was asked for.
    pub name: String,
    /// Slugs of the regions where it is.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub regions: Vec<String>,
    /// RFC 3339.
    pub created_at: String,
    /// The volume it was cut from, which may be gone.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub resource_id: String,
    /// `volume`; droplets have snapshots too.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub resource_type: String,
    /// GiB that a volume made from it has at the least.
    pub min_disk_size: u64,
    /// Its tags.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub tags: Vec<String>,
}

/// A droplet: the node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Droplet {
    /// The CSI node id, in decimal.
    pub id: u64,
    /// Its host name as a rule.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub name: String,
    /// `new`, `active`, `off` or `archive`.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub status: String,
    /// Where it is.
    pub region: Region,
    /// What is attached to it.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub volume_ids: Vec<String>,
}

/// Something that the API does in its own time.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Action {
    /// Its id.
    pub id: u64,
    /// How far it is.
    pub status: ActionStatus,
    /// `attach_volume`, `detach_volume`, `resize_volume`.
    #[serde(rename = "type", default, deserialize_with = "null_is_empty")]
    pub kind: String,
}

/// How far an action is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionStatus {
    /// Not ended.
    InProgress,
    /// Done.
    Completed,
    /// Failed for good; the API does not say why.
    Errored,
    /// A word we do not know: neither done nor failed.
    #[serde(other)]
    Unknown,
}

/// A volume to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NewVolume {
    /// Lower case letters, digits and `-`, begins with a letter, at most 64, unique in the region.
    pub name: String,
    /// A slug.
    pub region: String,
    /// 1 to 16384 GiB. From a snapshot the volume begins with the snapshot's size whatever is said here.
    pub size_gigabytes: u64,
    /// Free text.
    pub description: String,
    /// What to restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Tags; the API makes those that do not exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// A snapshot to be cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NewSnapshot {
    /// Of which volume.
    pub volume_id: String,
    /// Its name.
    pub name: String,
    /// Free text.
    pub description: String,
    /// Tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// What can be done to a volume in the API's own time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum VolumeAction {
    /// Attach it to this droplet.
    Attach {
        /// Which.
        droplet_id: u64,
    },
    /// Detach it from this droplet.
    Detach {
        /// Which.
        droplet_id: u64,
    },
    /// Grow it.
    Resize {
        /// GiB, more than it has.
        size_gigabytes: u64,
        /// Its region's slug.
        region: String,
    },
}

fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_unknown_break_nothing() {
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
    fn bodies_as_the_api_wants_them() {
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
        let wanted =
            NewVolume { name: "n".into(), region: "r".into(), size_gigabytes: 1, ..NewVolume::default() };
        assert_eq!(
            serde_json::to_string(&wanted).unwrap(),
            r#"{"name":"n","region":"r","size_gigabytes":1,"description":""}"#
        );
    }
}
