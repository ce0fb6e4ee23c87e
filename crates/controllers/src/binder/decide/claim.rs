//! The rules for a claim (upstream's syncClaim).

use wharf_model::PersistentVolumeClaim;
use wharf_model::claim::ClaimPhase;
use wharf_model::class::VolumeBindingMode;
use wharf_model::matching::{
    MatchFor, check_requested_volume, class_or_empty, find_matching_volume, is_reserved_for,
};
use wharf_model::names::{annotation, reason};

use super::super::migration;
use super::super::view::{LiveObject, View};
use super::bind::bind;
use super::{EventRecord, EventTarget, Idle, Problem, Step};

/// The next step for a claim.
pub(super) fn decide(view: &View, claim: &PersistentVolumeClaim) -> Step {
    if let Some(to) = migration::claim_change(claim) {
        return Step::MigrateClaim { to };
    }
    let bound = claim.metadata.annotations.contains_key(annotation::BIND_COMPLETED);
    match (bound, claim.spec.volume_name.is_empty()) {
        (true, _) => reconcile_bound(view, claim),
        (false, false) => reconcile_with_volume_name(view, claim),
        (false, true) => reconcile_without_volume_name(view, claim),
    }
}

fn warn(reason: &'static str, note: impl Into<String>) -> EventRecord {
    EventRecord::warning(EventTarget::Claim, reason, note)
}

/// The claim was bound before: complete what is missing, or mark the claim lost.
fn reconcile_bound(view: &View, claim: &PersistentVolumeClaim) -> Step {
    let lost = |reason, note: &str| match claim.status.phase {
        ClaimPhase::Lost => Step::idle(),
        _ => Step::SetClaimPhase { phase: ClaimPhase::Lost, event: Some(warn(reason, note)) },
    };
    let name = &claim.spec.volume_name;
    if name.is_empty() {
        let note = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(reason::CLAIM_LOST, note);
    }
    // The store may lack the volume or hold an old version: read the API server before the claim is marked lost.
    let live = view.live.volume.as_ref().filter(|(fetched, _)| fetched == name).map(|(_, found)| found);
    let is_lost = claim.status.phase == ClaimPhase::Lost;
    let Some(volume) = &view.named_volume else {
        return match is_lost || live == Some(&LiveObject::Absent) {
            true => lost(
                reason::CLAIM_LOST,
                "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
            ),
            false => Step::FetchVolume { name: name.clone() },
        };
    };
    match &volume.spec.claim_ref {
        None => bind(claim, volume),
        Some(_) if volume.references_uid_of(&claim.metadata) => bind(claim, volume),
        Some(_) if !is_lost && live.is_none() => Step::FetchVolume { name: name.clone() },
        Some(_) => {
            let note = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(reason::CLAIM_MISBOUND, note)
        }
    }
}

/// The claim names its volume.
fn reconcile_with_volume_name(view: &View, claim: &PersistentVolumeClaim) -> Step {
    let Some(volume) = &view.named_volume else { return pending(claim, None) };
    let name = &volume.metadata.name;
    if volume.spec.claim_ref.is_none() {
        return match check_requested_volume(volume, claim) {
            Ok(()) => bind(claim, volume),
            Err(mismatch) => {
                let note = format!("Cannot bind to requested volume {name:?}: {mismatch}");
                pending(claim, Some(warn(reason::VOLUME_MISMATCH, note)))
            }
        };
    }
    if is_reserved_for(volume, claim) {
        return bind(claim, volume);
    }
    let event = warn(reason::FAILED_BINDING, format!("volume {name:?} already bound to a different claim."));
    match claim.metadata.annotations.contains_key(annotation::BOUND_BY_CONTROLLER) {
        // A controller chose the volume, so another client has removed the bind-completed annotation: keep the phase.
        true => Step::event(event),
        false => pending(claim, Some(event)),
    }
}

/// The claim takes any volume that matches.
fn reconcile_without_volume_name(view: &View, claim: &PersistentVolumeClaim) -> Step {
    let delayed = match &view.class {
        None => false,
        Some(class) => match class.volume_binding_mode {
            Some(VolumeBindingMode::WaitForFirstConsumer) => true,
            Some(VolumeBindingMode::Immediate) => false,
            Some(VolumeBindingMode::Unknown) | None => {
                return Step::problem(Problem::NoBindingMode(class.metadata.name.clone()));
            }
        },
    };
    let candidates = view.volumes.iter().chain(&view.offer).map(|volume| &**volume);
    if let Some(volume) = find_matching_volume(claim, candidates, MatchFor::Binder { delayed }) {
        return bind(claim, volume);
    }
    if claim.class().is_none()
        && let Some(class) = &view.default_class
    {
        return Step::AssignClass { class: class.clone() };
    }
    let chosen = claim.metadata.annotations.contains_key(annotation::SELECTED_NODE);
    if delayed && !chosen {
        return pending(claim, Some(waiting_for_consumer(&view.unscheduled)));
    }
    match class_or_empty(claim) {
        "" => {
            let note = "no persistent volumes available for this claim and no storage class is set";
            pending(claim, Some(EventRecord::normal(EventTarget::Claim, reason::FAILED_BINDING, note)))
        }
        class => provision(view, claim, class, delayed),
    }
}

fn waiting_for_consumer(unscheduled: &[String]) -> EventRecord {
    let (reason, note) = match unscheduled {
        [] => (
            reason::WAIT_FOR_FIRST_CONSUMER,
            "waiting for first consumer to be created before binding".to_owned(),
        ),
        [pod] => (reason::WAIT_FOR_POD_SCHEDULED, format!("waiting for pod {pod} to be scheduled")),
        pods => {
            (reason::WAIT_FOR_POD_SCHEDULED, format!("waiting for pods {} to be scheduled", pods.join(",")))
        }
    };
    EventRecord::normal(EventTarget::Claim, reason, note)
}

/// Provisioners are external: annotations assign the claim to them. As upstream does, the phase stays as it is.
fn provision(view: &View, claim: &PersistentVolumeClaim, class: &str, delayed: bool) -> Step {
    let Some(storage_class) = &view.class else {
        let note = format!("storageclass.storage.k8s.io {class:?} not found");
        return Step::event(warn(reason::PROVISIONING_FAILED, note));
    };
    let named = storage_class.provisioner.as_str();
    let Some(provisioner) = migration::csi_provisioner(named) else {
        let note = format!("no volume plugin matched name: {named}");
        return Step::event(warn(reason::PROVISIONING_FAILED, note));
    };
    if delayed && let Some(step) = clear_missing_node(view, claim) {
        return step;
    }
    if claim.metadata.annotation(annotation::STORAGE_PROVISIONER) != Some(provisioner) {
        return Step::SetProvisioner { provisioner: provisioner.to_owned() };
    }
    let note = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    Step::event(EventRecord::normal(EventTarget::Claim, reason::EXTERNAL_PROVISIONING, note))
}

/// Clears a selected node that was deleted: no provisioner can serve it, and the scheduler chooses another node only
/// once the annotation is removed.
fn clear_missing_node(view: &View, claim: &PersistentVolumeClaim) -> Option<Step> {
    let node = claim.selected_node()?;
    if !view.rules.clear_selected_node || view.selected_node_known || claim.metadata.is_deleting() {
        return None;
    }
    match &view.live.node {
        Some((fetched, LiveObject::Absent)) if fetched == node => Some(Step::ClearSelectedNode),
        Some((fetched, LiveObject::Present(_))) if fetched == node => None,
        _ => Some(Step::FetchNode { name: node.to_owned() }),
    }
}

/// The claim has no volume: set phase Pending and remove what the status reports of a volume.
fn pending(claim: &PersistentVolumeClaim, event: Option<EventRecord>) -> Step {
    let status = &claim.status;
    let shows = !status.access_modes.is_empty()
        || status.capacity.storage.is_some()
        || status.current_volume_attributes_class_name.is_some();
    match status.phase != ClaimPhase::Pending || shows {
        true => Step::SetClaimPhase { phase: ClaimPhase::Pending, event: None },
        // Record the event only once the phase is right, so that one reconcile records it once.
        false => Step::Idle(Idle { events: event.into_iter().collect(), problem: None }),
    }
}
