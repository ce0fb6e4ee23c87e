//! What the snapshotter sees of one content, of a snapshot or of a group of them: the object, its class, whose it is,
//! and what was tried before. Plain data, taken from the stores and from [`Memory`].

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_model::names::VolumeNaming;
use wharf_model::snapshot::names;
use wharf_model::snapshot::{DeletionPolicy, SnapshotFault, SnapshotRef};
use wharf_model::{Meta, SecretRef, VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::groups::Place;
use super::memory::{Doing, Memory};
use crate::driver::Capabilities;

/// Of what a content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Which {
    /// A snapshot: VolumeSnapshotContent.
    Snapshot,
    /// A group of them: VolumeGroupSnapshotContent.
    Group,
}

/// The words that a kind of content has for the same things.
pub(super) struct Words {
    /// On a content: the driver was asked to make it.
    pub(super) being_created: &'static str,
    /// On a content: its snapshot goes.
    pub(super) being_deleted: &'static str,
    /// Our finalizer.
    pub(super) finalizer: &'static str,
    /// On a content: the secret for making and deleting it.
    pub(super) secret_name: &'static str,
    /// On a content: that secret's namespace.
    pub(super) secret_namespace: &'static str,
    /// How it is called in sentences.
    pub(super) noun: &'static str,
    /// How its class is called in sentences.
    pub(super) class: &'static str,
    /// Reason and first words of a first attempt that failed.
    creation_failed: (&'static str, &'static str),
    /// The same of a later attempt.
    check_failed: (&'static str, &'static str),
    /// The same of a deletion.
    delete_failed: (&'static str, &'static str),
}

static SNAPSHOT: Words = Words {
    being_created: names::BEING_CREATED,
    being_deleted: names::BEING_DELETED,
    finalizer: names::CONTENT_PROTECTION,
    secret_name: names::DELETION_SECRET_NAME,
    secret_namespace: names::DELETION_SECRET_NAMESPACE,
    noun: "snapshot",
    class: "volumesnapshotclass.snapshot.storage.k8s.io",
    creation_failed: ("SnapshotCreationFailed", "Failed to create snapshot"),
    check_failed: ("SnapshotContentCheckandUpdateFailed", "Failed to check and update snapshot content"),
    delete_failed: ("SnapshotDeleteError", "Failed to delete snapshot"),
};

static GROUP: Words = Words {
    being_created: names::GROUP_BEING_CREATED,
    being_deleted: names::GROUP_BEING_DELETED,
    finalizer: names::GROUP_CONTENT_PROTECTION,
    secret_name: names::GROUP_DELETION_SECRET_NAME,
    secret_namespace: names::GROUP_DELETION_SECRET_NAMESPACE,
    noun: "group snapshot",
    class: "volumegroupsnapshotclass.groupsnapshot.storage.k8s.io",
    creation_failed: ("GroupSnapshotCreationFailed", "Failed to create group snapshot"),
    check_failed: (
        "GroupSnapshotContentCheckandUpdateFailed",
        "Failed to check and update group snapshot content",
    ),
    delete_failed: ("GroupSnapshotDeleteError", "Failed to delete group snapshot"),
};

impl Words {
    /// Reason and first words of an attempt that failed.
    pub(super) fn failed(&self, doing: Doing) -> (&'static str, &'static str) {
        match doing {
            Doing::Create => self.creation_failed,
            Doing::Check => self.check_failed,
            Doing::Delete => self.delete_failed,
        }
    }
}

impl Which {
    /// Its words.
    pub(super) fn words(self) -> &'static Words {
        match self {
            Self::Snapshot => &SNAPSHOT,
            Self::Group => &GROUP,
        }
    }
}

/// A content.
#[derive(Debug, Clone)]
pub(super) enum Object {
    /// Of a snapshot.
    Snapshot(Arc<VolumeSnapshotContent>),
    /// Of a group.
    Group(Arc<VolumeGroupSnapshotContent>),
}

/// Where its snapshot comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// To be taken of these volumes.
    Take(Vec<&'a str>),
    /// The driver has it, under this name, and these are its members.
    There { handle: &'a str, members: &'a [String] },
    /// It belongs to a group: nobody asks the driver to make it, or to delete it.
    InGroup,
    /// It does not say.
    Nowhere,
}

impl Object {
    pub(super) fn which(&self) -> Which {
        match self {
            Self::Snapshot(_) => Which::Snapshot,
            Self::Group(_) => Which::Group,
        }
    }

    pub(super) fn words(&self) -> &'static Words {
        self.which().words()
    }

    pub(super) fn meta(&self) -> &Meta {
        match self {
            Self::Snapshot(content) => &content.metadata,
            Self::Group(content) => &content.metadata,
        }
    }

    pub(super) fn driver(&self) -> &str {
        match self {
            Self::Snapshot(content) => &content.spec.driver,
            Self::Group(content) => &content.spec.driver,
        }
    }

    /// What becomes of the snapshot when the content goes.
    pub(super) fn policy(&self) -> &DeletionPolicy {
        match self {
            Self::Snapshot(content) => &content.spec.deletion_policy,
            Self::Group(content) => &content.spec.deletion_policy,
        }
    }

    /// The snapshot it is for.
    pub(super) fn reference(&self) -> &SnapshotRef {
        match self {
            Self::Snapshot(content) => &content.spec.volume_snapshot_ref,
            Self::Group(content) => &content.spec.volume_group_snapshot_ref,
        }
    }

    pub(super) fn class(&self) -> Option<&str> {
        match self {
            Self::Snapshot(content) => content.spec.volume_snapshot_class_name.as_deref(),
            Self::Group(content) => content.spec.volume_group_snapshot_class_name.as_deref(),
        }
    }

    pub(super) fn source(&self) -> Source<'_> {
        match self {
            Self::Snapshot(content) => {
                let source = &content.spec.source;
                match (&source.volume_handle, &source.snapshot_handle) {
                    (_, Some(handle)) => Source::There { handle, members: &[] },
                    (Some(_), None) if content.metadata.annotation(names::GROUP_HANDLE).is_some() => {
                        Source::InGroup
                    }
                    (Some(volume), None) => Source::Take(vec![volume]),
                    (None, None) => Source::Nowhere,
                }
            }
            Self::Group(content) => {
                let source = &content.spec.source;
                match (&source.volume_handles, &source.group_snapshot_handles) {
                    (_, Some(there)) => Source::There {
                        handle: &there.volume_group_snapshot_handle,
                        members: &there.volume_snapshot_handles,
                    },
                    (Some(volumes), None) if !volumes.is_empty() => {
                        Source::Take(volumes.iter().map(String::as_str).collect())
                    }
                    (_, None) => Source::Nowhere,
                }
            }
        }
    }

    pub(super) fn has_status(&self) -> bool {
        match self {
            Self::Snapshot(content) => content.status.is_some(),
            Self::Group(content) => content.status.is_some(),
        }
    }

    /// The driver's name for it, as the status has it.
    pub(super) fn handle(&self) -> Option<&str> {
        match self {
            Self::Snapshot(content) => content.status.as_ref()?.snapshot_handle.as_deref(),
            Self::Group(content) => content.status.as_ref()?.volume_group_snapshot_handle.as_deref(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        let ready = match self {
            Self::Snapshot(content) => content.status.as_ref().and_then(|status| status.ready_to_use),
            Self::Group(content) => content.status.as_ref().and_then(|status| status.ready_to_use),
        };
        ready == Some(true)
    }

    /// The group that the status says it belongs to.
    pub(super) fn group_handle(&self) -> Option<&str> {
        match self {
            Self::Snapshot(content) => content.status.as_ref()?.volume_group_snapshot_handle.as_deref(),
            Self::Group(_) => None,
        }
    }

    /// The members of a group, by the driver's names.
    pub(super) fn members(&self) -> Vec<String> {
        let Self::Group(content) = self else { return Vec::new() };
        let listed = content.status.as_ref().and_then(|status| status.volume_snapshot_info_list.as_ref());
        match listed.filter(|list| !list.is_empty()) {
            Some(list) => list.iter().map(|member| member.snapshot_handle.clone()).collect(),
            None => match self.source() {
                Source::There { members, .. } => members.to_vec(),
                Source::Take(_) | Source::InGroup | Source::Nowhere => Vec::new(),
            },
        }
    }

    /// What the status says went wrong.
    pub(super) fn fault(&self) -> Option<&SnapshotFault> {
        match self {
            Self::Snapshot(content) => content.status.as_ref()?.error.as_ref(),
            Self::Group(content) => content.status.as_ref()?.error.as_ref(),
        }
    }

    /// Whether the driver may be at making it.
    pub(super) fn is_marked(&self) -> bool {
        self.meta().annotation(self.words().being_created).is_some()
    }

    /// Whether its snapshot goes, and it with it.
    pub(super) fn is_going(&self) -> bool {
        self.meta().is_deleting() && self.meta().annotation(self.words().being_deleted).is_some()
    }

    /// sidecars.md 1.5 "Delete": whether it is time to delete.
    pub(super) fn is_to_be_deleted(&self) -> bool {
        let unbound = matches!(self.source(), Source::There { .. }) && self.reference().uid.is_empty();
        self.meta().is_deleting() && (unbound || (!self.is_marked() && self.is_going()))
    }

    /// Whether there is anything left to do for it.
    pub(super) fn is_settled(&self) -> bool {
        self.is_ready() && !self.is_marked() && !self.meta().is_deleting()
    }

    /// The secret for making and deleting it, as the controller noted it; `Err` if only half of it is there.
    pub(super) fn secret(&self) -> Result<Option<SecretRef>, NoSecret> {
        let noted = |key| self.meta().annotation(key);
        let words = self.words();
        match (noted(words.secret_name), noted(words.secret_namespace)) {
            (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
                Ok(Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() }))
            }
            (Some(_), Some(_)) => Err(NoSecret { noun: words.noun, content: self.meta().name.clone() }),
            (None, _) | (_, None) => Ok(None),
        }
    }
}

/// An annotation that names no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot retrieve secrets for {noun} content {content:?}, err: secret name or namespace not specified"
)]
pub(super) struct NoSecret {
    noun: &'static str,
    content: String,
}

/// A content's class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class<'a> {
    /// It names none.
    None,
    /// It names this one, and we have not seen all of them yet.
    Unknown,
    /// It names this one, which is not there.
    Gone(&'a str),
    /// Here it is.
    Found { driver: &'a str, parameters: &'a BTreeMap<String, String> },
}

/// What holds for every content of the driver.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// The driver's name.
    pub(super) driver: String,
    /// What the driver can do.
    pub(super) can: Capabilities,
    /// How snapshots are named.
    pub(super) naming: VolumeNaming,
    /// How groups are named.
    pub(super) group_naming: VolumeNaming,
    /// Tell the driver the names of snapshot and content.
    pub(super) extra_create_metadata: bool,
    /// The node whose contents alone are ours.
    pub(super) node: Option<String>,
}

/// One content.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// What holds for all.
    pub(super) rules: &'a Rules,
    /// The content.
    pub(super) object: &'a Object,
    /// Its class.
    pub(super) class: Class<'a>,
    /// Whose it is.
    pub(super) place: Place,
    /// What was tried.
    pub(super) memory: &'a Memory,
    /// The server itself has just shown the content to us, or taken a write to it.
    pub(super) confirmed: bool,
}

impl View<'_> {
    /// Whether it is a content of our driver. Its class has no part in its end: it may be another driver's by now.
    pub(super) fn is_of_driver(&self) -> bool {
        let ends = self.object.is_going() || self.object.is_to_be_deleted();
        let class = match self.class {
            Class::Found { driver, .. } => ends || driver == self.rules.driver,
            Class::None | Class::Unknown | Class::Gone(_) => true,
        };
        class && self.object.driver() == self.rules.driver && self.object.source() != Source::Nowhere
    }
}
