//! The steps of a snapshot until it is ready, and until it is deleted: whether the snapshot controller, the driver's
//! snapshotter or the user has to act.

use wharf_model::Kind as _;
use wharf_model::snapshot::{
    DeletionPolicy, VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotError, names,
};

use crate::claim;
use crate::explanation::{ReportedError, Step};
use crate::facts::{Facts, Lookup};

const CONTROLLER: &str = "the snapshot controller";
/// Finalizers that the snapshot controller removes.
const CONTROLLER_FINALIZERS: [&str; 3] =
    [names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION, names::IN_GROUP_PROTECTION];

/// The steps of the snapshot, up to the first that is not done.
pub(crate) fn steps(facts: &Facts) -> Vec<Step> {
    let snapshot = match &facts.snapshot {
        Lookup::Found(snapshot) => snapshot,
        Lookup::Absent => {
            return vec![Step::waits("snapshot", "does not exist", "you to create it")];
        }
        Lookup::Unknown => return vec![Step::unknown("snapshot", "could not be read")],
    };
    let name = format!("snapshot {}", snapshot.key());
    let status = snapshot.status.as_ref();
    let error = reported(status.and_then(|status| status.error.as_ref()), "status.error");
    let since = snapshot.metadata.creation_timestamp;
    if snapshot.metadata.is_deleting() {
        let step = deleting(&name, snapshot, error, facts);
        return vec![step.since(snapshot.metadata.deletion_timestamp)];
    }
    let bound = status.and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
    let mut steps = Vec::new();
    let Some(bound) = bound else {
        // The snapshot cannot be taken before its source exists.
        steps.extend(facts.claims.iter().flat_map(|source| claim::steps(source, facts)));
        if facts.snapshot_class == Some(false) {
            let waiting_for = "you to name a class, or mark one as the default for its driver";
            steps.push(Step::waits(&name, "no VolumeSnapshotClass exists for it", waiting_for).since(since));
        }
        let step = match &snapshot.spec.source.volume_snapshot_content_name {
            Some(requested) => requested_content(&name, requested, snapshot, facts),
            None => Step::waits(name, "has no VolumeSnapshotContent yet", CONTROLLER),
        };
        steps.push(step.since(since).with_error(error.or_else(|| facts.last_warning(snapshot, &[]))));
        return steps;
    };
    let ready = status.and_then(|status| status.ready_to_use).unwrap_or(false);
    let content = match &facts.content {
        Lookup::Absent => {
            let message = format!("VolumeSnapshotContent {bound} no longer exists");
            let waiting_for = "you to delete the snapshot, which has no data";
            return vec![Step::waits(name, message, waiting_for).with_error(error)];
        }
        _ if ready => return vec![Step::done(name, format!("ready to use, content {bound}"))],
        Lookup::Found(content) => content,
        Lookup::Unknown => {
            return vec![Step::unknown(name, format!("VolumeSnapshotContent {bound} could not be read"))];
        }
    };
    let content_status = content.status.as_ref();
    let taken = content_status.is_some_and(|status| status.snapshot_handle.is_some());
    let error = facts
        .attempt_error("snapshotter", bound)
        .or_else(|| {
            reported(content_status.and_then(|status| status.error.as_ref()), "content's status.error")
        })
        .or(error);
    let message = match taken {
        true => "the snapshot was taken, but is not ready to use yet",
        false => "the driver is taking the snapshot",
    };
    steps.push(Step::done(&name, format!("bound to content {bound}")));
    steps.push(Step::waits(name, message, snapshotter(content)).since(since).with_error(error));
    steps
}

fn snapshotter(content: &VolumeSnapshotContent) -> String {
    format!("the snapshotter of {}", content.spec.driver)
}

/// What a pre-provisioned snapshot, which names its content, waits for.
fn requested_content(name: &str, requested: &str, snapshot: &VolumeSnapshot, facts: &Facts) -> Step {
    let requests = format!("requests VolumeSnapshotContent {requested}");
    let content = match &facts.content {
        Lookup::Found(content) => content,
        Lookup::Absent => {
            let message = format!("{requests}, which does not exist");
            return Step::waits(name, message, format!("you to create VolumeSnapshotContent {requested}"));
        }
        Lookup::Unknown => {
            return Step::unknown(name, format!("{requests}, which could not be read"));
        }
    };
    let reference = &content.spec.volume_snapshot_ref;
    let is_free = reference.uid.is_empty() && names_snapshot(content, snapshot);
    if !is_free && !refers_to(content, snapshot) {
        let message = format!(
            "{requests}, which belongs to snapshot {}/{} (uid {:?})",
            reference.namespace, reference.name, reference.uid
        );
        return Step::waits(name, message, "you to name a content whose volumeSnapshotRef is this snapshot");
    }
    if content.spec.source.snapshot_handle.is_none() {
        let message = format!("{requests}, which has no source.snapshotHandle");
        return Step::waits(name, message, "you to name a content with a source.snapshotHandle");
    }
    Step::waits(name, format!("{requests}, but is not bound to it yet"), CONTROLLER)
}

/// Why a snapshot in deletion still exists, in the order in which the snapshot controller checks.
fn deleting(name: &str, snapshot: &VolumeSnapshot, error: Option<ReportedError>, facts: &Facts) -> Step {
    let finalizers = &snapshot.metadata.finalizers;
    let held = format!("being deleted; held by finalizers {}", finalizers.join(", "));
    if !CONTROLLER_FINALIZERS.iter().any(|finalizer| snapshot.metadata.has_finalizer(finalizer)) {
        return Step::waits(name, held, claim::finalizer_owners(finalizers));
    }
    let content = match &facts.content {
        Lookup::Found(content) => Some(content).filter(|content| refers_to(content, snapshot)),
        Lookup::Absent => None,
        Lookup::Unknown => {
            return Step::unknown(name, format!("{held}; its content could not be read")).with_error(error);
        }
    };
    match &facts.restoring_claims {
        Some(claims) if content.is_some() && !claims.is_empty() => {
            let message = format!("being deleted, but claim {} is being restored from it", claims.join(", "));
            return Step::waits(name, message, "the provisioner of these claims, or you to delete them");
        }
        None if content.is_some() => {
            let message = format!("{held}; whether a claim is being restored from it is unknown");
            return Step::unknown(name, message);
        }
        _ => {}
    }
    if let Some(group) = facts.group.found() {
        let message = format!("being deleted, but owned by group snapshot {}", group.key());
        return match group.metadata.is_deleting() {
            true => Step::waits(name, message, CONTROLLER),
            false => Step::waits(name, message, "you to delete the group snapshot"),
        };
    }
    let deletes = |content: &&VolumeSnapshotContent| {
        content.metadata.is_deleting() && content.spec.deletion_policy == DeletionPolicy::Delete
    };
    let Some(content) = content.filter(deletes) else {
        return Step::waits(name, held, CONTROLLER).with_error(error);
    };
    let content_name = &content.metadata.name;
    if !content.metadata.has_finalizer(names::CONTENT_PROTECTION) {
        let finalizers = &content.metadata.finalizers;
        let message = format!(
            "being deleted, but its content {content_name} is held by finalizers {}",
            finalizers.join(", ")
        );
        return Step::waits(name, message, claim::finalizer_owners(finalizers));
    }
    let error = facts
        .attempt_error("snapshotter", content_name)
        .or_else(|| facts.last_warning(content, &[]))
        .or(error);
    let message = format!("being deleted: the driver is deleting the snapshot of content {content_name}");
    Step::waits(name, message, snapshotter(content)).with_error(error)
}

/// Whether the content's volumeSnapshotRef is this snapshot, by name and UID.
fn refers_to(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    content.spec.volume_snapshot_ref.uid == snapshot.metadata.uid && names_snapshot(content, snapshot)
}

/// Whether the content's volumeSnapshotRef has this snapshot's name.
fn names_snapshot(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    reference.name == snapshot.metadata.name
        && Some(&reference.namespace) == snapshot.metadata.namespace.as_ref()
}

fn reported(error: Option<&VolumeSnapshotError>, field: &str) -> Option<ReportedError> {
    let error = error?;
    Some(ReportedError {
        source: field.to_owned(),
        text: error.message.clone().unwrap_or_default(),
        at: error.time,
    })
}
