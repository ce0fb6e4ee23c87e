//! The steps of a volume from the deletion of its claim to its own, by the rules of the binder, the protection
//! controllers and the provisioner.

use wharf_controllers::binder;
use wharf_model::PersistentVolume;
use wharf_model::names::{annotation, finalizer, reason};
use wharf_model::volume::{ReclaimPolicy, VolumePhase};

use crate::claim::{self, BINDER};
use crate::explanation::{State, Step};
use crate::facts::{ClaimFacts, Facts, Lookup};

/// The user's options for a volume that remains after its claim.
const RECLAIM: &str = "you to delete it, or clear its claimRef for another claim";
/// The same, if no component deletes the storage behind it.
const RECLAIM_MANUALLY: &str = "you to delete the storage behind it and then the PersistentVolume, or clear its claimRef for another claim";

/// The steps of the volume, up to the first that is not done.
pub(crate) fn steps(all: &Facts) -> Vec<Step> {
    let Some(facts) = all.claims.first() else { return Vec::new() };
    let volume = match &facts.volume {
        Lookup::Found(volume) => volume,
        Lookup::Absent => {
            return vec![Step::waits("volume", "does not exist", "you to create it")];
        }
        Lookup::Unknown => return vec![Step::unknown("volume", "could not be read")],
    };
    let name = format!("volume {}", volume.metadata.name);
    let attached = crate::attach::to_all_nodes(facts, all);
    // The provisioner does not delete a volume that is attached to any node.
    let before = |step: &Step| has_deleter(volume) && step.state != State::Done && is_attached(facts);
    let (mut steps, after): (Vec<Step>, _) = attached.into_iter().partition(before);
    steps.push(phase(&name, volume, facts, all));
    steps.extend(after);
    if volume.metadata.is_deleting() {
        steps.push(deleting(&name, volume, facts));
    }
    steps
}

/// Whether a released volume is deleted by a component.
fn has_deleter(volume: &PersistentVolume) -> bool {
    volume.status.phase == VolumePhase::Released
        && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete
        && binder::missing_deleter_message(volume).is_none()
}

/// Whether it is, or may be, attached to a node.
fn is_attached(facts: &ClaimFacts) -> bool {
    facts.attachments.as_ref().is_none_or(|attachments| !attachments.is_empty())
}

/// Why a volume in deletion still exists.
fn deleting(name: &str, volume: &PersistentVolume, facts: &ClaimFacts) -> Step {
    let bound = volume.status.phase == VolumePhase::Bound;
    let step = match &volume.spec.claim_ref {
        // The volume protection controller checks only whether the volume is bound.
        Some(claim) if bound && volume.metadata.has_finalizer(finalizer::VOLUME_PROTECTION) => {
            match facts.claim.found().filter(|claim| claim.metadata.is_deleting()) {
                Some(deleted) => return claim::deleting(&claim::name(facts), deleted, facts),
                None => {
                    let message =
                        format!("being deleted, but held while it is bound to claim {}", claim.key());
                    Step::waits(name, message, format!("you to delete claim {}", claim.key()))
                }
            }
        }
        _ => {
            let finalizers = &volume.metadata.finalizers;
            let message = format!("being deleted; held by finalizers {}", finalizers.join(", "));
            Step::waits(name, message, claim::finalizer_owners(finalizers))
        }
    };
    step.since(volume.metadata.deletion_timestamp)
}

fn phase(name: &str, volume: &PersistentVolume, facts: &ClaimFacts, all: &Facts) -> Step {
    let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.key().to_string()).unwrap_or_default();
    let driver = volume.spec.csi.as_ref().map_or("no CSI driver", |csi| csi.driver.as_str());
    match (volume.status.phase, volume.spec.persistent_volume_reclaim_policy) {
        (VolumePhase::Bound, _) => match lost_claim(volume, facts) {
            None => Step::done(name, format!("bound to claim {claim} ({driver})")),
            Some(reason) => Step::waits(name, format!("bound to claim {claim}, which {reason}"), BINDER),
        },
        (VolumePhase::Available, _) if volume.spec.claim_ref.is_some() => {
            Step::done(name, format!("reserved for claim {claim}, but not bound to it"))
        }
        (VolumePhase::Available, _) => Step::done(name, "available for a matching claim"),
        (VolumePhase::Released, ReclaimPolicy::Delete) => match binder::missing_deleter_message(volume) {
            Some(reason) => undeletable(name, &reason, volume, all),
            None => pending_deletion(name, &claim, driver, volume, all),
        },
        (VolumePhase::Released, ReclaimPolicy::Retain) => {
            let message =
                format!("claim {claim} was deleted; reclaim policy Retain keeps the volume and its data");
            Step::waits(name, message, RECLAIM)
        }
        (VolumePhase::Released, ReclaimPolicy::Recycle) => {
            let message =
                format!("claim {claim} was deleted; reclaim policy Recycle makes the volume available again");
            Step::waits(name, message, BINDER)
                .with_error(all.last_warning(volume, &[reason::VOLUME_FAILED_RECYCLE]))
        }
        (VolumePhase::Released, ReclaimPolicy::Unknown) => {
            let message = format!("claim {claim} was deleted; the volume's reclaim policy is not supported");
            Step::waits(name, message, BINDER)
        }
        // No component retries, whatever failed.
        (VolumePhase::Failed, policy) => {
            let no_deleter =
                binder::missing_deleter_message(volume).filter(|_| policy == ReclaimPolicy::Delete);
            if let Some(reason) = no_deleter {
                return undeletable(name, &reason, volume, all);
            }
            let reasons = [
                reason::VOLUME_FAILED_DELETE,
                reason::VOLUME_FAILED_RECYCLE,
                reason::VOLUME_UNKNOWN_RECLAIM_POLICY,
            ];
            Step::waits(name, "could not be reclaimed", RECLAIM)
                .with_error(all.last_warning(volume, &reasons))
        }
        (VolumePhase::Pending | VolumePhase::Unknown, _) => Step::waits(name, "not processed yet", BINDER),
    }
}

/// Why a bound volume no longer has its claim, by the binder's rules; `None` if it has, or if the claim was not read.
fn lost_claim(volume: &PersistentVolume, facts: &ClaimFacts) -> Option<String> {
    volume.spec.claim_ref.as_ref()?;
    match &facts.claim {
        Lookup::Unknown => None,
        Lookup::Absent => Some("no longer exists".to_owned()),
        Lookup::Found(claim) if !volume.references_uid_of(&claim.metadata) => {
            Some(format!("was replaced by another claim of that name (uid {:?})", claim.metadata.uid))
        }
        Lookup::Found(claim) => {
            let other = &claim.spec.volume_name;
            let elsewhere = !other.is_empty() && *other != volume.metadata.name;
            elsewhere.then(|| format!("is bound to PersistentVolume {other}"))
        }
    }
}

/// The reclaim policy is Delete, but no component can delete the volume.
fn undeletable(name: &str, cause: &str, volume: &PersistentVolume, all: &Facts) -> Step {
    let message = format!("reclaim policy Delete, but no component can delete it: {cause}");
    Step::waits(name, message, RECLAIM_MANUALLY)
        .with_error(all.last_warning(volume, &[reason::VOLUME_FAILED_DELETE]))
}

/// The provisioner that created the volume deletes it, or the driver that the volume was migrated to.
fn pending_deletion(name: &str, claim: &str, driver: &str, volume: &PersistentVolume, all: &Facts) -> Step {
    let value = |key| volume.metadata.annotation(key).filter(|value| !value.is_empty());
    let provisioner =
        value(annotation::MIGRATED_TO).or_else(|| value(annotation::PROVISIONED_BY)).unwrap_or(driver);
    let error = all
        .attempt_error("provisioner", &volume.metadata.name)
        .or_else(|| all.last_warning(volume, &[reason::VOLUME_FAILED_DELETE]));
    let message = format!("claim {claim} was deleted; reclaim policy Delete removes the volume");
    Step::waits(name, message, format!("the provisioner of {provisioner}")).with_error(error)
}
