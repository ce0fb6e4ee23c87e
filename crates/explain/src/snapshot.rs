//! A snapshot's way to being ready.

use wharf_model::snapshot::SnapshotFault;

use crate::claim;
use crate::facts::{Facts, Known};
use crate::story::{Said, Step};

const CONTROLLER: &str = "the snapshot controller";

/// The way of a snapshot, as far as it has come.
pub(crate) fn walk(facts: &Facts) -> Vec<Step> {
    let snapshot = match &facts.snapshot {
        Known::There(snapshot) => snapshot,
        Known::Absent => {
            return vec![Step::waits("snapshot", "there is no such snapshot", "whoever is to make it")];
        }
        Known::Unknown => return vec![Step::unknown("snapshot", "it could not be read")],
    };
    let name = format!("snapshot {}", wharf_model::Kind::key(snapshot));
    let status = snapshot.status.as_ref();
    let error = said(status.and_then(|status| status.error.as_ref()), "its status");
    let since = snapshot.metadata.creation_timestamp;
    if snapshot.metadata.is_deleting() {
        let says = format!("it is being deleted, and kept by {}", snapshot.metadata.finalizers.join(", "));
        return vec![
            Step::waits(name, says, CONTROLLER).since(snapshot.metadata.deletion_timestamp).after(error),
        ];
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
        let step = Step::waits(name, "it has no content yet", CONTROLLER).since(since);
        steps.push(step.after(error.or_else(|| facts.warning(snapshot, &[]))));
        return steps;
    };
    let ready = status.and_then(|status| status.ready_to_use).unwrap_or(false);
    let content = match &facts.content {
        _ if ready => return vec![Step::done(name, format!("ready, content {bound}"))],
        Known::There(content) => content,
        Known::Absent => {
            let says = format!("its content {bound} is gone");
            return vec![
                Step::waits(name, says, "you: delete the snapshot; there is nothing behind it").after(error),
            ];
        }
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
    let whose = format!("the snapshotter of {}", content.spec.driver);
    steps.push(Step::waits(name, says, whose).since(since).after(error));
    steps
}

fn said(fault: Option<&SnapshotFault>, by: &str) -> Option<Said> {
    let fault = fault?;
    Some(Said { by: by.to_owned(), text: fault.message.clone().unwrap_or_default(), at: fault.time })
}
