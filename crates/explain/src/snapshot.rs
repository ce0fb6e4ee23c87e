//! The steps of a snapshot until it is ready, and until it is deleted: whether the snapshot controller, the driver's
//! snapshotter or the user has to act.

use wharf_controllers::snapshot_controller::{DeletionStatus, deletion_status};
use wharf_model::Kind as _;
use wharf_model::snapshot::{VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotError, names};

use crate::claim;
use crate::explanation::{ReportedError, Step};
use crate::facts::{Facts, Lookup};

const CONTROLLER: &str = "the snapshot controller";

/// The steps of the snapshot, up to the first that is not done.
pub(crate) fn walk(facts: &Facts) -> Vec<Step> {
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
    let mut steps = Vec::new();
    let Some(bound) = snapshot.bound_content() else {
        // The snapshot cannot be taken before its source exists.
        steps.extend(facts.claims.iter().flat_map(|source| claim::walk(source, facts)));
        if facts.snapshot_class == Some(false) {
            let waiting_for = "you to name a class, or mark one as the default for its driver";
            steps.push(Step::waits(&name, "no VolumeSnapshotClass exists for it", waiting_for).since(since));
        }
        let step = match snapshot.pre_provisioned_content() {
            Some(requested) => requested_content(&name, requested, snapshot, facts),
            None => Step::waits(name, "has no VolumeSnapshotContent yet", CONTROLLER),
        };
        steps.push(step.since(since).with_error(error.or_else(|| facts.last_warning(snapshot, &[]))));
        return steps;
    };
    let content = match &facts.content {
        Lookup::Absent => {
            let message = format!("VolumeSnapshotContent {bound} no longer exists");
            let waiting_for = "you to delete the snapshot, which has no data";
            return vec![Step::waits(name, message, waiting_for).with_error(error)];
        }
        _ if snapshot.is_ready() => return vec![Step::done(name, format!("ready to use, content {bound}"))],
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
    if !content.is_bound_to(&snapshot.metadata) && !content.is_reserved_for(&snapshot.metadata) {
        let reference = &content.spec.volume_snapshot_ref;
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

/// Why a snapshot in deletion still exists, by the rules of the snapshot controller.
fn deleting(name: &str, snapshot: &VolumeSnapshot, error: Option<ReportedError>, facts: &Facts) -> Step {
    let finalizers = &snapshot.metadata.finalizers;
    let held = format!("being deleted; held by finalizers {}", finalizers.join(", "));
    let (content, group) = (facts.content.found(), facts.group.found());
    let status =
        |restoring: bool| deletion_status(snapshot, content, restoring, group.map(|group| &group.metadata));
    let claims = facts.restoring_claims.as_deref().unwrap_or_default();
    match (status(!claims.is_empty()), content, group) {
        (DeletionStatus::NotHeld, _, _) => Step::waits(name, held, claim::finalizer_owners(finalizers)),
        _ if matches!(facts.content, Lookup::Unknown) => {
            Step::unknown(name, format!("{held}; its content could not be read")).with_error(error)
        }
        _ if facts.restoring_claims.is_none() && status(true) == DeletionStatus::Restoring => {
            Step::unknown(name, format!("{held}; whether a claim is being restored from it is unknown"))
        }
        (DeletionStatus::Restoring, _, _) => {
            let message = format!("being deleted, but claim {} is being restored from it", claims.join(", "));
            Step::waits(name, message, "the provisioner of these claims, or you to delete them")
        }
        (DeletionStatus::HeldByGroup, _, Some(group)) => {
            let message = format!("being deleted, but owned by group snapshot {}", group.key());
            match group.metadata.is_deleting() {
                true => Step::waits(name, message, CONTROLLER),
                false => Step::waits(name, message, "you to delete the group snapshot"),
            }
        }
        (DeletionStatus::ContentDeleting, Some(content), _) => deleting_content(name, content, error, facts),
        (DeletionStatus::HeldByGroup | DeletionStatus::Pending | DeletionStatus::ContentDeleting, _, _) => {
            Step::waits(name, held, CONTROLLER).with_error(error)
        }
    }
}

/// Why the content of a snapshot in deletion still exists.
fn deleting_content(
    name: &str,
    content: &VolumeSnapshotContent,
    error: Option<ReportedError>,
    facts: &Facts,
) -> Step {
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

fn reported(error: Option<&VolumeSnapshotError>, field: &str) -> Option<ReportedError> {
    let error = error?;
    Some(ReportedError {
        source: field.to_owned(),
        text: error.message.clone().unwrap_or_default(),
        at: error.time,
    })
}
