//! A volume's way from its claim's end to its own, by the rules of the binder, the protection and the provisioner.

use wharf_controllers::binder;
use wharf_model::names::{annotation, finalizer, reason};
use wharf_model::volume::{ReclaimPolicy, VolumePhase};
use wharf_model::{PersistentVolume, Time};

use crate::claim::{self, BINDER};
use crate::facts::{ClaimFacts, Facts, Known};
use crate::story::{State, Step};

/// Whose turn it is when a volume stays although its claim is gone.
const TAKE_BACK: &str = "you: delete it, or clear its claimRef for another claim";
/// The same, where nobody deletes what is behind it.
const CLEAR_AWAY: &str =
    "you: delete what is behind it by hand and then it, or clear its claimRef for another claim";

/// The way of a volume, from its claim's end to its own.
pub(crate) fn walk(all: &Facts, now: Time) -> Vec<Step> {
    let Some(facts) = all.claims.first() else { return Vec::new() };
    let volume = match &facts.volume {
        Known::There(volume) => volume,
        Known::Absent => {
            return vec![Step::waits("volume", "there is no such volume", "whoever is to make it")];
        }
        Known::Unknown => return vec![Step::unknown("volume", "it could not be read")],
    };
    let name = format!("volume {}", volume.metadata.name);
    let attached = crate::attach::everywhere(facts, all, now);
    // The provisioner does nothing for a volume that is attached anywhere.
    let before = |step: &Step| is_deleters(volume) && step.state != State::Done && is_attached(facts);
    let (mut steps, after): (Vec<Step>, _) = attached.into_iter().partition(before);
    steps.push(phase(&name, volume, facts, all));
    steps.extend(after);
    if volume.metadata.is_deleting() {
        steps.push(deleting(&name, volume, facts));
    }
    steps
}

/// Whether its deletion is somebody's to do.
fn is_deleters(volume: &PersistentVolume) -> bool {
    volume.status.phase == VolumePhase::Released
        && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete
        && binder::no_deleter(volume).is_none()
}

/// Whether it is attached anywhere, for all that is known.
fn is_attached(facts: &ClaimFacts) -> bool {
    facts.attachments.as_ref().is_none_or(|attachments| !attachments.is_empty())
}

/// Why a volume that is to go is still there.
fn deleting(name: &str, volume: &PersistentVolume, facts: &ClaimFacts) -> Step {
    let bound = volume.status.phase == VolumePhase::Bound;
    let step = match &volume.spec.claim_ref {
        // While it is bound, and nothing more is asked.
        Some(claim) if bound && volume.metadata.has_finalizer(finalizer::VOLUME_PROTECTION) => {
            match facts.claim.there().filter(|claim| claim.metadata.is_deleting()) {
                Some(going) => return claim::deleting(&claim::name(facts), going, facts),
                None => {
                    let says = format!("it is being deleted, and kept while it is claim {}'s", claim.key());
                    Step::waits(name, says, format!("you: delete claim {}", claim.key()))
                }
            }
        }
        _ => {
            let says = format!("it is being deleted, and kept by {}", volume.metadata.finalizers.join(", "));
            Step::waits(name, says, "whoever put these finalizers there")
        }
    };
    step.since(volume.metadata.deletion_timestamp)
}

fn phase(name: &str, volume: &PersistentVolume, facts: &ClaimFacts, all: &Facts) -> Step {
    let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.key().to_string()).unwrap_or_default();
    let driver = volume.spec.csi.as_ref().map_or("no CSI driver", |csi| csi.driver.as_str());
    match (volume.status.phase, volume.spec.persistent_volume_reclaim_policy) {
        (VolumePhase::Bound, _) => match alone(volume, facts) {
            None => Step::done(name, format!("claim {claim}'s, of {driver}")),
            Some(why) => Step::waits(name, format!("it is bound to claim {claim}, which {why}"), BINDER),
        },
        (VolumePhase::Available, _) if volume.spec.claim_ref.is_some() => {
            Step::done(name, format!("reserved for claim {claim}, and not bound to it"))
        }
        (VolumePhase::Available, _) => Step::done(name, "free for a claim that it fits"),
        (VolumePhase::Released, ReclaimPolicy::Delete) => match binder::no_deleter(volume) {
            Some(why) => undeletable(name, &why, volume, all),
            None => doomed(name, &claim, driver, volume, all),
        },
        (VolumePhase::Released, ReclaimPolicy::Retain) => {
            let says = format!("claim {claim} is gone; its policy is to keep it, data and all");
            Step::waits(name, says, TAKE_BACK)
        }
        (VolumePhase::Released, ReclaimPolicy::Recycle) => {
            let says = format!("claim {claim} is gone; its policy is to empty it and offer it again");
            Step::waits(name, says, BINDER).after(all.warning(volume, &[reason::VOLUME_FAILED_RECYCLE]))
        }
        (VolumePhase::Released, ReclaimPolicy::Unknown) => {
            let says = format!("claim {claim} is gone; its policy is none that is known");
            Step::waits(name, says, BINDER)
        }
        // Nobody tries again, whatever it was that failed.
        (VolumePhase::Failed, policy) => {
            let why = binder::no_deleter(volume).filter(|_| policy == ReclaimPolicy::Delete);
            if let Some(why) = why {
                return undeletable(name, &why, volume, all);
            }
            let reasons = [
                reason::VOLUME_FAILED_DELETE,
                reason::VOLUME_FAILED_RECYCLE,
                reason::VOLUME_UNKNOWN_RECLAIM_POLICY,
            ];
            Step::waits(name, "it could not be reclaimed", TAKE_BACK).after(all.warning(volume, &reasons))
        }
        (VolumePhase::Pending | VolumePhase::Unknown, _) => {
            Step::waits(name, "nobody has looked at it yet", BINDER)
        }
    }
}

/// What has become of the claim of a bound volume, by the binder's rules; nothing, if it has it, or was not read.
fn alone(volume: &PersistentVolume, facts: &ClaimFacts) -> Option<String> {
    let reference = volume.spec.claim_ref.as_ref()?;
    match &facts.claim {
        Known::Unknown => None,
        Known::Absent => Some("is gone".to_owned()),
        Known::There(claim) if claim.metadata.uid != reference.uid => {
            Some(format!("is gone: another of that name is there, of uid {:?}", claim.metadata.uid))
        }
        Known::There(claim) => {
            let has = &claim.spec.volume_name;
            (!has.is_empty() && *has != volume.metadata.name).then(|| format!("has volume {has}"))
        }
    }
}

/// It is to be deleted, and there is nobody who can.
fn undeletable(name: &str, why: &str, volume: &PersistentVolume, all: &Facts) -> Step {
    let says = format!("it is to be deleted, and nobody can: {why}");
    Step::waits(name, says, CLEAR_AWAY).after(all.warning(volume, &[reason::VOLUME_FAILED_DELETE]))
}

/// It is to be deleted by whoever made it, or by the driver that it was given to.
fn doomed(name: &str, claim: &str, driver: &str, volume: &PersistentVolume, all: &Facts) -> Step {
    let says = |key| volume.metadata.annotation(key).filter(|value| !value.is_empty());
    let by = says(annotation::MIGRATED_TO).or_else(|| says(annotation::PROVISIONED_BY)).unwrap_or(driver);
    let error = all
        .attempt("provisioner", &volume.metadata.name)
        .or_else(|| all.warning(volume, &[reason::VOLUME_FAILED_DELETE]));
    let says = format!("claim {claim} is gone: it is to be deleted");
    Step::waits(name, says, format!("the provisioner of {by}")).after(error)
}
