//! Inputs of the snapshotter's rules for one VolumeSnapshotContent or VolumeGroupSnapshotContent: the object, its
//! class, which node owns it, and the results of earlier attempts. Plain data from the stores and from
//! [`ContentState`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_model::names::VolumeNaming;
use wharf_model::snapshot::names;
use wharf_model::snapshot::{DeletionPolicy, SnapshotRef, VolumeSnapshotError};
use wharf_model::{Meta, SecretRef, VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::ownership::Ownership;
use super::state::{Action, ContentState};
use crate::driver::Capabilities;

/// Kind of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ContentKind {
    /// VolumeSnapshotContent.
    Snapshot,
    /// VolumeGroupSnapshotContent.
    Group,
}

/// Annotations, finalizer and event texts that differ between the two kinds of content.
pub(super) struct KindConstants {
    /// Annotation: CreateSnapshot may have been called.
    pub(super) being_created: &'static str,
    /// Annotation: the VolumeSnapshot of this content is being deleted.
    pub(super) being_deleted: &'static str,
    /// Our finalizer.
    pub(super) finalizer: &'static str,
    /// Annotation: name of the secret for creating and deleting.
    pub(super) secret_name: &'static str,
    /// Annotation: namespace of that secret.
    pub(super) secret_namespace: &'static str,
    /// Noun for messages.
    pub(super) noun: &'static str,
    /// Resource name of the class, for messages.
    pub(super) class_resource: &'static str,
    /// Event reason and message prefix when the first attempt failed.
    creation_failed: (&'static str, &'static str),
    /// Event reason and message prefix when a later attempt failed.
    check_failed: (&'static str, &'static str),
    /// Event reason and message prefix when the deletion failed.
    delete_failed: (&'static str, &'static str),
}

static SNAPSHOT_CONSTANTS: KindConstants = KindConstants {
    being_created: names::BEING_CREATED,
    being_deleted: names::BEING_DELETED,
    finalizer: names::CONTENT_PROTECTION,
    secret_name: names::DELETION_SECRET_NAME,
    secret_namespace: names::DELETION_SECRET_NAMESPACE,
    noun: "snapshot",
    class_resource: "volumesnapshotclass.snapshot.storage.k8s.io",
    creation_failed: ("SnapshotCreationFailed", "Failed to create snapshot"),
    check_failed: ("SnapshotContentCheckandUpdateFailed", "Failed to check and update snapshot content"),
    delete_failed: ("SnapshotDeleteError", "Failed to delete snapshot"),
};

static GROUP_CONSTANTS: KindConstants = KindConstants {
    being_created: names::GROUP_BEING_CREATED,
    being_deleted: names::GROUP_BEING_DELETED,
    finalizer: names::GROUP_CONTENT_PROTECTION,
    secret_name: names::GROUP_DELETION_SECRET_NAME,
    secret_namespace: names::GROUP_DELETION_SECRET_NAMESPACE,
    noun: "group snapshot",
    class_resource: "volumegroupsnapshotclass.groupsnapshot.storage.k8s.io",
    creation_failed: ("GroupSnapshotCreationFailed", "Failed to create group snapshot"),
    check_failed: (
        "GroupSnapshotContentCheckandUpdateFailed",
        "Failed to check and update group snapshot content",
    ),
    delete_failed: ("GroupSnapshotDeleteError", "Failed to delete group snapshot"),
};

impl KindConstants {
    /// Event reason and message prefix of a failed attempt.
    pub(super) fn failed(&self, action: Action) -> (&'static str, &'static str) {
        match action {
            Action::Create => self.creation_failed,
            Action::Check => self.check_failed,
            Action::Delete => self.delete_failed,
        }
    }
}

impl ContentKind {
    /// The constants of this kind.
    pub(super) fn constants(self) -> &'static KindConstants {
        match self {
            Self::Snapshot => &SNAPSHOT_CONSTANTS,
            Self::Group => &GROUP_CONSTANTS,
        }
    }
}

/// A VolumeSnapshotContent or VolumeGroupSnapshotContent.
#[derive(Debug, Clone)]
pub(super) enum Object {
    /// VolumeSnapshotContent.
    Snapshot(Arc<VolumeSnapshotContent>),
    /// VolumeGroupSnapshotContent.
    Group(Arc<VolumeGroupSnapshotContent>),
}

/// The source of a content's snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// To be created from these volumes.
    Volumes(Vec<&'a str>),
    /// Exists in the driver under this handle, with these members.
    Existing { handle: &'a str, members: &'a [String] },
    /// Created and deleted together with its group, never on its own.
    GroupMember,
    /// The spec names no source.
    Unspecified,
}

impl Object {
    pub(super) fn kind(&self) -> ContentKind {
        match self {
            Self::Snapshot(_) => ContentKind::Snapshot,
            Self::Group(_) => ContentKind::Group,
        }
    }

    pub(super) fn constants(&self) -> &'static KindConstants {
        self.kind().constants()
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

    /// Whether the snapshot is deleted together with the content.
    pub(super) fn policy(&self) -> &DeletionPolicy {
        match self {
            Self::Snapshot(content) => &content.spec.deletion_policy,
            Self::Group(content) => &content.spec.deletion_policy,
        }
    }

    /// Reference to the VolumeSnapshot or VolumeGroupSnapshot.
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
                    (_, Some(handle)) => Source::Existing { handle, members: &[] },
                    (Some(_), None) if content.metadata.annotation(names::GROUP_HANDLE).is_some() => {
                        Source::GroupMember
                    }
                    (Some(volume), None) => Source::Volumes(vec![volume]),
                    (None, None) => Source::Unspecified,
                }
            }
            Self::Group(content) => {
                let source = &content.spec.source;
                match (&source.volume_handles, &source.group_snapshot_handles) {
                    (_, Some(there)) => Source::Existing {
                        handle: &there.volume_group_snapshot_handle,
                        members: &there.volume_snapshot_handles,
                    },
                    (Some(volumes), None) if !volumes.is_empty() => {
                        Source::Volumes(volumes.iter().map(String::as_str).collect())
                    }
                    (_, None) => Source::Unspecified,
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

    /// The snapshot handle in the status.
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

    /// The handle of the group in the status of a member.
    pub(super) fn group_handle(&self) -> Option<&str> {
        match self {
            Self::Snapshot(content) => content.status.as_ref()?.volume_group_snapshot_handle.as_deref(),
            Self::Group(_) => None,
        }
    }

    /// The snapshot handles of a group's members.
    pub(super) fn members(&self) -> Vec<String> {
        let Self::Group(content) = self else { return Vec::new() };
        let listed = content.status.as_ref().and_then(|status| status.volume_snapshot_info_list.as_ref());
        match listed.filter(|list| !list.is_empty()) {
            Some(list) => list.iter().map(|member| member.snapshot_handle.clone()).collect(),
            None => match self.source() {
                Source::Existing { members, .. } => members.to_vec(),
                Source::Volumes(_) | Source::GroupMember | Source::Unspecified => Vec::new(),
            },
        }
    }

    /// The error in the status.
    pub(super) fn error(&self) -> Option<&VolumeSnapshotError> {
        match self {
            Self::Snapshot(content) => content.status.as_ref()?.error.as_ref(),
            Self::Group(content) => content.status.as_ref()?.error.as_ref(),
        }
    }

    /// Whether the driver may be creating the snapshot.
    pub(super) fn is_being_created(&self) -> bool {
        self.meta().annotation(self.constants().being_created).is_some()
    }

    /// Whether both this content and its VolumeSnapshot are being deleted.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.meta().is_deleting() && self.meta().annotation(self.constants().being_deleted).is_some()
    }

    /// sidecars.md 1.5 "Delete": whether the snapshot may be deleted now.
    pub(super) fn should_delete(&self) -> bool {
        let unbound = matches!(self.source(), Source::Existing { .. }) && self.reference().uid.is_empty();
        self.meta().is_deleting() && (unbound || (!self.is_being_created() && self.is_being_deleted()))
    }

    /// Whether nothing is left to do.
    pub(super) fn is_settled(&self) -> bool {
        self.is_ready() && !self.is_being_created() && !self.meta().is_deleting()
    }

    /// The secret for creating and deleting, from the controller's annotations; `Err` if either value is empty.
    pub(super) fn secret(&self) -> Result<Option<SecretRef>, IncompleteSecretRef> {
        let annotation = |key| self.meta().annotation(key);
        let constants = self.constants();
        match (annotation(constants.secret_name), annotation(constants.secret_namespace)) {
            (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
                Ok(Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() }))
            }
            (Some(_), Some(_)) => {
                Err(IncompleteSecretRef { noun: constants.noun, content: self.meta().name.clone() })
            }
            (None, _) | (_, None) => Ok(None),
        }
    }
}

/// The annotations name a secret only partly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot retrieve secrets for {noun} content {content:?}, err: secret name or namespace not specified"
)]
pub(super) struct IncompleteSecretRef {
    noun: &'static str,
    content: String,
}

/// The class of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class<'a> {
    /// The content names no class.
    None,
    /// The class list is not complete yet.
    NotListed,
    /// The content names a class that does not exist.
    NotFound(&'a str),
    /// The class exists.
    Found { driver: &'a str, parameters: &'a BTreeMap<String, String> },
}

/// Settings that apply to every content of the driver.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// Driver name.
    pub(super) driver: String,
    /// Driver capabilities.
    pub(super) capabilities: Capabilities,
    /// Naming scheme of snapshots.
    pub(super) naming: VolumeNaming,
    /// Naming scheme of group snapshots.
    pub(super) group_naming: VolumeNaming,
    /// Pass the names of the VolumeSnapshot and its content to CreateSnapshot.
    pub(super) extra_create_metadata: bool,
    /// Longest interval between two polls for readiness.
    pub(super) poll_interval_max: Duration,
    /// With one sidecar per node: only contents of this node are ours.
    pub(super) node: Option<String>,
}

/// Everything [`decide`](super::decide::decide) needs to know about one content.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// Settings for all contents.
    pub(super) rules: &'a Rules,
    /// The content.
    pub(super) object: &'a Object,
    /// Its class.
    pub(super) class: Class<'a>,
    /// Which node owns it.
    pub(super) ownership: Ownership,
    /// Results of earlier attempts.
    pub(super) state: &'a ContentState,
    /// The API server just returned this content or accepted a write to it.
    pub(super) confirmed: bool,
}

impl View<'_> {
    /// Whether the content belongs to our driver. The class is ignored during deletion, since it may have been
    /// re-created for another driver.
    pub(super) fn is_of_driver(&self) -> bool {
        let ends = self.object.is_being_deleted() || self.object.should_delete();
        let class = match self.class {
            Class::Found { driver, .. } => ends || driver == self.rules.driver,
            Class::None | Class::NotListed | Class::NotFound(_) => true,
        };
        class && self.object.driver() == self.rules.driver && self.object.source() != Source::Unspecified
    }
}
