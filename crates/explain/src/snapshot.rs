//! A snapshot's way to being ready, and to its end: whose turn it is, of the snapshot controller, the driver's
//! snapshotter and you.

use wharf_model::Kind as _;
use wharf_model::snapshot::{DeletionPolicy, SnapshotFault, VolumeSnapshot, VolumeSnapshotContent, names};

use crate::claim;
use crate::facts::{Facts, Known};
use crate::story::{Said, Step};

const CONTROLLER: &str = "the snapshot controller";
/// Finalizers that the snapshot controller takes off.
const CONTROLLERS: [&str; 3] =
    [names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION, names::IN_GROUP_PROTECTION];

/// The way of a snapshot, as far as it has come.
pub(crate) fn walk(facts: &Facts) -> Vec<Step> {
    let snapshot = match &facts.snapshot {
        Known::There(snapshot) => snapshot,
        Known::Absent => {
            return vec![Step::waits("snapshot", "there is no such snapshot", "whoever is to make it")];
        }
        Known::Unknown => return vec![Step::unknown("snapshot", "it could not be read")],
    };
    let name = format!("snapshot {}", snapshot.key());
    let status = snapshot.status.as_ref();
    let error = said(status.and_then(|status| status.error.as_ref()), "its status");
    let since = snapshot.metadata.creation_timestamp;
    if snapshot.metadata.is_deleting() {
        let step = deleting(&name, snapshot, error, facts);
        return vec![step.since(snapshot.metadata.deletion_timestamp)];
    }
    let bound = status.and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
    let mut steps = Vec::new();
    let Some(bound) = bound else {
        // It cannot be cut before its source is there.
        steps.extend(facts.claims.iter().flat_map(|source| claim::walk(source, facts)));
        if facts.snapshot_class == Some(false) {
            let whose = "you: name a class, or make one the default for its driver";
            steps.push(Step::waits(&name, "there is no VolumeSnapshotClass for it", whose).since(since));
        }
        let step = match &snapshot.spec.source.volume_snapshot_content_name {
            Some(asked) => asking(&name, asked, snapshot, facts),
            None => Step::waits(name, "it has no content yet", CONTROLLER),
        };
        steps.push(step.since(since).after(error.or_else(|| facts.warning(snapshot, &[]))));
        return steps;
    };
    let ready = status.and_then(|status| status.ready_to_use).unwrap_or(false);
    let content = match &facts.content {
        Known::Absent => {
            let says = format!("its content {bound} is gone");
            return vec![
                Step::waits(name, says, "you: delete the snapshot; there is nothing behind it").after(error),
            ];
        }
        _ if ready => return vec![Step::done(name, format!("ready, content {bound}"))],
        Known::There(content) => content,
        Known::Unknown => return vec![Step::unknown(name, format!("its content {bound} could not be read"))],
    };
    let of_content = content.status.as_ref();
    let cut = of_content.is_some_and(|status| status.snapshot_handle.is_some());
    let error = facts
        .attempt("snapshotter", bound)
        .or_else(|| said(of_content.and_then(|status| status.error.as_ref()), "its content's status"))
        .or(error);
    let says = match cut {
        true => "it was cut, and is not ready to be used yet",
        false => "the driver is asked to cut it",
    };
    steps.push(Step::done(&name, format!("bound to content {bound}")));
    steps.push(Step::waits(name, says, snapshotter(content)).since(since).after(error));
    steps
}

fn snapshotter(content: &VolumeSnapshotContent) -> String {
    format!("the snapshotter of {}", content.spec.driver)
}

/// What a snapshot waits for that asks for a content that is there already.
fn asking(name: &str, asked: &str, snapshot: &VolumeSnapshot, facts: &Facts) -> Step {
    let content = match &facts.content {
        Known::There(content) => content,
        Known::Absent => {
            let says = format!("it asks for content {asked}, which does not exist");
            return Step::waits(name, says, format!("you: make content {asked}"));
        }
        Known::Unknown => {
            return Step::unknown(name, format!("it asks for content {asked}, which could not be read"));
        }
    };
    let reference = &content.spec.volume_snapshot_ref;
    let is_free = reference.uid.is_empty() && is_named(content, snapshot);
    if !is_free && !points_back(content, snapshot) {
        let says = format!(
            "it asks for content {asked}, which is snapshot {}/{}'s, of uid {:?}",
            reference.namespace, reference.name, reference.uid
        );
        return Step::waits(name, says, "you: ask for a content whose volumeSnapshotRef names this snapshot");
    }
    if content.spec.source.snapshot_handle.is_none() {
        let says = format!("it asks for content {asked}, which is one that is still to be taken of a volume");
        return Step::waits(name, says, "you: ask for a content with a source.snapshotHandle");
    }
    Step::waits(name, format!("it asks for content {asked}, and is not bound to it yet"), CONTROLLER)
}

/// Why a snapshot that is to go is still there, in the order in which the snapshot controller looks.
fn deleting(name: &str, snapshot: &VolumeSnapshot, error: Option<Said>, facts: &Facts) -> Step {
    let kept = format!("it is being deleted, and kept by {}", snapshot.metadata.finalizers.join(", "));
    if !CONTROLLERS.iter().any(|guard| snapshot.metadata.has_finalizer(guard)) {
        return Step::waits(name, kept, "whoever put these finalizers there");
    }
    let content = match &facts.content {
        Known::There(content) => Some(content).filter(|content| points_back(content, snapshot)),
        Known::Absent => None,
        Known::Unknown => {
            return Step::unknown(name, format!("{kept}; its content could not be read")).after(error);
        }
    };
    match &facts.restored {
        Some(claims) if content.is_some() && !claims.is_empty() => {
            let says = format!("it is being deleted, and claim {} is restored from it", claims.join(", "));
            return Step::waits(name, says, "whoever restores these claims, or you: delete them");
        }
        None if content.is_some() => {
            return Step::unknown(name, format!("{kept}; whether a claim is restored from it is not known"));
        }
        _ => {}
    }
    if let Some(group) = facts.group.there() {
        let says = format!("it is being deleted, and goes with its group snapshot {}", group.key());
        return match group.metadata.is_deleting() {
            true => Step::waits(name, says, CONTROLLER),
            false => Step::waits(name, says, "you: delete the group snapshot"),
        };
    }
    let goes = |content: &&VolumeSnapshotContent| {
        content.metadata.is_deleting() && content.spec.deletion_policy == DeletionPolicy::Delete
    };
    let Some(content) = content.filter(goes) else {
        return Step::waits(name, kept, CONTROLLER).after(error);
    };
    let of = &content.metadata.name;
    if !content.metadata.has_finalizer(names::CONTENT_PROTECTION) {
        let finalizers = content.metadata.finalizers.join(", ");
        let says = format!("it is being deleted, and its content {of} is kept by {finalizers}");
        return Step::waits(name, says, "whoever put these finalizers there");
    }
    let error = facts.attempt("snapshotter", of).or_else(|| facts.warning(content, &[])).or(error);
    let says = format!("it is being deleted: the driver is asked to delete what is behind content {of}");
    Step::waits(name, says, snapshotter(content)).after(error)
}

/// Whether the content says that it is this very snapshot's.
fn points_back(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    content.spec.volume_snapshot_ref.uid == snapshot.metadata.uid && is_named(content, snapshot)
}

/// Whether the content names a snapshot of this name.
fn is_named(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    reference.name == snapshot.metadata.name
        && Some(&reference.namespace) == snapshot.metadata.namespace.as_ref()
}

fn said(fault: Option<&SnapshotFault>, by: &str) -> Option<Said> {
    let fault = fault?;
    Some(Said { by: by.to_owned(), text: fault.message.clone().unwrap_or_default(), at: fault.time })
}
