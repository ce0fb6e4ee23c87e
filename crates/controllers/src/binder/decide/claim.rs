//! What to do for a claim (upstream's syncClaim).

use wharf_model::claim::ClaimPhase;
use wharf_model::class::VolumeBindingMode;
use wharf_model::matching::{Seeker, best, check, class, is_for};
use wharf_model::names::{annotation, reason};
use wharf_model::{PersistentVolume, PersistentVolumeClaim};

use super::super::migration;
use super::super::view::{Found, View};
use super::bind::bind;
use super::{About, Problem, Rest, Step, Told};

/// The next step for a claim.
pub(super) fn decide(view: &View, claim: &PersistentVolumeClaim) -> Step {
    if let Some(to) = migration::of_claim(claim) {
        return Step::MigrateClaim { to };
    }
    let bound = claim.metadata.annotations.contains_key(annotation::BIND_COMPLETED);
    match (bound, claim.spec.volume_name.is_empty()) {
        (true, _) => bound_before(view, claim),
        (false, false) => asks_by_name(view, claim),
        (false, true) => asks_for_any(view, claim),
    }
}

fn warn(reason: &'static str, note: impl Into<String>) -> Told {
    Told::warning(About::Claim, reason, note)
}

/// It was bound: whatever is missing is repaired, or lost.
fn bound_before(view: &View, claim: &PersistentVolumeClaim) -> Step {
    let lost = |reason, note: &str| match claim.status.phase {
        ClaimPhase::Lost => Step::rest(),
        _ => Step::ClaimPhase { phase: ClaimPhase::Lost, told: Some(warn(reason, note)) },
    };
    let name = &claim.spec.volume_name;
    if name.is_empty() {
        let note = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(reason::CLAIM_LOST, note);
    }
    // What our store lacks, or has of an earlier time, loses nothing: the server is asked first.
    let answer = view.live.volume.as_ref().filter(|(asked, _)| asked == name).map(|(_, found)| found);
    let is_lost = claim.status.phase == ClaimPhase::Lost;
    let Some(volume) = &view.named else {
        return match is_lost || answer == Some(&Found::Gone) {
            true => lost(
                reason::CLAIM_LOST,
                "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
            ),
            false => Step::AskVolume { name: name.clone() },
        };
    };
    match &volume.spec.claim_ref {
        None => bind(claim, volume),
        Some(reference) if reference.uid == claim.metadata.uid => bind(claim, volume),
        Some(_) if !is_lost && answer.is_none() => Step::AskVolume { name: name.clone() },
        Some(_) => {
            let note = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(reason::CLAIM_MISBOUND, note)
        }
    }
}

/// It asks for a certain volume.
fn asks_by_name(view: &View, claim: &PersistentVolumeClaim) -> Step {
    let Some(volume) = &view.named else { return pending(claim, None) };
    let name = &volume.metadata.name;
    if volume.spec.claim_ref.is_none() {
        return match check(volume, claim) {
            Ok(()) => bind(claim, volume),
            Err(mismatch) => {
                let note = format!("Cannot bind to requested volume {name:?}: {mismatch}");
                pending(claim, Some(warn(reason::VOLUME_MISMATCH, note)))
            }
        };
    }
    if is_for(volume, claim) {
        return bind(claim, volume);
    }
    let told = warn(reason::FAILED_BINDING, format!("volume {name:?} already bound to a different claim."));
    match claim.metadata.annotations.contains_key(annotation::BOUND_BY_CONTROLLER) {
        // A controller chose it, so somebody has taken the mark of a complete binding away: the phase stays.
        true => Step::tell(told),
        false => pending(claim, Some(told)),
    }
}

/// It takes any volume that fits.
fn asks_for_any(view: &View, claim: &PersistentVolumeClaim) -> Step {
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
    if let Some(volume) = best(claim, candidates, Seeker::Binder { delayed }) {
        return bind(claim, volume);
    }
    if claim.class().is_none()
        && let Some(class) = &view.default_class
    {
        return Step::AssignClass { class: class.clone() };
    }
    let chosen = claim.metadata.annotations.contains_key(annotation::SELECTED_NODE);
    if delayed && !chosen {
        return pending(claim, Some(waits_for_pods(&view.unscheduled)));
    }
    match class(claim) {
        "" => {
            let note = "no persistent volumes available for this claim and no storage class is set";
            pending(claim, Some(Told::normal(About::Claim, reason::FAILED_BINDING, note)))
        }
        class => provision(view, claim, class, delayed),
    }
}

fn waits_for_pods(unscheduled: &[String]) -> Told {
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
    Told::normal(About::Claim, reason, note)
}

/// Whoever provisions does so outside; it is told by annotations. The claim's phase is not touched, as upstream does.
fn provision(view: &View, claim: &PersistentVolumeClaim, class: &str, delayed: bool) -> Step {
    let Some(storage_class) = &view.class else {
        let note = format!("storageclass.storage.k8s.io {class:?} not found");
        return Step::tell(warn(reason::PROVISIONING_FAILED, note));
    };
    let named = storage_class.provisioner.as_str();
    let Some(provisioner) = migration::provisioner(named) else {
        let note = format!("no volume plugin matched name: {named}");
        return Step::tell(warn(reason::PROVISIONING_FAILED, note));
    };
    if delayed && let Some(step) = chosen_node_is_gone(view, claim) {
        return step;
    }
    if claim.metadata.annotation(annotation::STORAGE_PROVISIONER) != Some(provisioner) {
        return Step::HandOver { provisioner: provisioner.to_owned() };
    }
    let note = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    Step::tell(Told::normal(About::Claim, reason::EXTERNAL_PROVISIONING, note))
}

/// Nobody can provision for a node that is gone, and the scheduler chooses another only once the old one is cleared.
fn chosen_node_is_gone(view: &View, claim: &PersistentVolumeClaim) -> Option<Step> {
    let node = claim.selected_node()?;
    if !view.rules.clear_selected_node || view.node_known || claim.metadata.is_deleting() {
        return None;
    }
    match &view.live.node {
        Some((asked, Found::Gone)) if asked == node => Some(Step::ClearSelectedNode),
        Some((asked, Found::There(_))) if asked == node => None,
        _ => Some(Step::AskNode { name: node.to_owned() }),
    }
}

/// It has no volume, and shows nothing of one.
fn pending(claim: &PersistentVolumeClaim, told: Option<Told>) -> Step {
    let status = &claim.status;
    let shows = !status.access_modes.is_empty()
        || status.capacity.storage.is_some()
        || status.current_volume_attributes_class_name.is_some();
    match status.phase != ClaimPhase::Pending || shows {
        true => Step::ClaimPhase { phase: ClaimPhase::Pending, told: None },
        // What there is to tell is told once the phase is right, so that one look tells it once.
        false => Step::Rest(Rest { told: told.into_iter().collect(), problem: None }),
    }
}

/// Whether a volume is this claim's by name and identity.
pub(super) fn owns(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.metadata.uid)
}
