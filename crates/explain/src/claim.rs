//! A claim's way to its volume, and a volume's to its end.

use wharf_controllers::binder;
use wharf_controllers::protection::uses;
use wharf_model::claim::{ClaimPhase, ResizeStatus};
use wharf_model::matching::{Seeker, best, check, is_for};
use wharf_model::names::{annotation, condition, reason};
use wharf_model::volume::{ReclaimPolicy, VolumePhase};
use wharf_model::whole::Pod;
use wharf_model::{Kind as _, PersistentVolume, PersistentVolumeClaim, StorageClass, Time};

use crate::facts::{ClaimFacts, Facts, Known};
use crate::story::{Said, Step};

/// Who binds claims.
pub(crate) const BINDER: &str = "the volume binder (persistentvolume-binder-controller)";
/// Who places pods.
pub(crate) const SCHEDULER: &str = "the scheduler";
/// Whose turn it is when a volume is gone.
const RESTORE: &str = "you: delete the claim, or restore the volume object";
/// Whose turn it is when a volume stays although its claim is gone.
const TAKE_BACK: &str = "you: delete it, or clear its claimRef for another claim";

fn name(facts: &ClaimFacts) -> String {
    facts.key.as_ref().map(|key| format!("claim {key}")).unwrap_or_default()
}

/// The way of a claim to its volume, as far as it has come.
pub(crate) fn walk(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let name = name(facts);
    let claim = match &facts.claim {
        Known::There(claim) => claim,
        Known::Absent => return vec![Step::waits(name, "there is no such claim", "whoever is to make it")],
        Known::Unknown => return vec![Step::unknown(name, "it could not be read")],
    };
    let mut steps = Vec::new();
    if claim.metadata.is_deleting() {
        steps.push(deleting(&name, claim, facts));
    }
    match claim.status.phase {
        ClaimPhase::Bound => {
            let size = claim.status.capacity.storage.map(|size| format!(", {size}")).unwrap_or_default();
            let volume = &claim.spec.volume_name;
            steps.push(Step::done(&name, format!("bound to volume {volume}{size}")));
            // The binder has not noticed yet.
            if matches!(facts.volume, Known::Absent) {
                steps.push(Step::waits(&name, format!("its volume {volume} is gone"), RESTORE));
            }
        }
        ClaimPhase::Lost => steps.push(lost(&name, claim, facts, all)),
        ClaimPhase::Pending | ClaimPhase::Unknown => steps.push(unbound(&name, claim, facts, all)),
    }
    steps
}

/// What changes about a claim that is bound, whoever uses it.
pub(crate) fn changes(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let bound = |claim: &&PersistentVolumeClaim| claim.status.phase == ClaimPhase::Bound;
    let Some(claim) = facts.claim.there().filter(bound) else { return Vec::new() };
    let name = name(facts);
    growing(&name, claim, facts, all).into_iter().chain(modifying(&name, claim, all)).collect()
}

/// All of that, and on to the nodes whose pods use it.
pub(crate) fn walk_on(facts: &ClaimFacts, all: &Facts, now: Time) -> Vec<Step> {
    let mut steps = walk(facts, all);
    steps.extend(changes(facts, all));
    if facts.claim.there().is_some_and(|claim| claim.status.phase == ClaimPhase::Bound) {
        steps.extend(crate::attach::everywhere(facts, all, now));
    }
    steps
}

/// What has become of the volume of a lost claim, by the binder's rules.
fn lost(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Step {
    let volume = &claim.spec.volume_name;
    let step = match &facts.volume {
        _ if volume.is_empty() => {
            Step::waits(name, "it no longer names the volume that it was bound to", "you: delete the claim")
        }
        Known::Absent => Step::waits(name, format!("its volume {volume} is gone"), RESTORE),
        Known::Unknown => {
            Step::unknown(name, format!("it has lost its volume {volume}, which could not be read"))
        }
        Known::There(there) => match &there.spec.claim_ref {
            // By identity alone: a claim of the same name may have been made since.
            Some(other) if other.uid != claim.metadata.uid => {
                let says = format!("its volume {volume} is claim {}'s, of uid {:?}", other.key(), other.uid);
                Step::waits(name, says, "you: delete the claim, or free the volume")
            }
            _ => {
                let says = format!("its volume {volume} is there again, and it is not bound to it yet");
                return Step::waits(name, says, BINDER);
            }
        },
    };
    step.after(all.warning(claim, &[reason::CLAIM_LOST, reason::CLAIM_MISBOUND]))
}

/// Why a claim that is to go is still there.
fn deleting(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts) -> Step {
    let since = claim.metadata.deletion_timestamp;
    let users = facts.pods.iter().flatten().filter(|pod| uses(pod, claim));
    let pods: Vec<String> = users.map(|pod| pod.metadata.name.clone()).collect();
    let kept = claim.metadata.finalizers.join(", ");
    match (facts.pods.is_some(), pods.is_empty()) {
        (true, false) => {
            let says = format!("it is being deleted, and still used by pod {}", pods.join(", "));
            Step::waits(name, says, "you: delete these pods; ended ones count too").since(since)
        }
        _ => Step::waits(
            name,
            format!("it is being deleted, and kept by {kept}"),
            "whoever put these finalizers there",
        )
        .since(since),
    }
}

/// What a claim without a volume waits for.
fn unbound(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Step {
    let since = claim.metadata.creation_timestamp;
    let step = |says: String, whose: &str| Step::waits(name, says, whose).since(since);
    let mismatch = all.warning(claim, &["VolumeMismatch", "FailedBinding"]);
    if !claim.spec.volume_name.is_empty() {
        let volume = &claim.spec.volume_name;
        return match &facts.volume {
            Known::Absent => {
                step(format!("it asks for volume {volume}, which does not exist"), "whoever is to make it")
            }
            Known::Unknown => {
                Step::unknown(name, format!("it asks for volume {volume}, which could not be read"))
            }
            Known::There(there) => {
                let (says, whose) = elsewhere(claim, there, volume);
                step(says, whose).after(mismatch)
            }
        };
    }
    if let (Some(class), Known::Unknown) = (claim.class().filter(|class| !class.is_empty()), &facts.class) {
        return Step::unknown(name, format!("its storage class {class} could not be read"));
    }
    let delayed = facts.class.there().is_some_and(StorageClass::waits_for_first_consumer);
    let candidates = facts.candidates.iter().flatten();
    if let Some(volume) = best(claim, candidates, Seeker::Binder { delayed }) {
        let says = format!("volume {} is there for it, and it is not bound to it yet", volume.metadata.name);
        return step(says, BINDER);
    }
    // That no volume fits is known only if all could be read.
    let none_fits = |says: String, whose: &str| match facts.candidates {
        Some(_) => step(format!("{says}, and no volume that is there fits"), whose),
        None => Step::unknown(name, format!("{says}; whether a volume that is there fits is not known")),
    };
    match (claim.class(), facts.class.there()) {
        (None, _) => match facts.default_class {
            Some(false) => none_fits(
                "it names no storage class, there is no default one".to_owned(),
                "you: name a class, or make one the default",
            ),
            Some(true) => step("the default class is about to be set".to_owned(), BINDER),
            None => Step::unknown(name, "it names no storage class; whether there is a default is not known"),
        },
        (Some(""), _) => none_fits(
            "it wants a volume that somebody made by hand".to_owned(),
            "you: make a PersistentVolume without a class",
        )
        .after(mismatch),
        (Some(class), None) => none_fits(
            format!("its storage class {class} does not exist"),
            "you: make the class, or a PersistentVolume of it, or the claim anew with another",
        ),
        (Some(_), Some(_)) if delayed && claim.selected_node().is_none() => {
            waiting_for_pod(name, claim, facts).since(since)
        }
        (Some(_), Some(class)) => match binder::provisioner(&class.provisioner) {
            Some(driver) => provisioning(name, claim, driver, facts, all).since(since),
            None => none_fits(
                format!("nobody makes volumes of its class {} ({})", class.metadata.name, class.provisioner),
                "you: make a PersistentVolume of that class",
            )
            .after(all.warning(claim, &[reason::PROVISIONING_FAILED])),
        },
    }
}

/// What keeps a claim from the volume that it asks for, by the binder's rules.
fn elsewhere(claim: &PersistentVolumeClaim, volume: &PersistentVolume, name: &str) -> (String, &'static str) {
    match (&volume.spec.claim_ref, check(volume, claim)) {
        (Some(other), _) if !is_for(volume, claim) => {
            let says = format!("it asks for volume {name}, which is claim {}'s", other.key());
            (says, "you: ask for another volume, or free this one")
        }
        (None, Err(mismatch)) => {
            let says = format!("it asks for volume {name}, which does not fit: {mismatch}");
            (says, "you: make the claim anew, for a volume that fits")
        }
        _ => (format!("it asks for volume {name}, and is not bound to it yet"), BINDER),
    }
}

/// The class waits for a pod.
fn waiting_for_pod(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts) -> Step {
    let class = claim.class().unwrap_or_default();
    let Some(pods) = &facts.pods else {
        return Step::unknown(name, format!("class {class} waits for a pod; pods could not be read"));
    };
    let unplaced = |pod: &&Pod| pod.spec.node_name.is_empty() && !pod.has_ended();
    match pods.iter().find(unplaced) {
        None if pods.is_empty() => {
            let says =
                format!("class {class} makes volumes where their pod is, and no pod uses this claim yet");
            Step::waits(name, says, "you: make a pod that uses it")
        }
        None => {
            let says = format!("class {class} waits for the scheduler, and its pod was placed without it");
            let turn = "Wharf's scheduler; with another one it is you: make the pod without spec.nodeName";
            Step::waits(name, says, turn)
        }
        Some(pod) => {
            let says = format!("class {class} waits until pod {} has a node", pod.metadata.name);
            Step::waits(name, says, SCHEDULER).after(unscheduled(pod))
        }
    }
}

/// What the scheduler said of a pod that it cannot place.
pub(crate) fn unscheduled(pod: &Pod) -> Option<Said> {
    let condition = pod.status.conditions.iter().find(|condition| condition.kind == "PodScheduled")?;
    (condition.status == "False").then(|| Said {
        by: format!("pod {}", condition.reason),
        text: condition.message.clone(),
        at: condition.last_transition_time,
    })
}

fn provisioning(
    name: &str,
    claim: &PersistentVolumeClaim,
    driver: &str,
    facts: &ClaimFacts,
    all: &Facts,
) -> Step {
    if claim.provisioner().is_none() {
        return Step::waits(name, format!("nobody has asked {driver} for a volume yet"), BINDER)
            .after(all.warning(claim, &[reason::PROVISIONING_FAILED]));
    }
    let near = claim.selected_node().map(|node| format!(" for node {node}")).unwrap_or_default();
    let described = match facts.driver {
        Known::Absent => format!(" (no CSIDriver of that name: does {driver} run here?)"),
        Known::There(_) | Known::Unknown => String::new(),
    };
    let error = all
        .attempt("provisioner", &claim.key().to_string())
        .or_else(|| all.warning(claim, &[reason::PROVISIONING_FAILED]));
    let says = format!("{driver} was asked for a volume{near}{described}");
    Step::waits(name, says, format!("the provisioner of {driver}")).after(error)
}

/// How far an expansion has come.
fn growing(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Option<Step> {
    let (wanted, there) = (claim.requested()?, claim.status.capacity.storage?);
    if wanted <= there {
        return None;
    }
    let driver =
        facts.volume.there().and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.driver.as_str());
    let resizer = format!("the resizer of {}", driver.unwrap_or("its driver"));
    let what = format!("it has {there} and wants {wanted}");
    let attempt = || all.attempt("resizer", &claim.key().to_string());
    let failed = || {
        attempt()
            .or_else(|| said(claim, condition::CONTROLLER_RESIZE_ERROR))
            .or_else(|| all.warning(claim, &[reason::VOLUME_RESIZE_FAILED]))
    };
    let on_node = || said(claim, condition::NODE_RESIZE_ERROR);
    let step = match claim.status.allocated_resource_statuses.storage {
        None | Some(ResizeStatus::Unknown) => Step::waits(name, what, resizer).after(failed()),
        Some(ResizeStatus::ControllerResizeInProgress) => {
            Step::waits(name, format!("{what}: the driver expands it"), resizer).after(failed())
        }
        Some(ResizeStatus::ControllerResizeInfeasible) => {
            Step::waits(name, format!("{what}: the driver says that it never can"), "you: ask for less")
                .after(failed())
        }
        Some(ResizeStatus::NodeResizePending) => {
            let says = format!("{what}: the volume has grown, its file system not yet");
            Step::waits(name, says, "the node of a pod that uses it (kubelet), or you: start one")
                .after(on_node())
        }
        Some(ResizeStatus::NodeResizeInProgress) => {
            Step::waits(name, format!("{what}: its node expands it"), "the node (kubelet)").after(on_node())
        }
        Some(ResizeStatus::NodeResizeInfeasible) => Step::waits(
            name,
            format!("{what}: the driver says on the node that it never can"),
            "you: ask for less",
        )
        .after(on_node()),
    };
    Some(step.since(begun(claim, &[condition::FILE_SYSTEM_RESIZE_PENDING, condition::RESIZING])))
}

/// Since when the first of these conditions that is there is.
fn begun(claim: &PersistentVolumeClaim, conditions: &[&str]) -> Option<Time> {
    conditions.iter().find_map(|kind| claim.status.condition(kind))?.last_transition_time
}

/// What a condition says.
fn said(claim: &PersistentVolumeClaim, kind: &str) -> Option<Said> {
    let condition = claim.status.condition(kind)?;
    let (text, at) = (condition.message.clone(), condition.last_transition_time);
    Some(Said { by: format!("condition {kind}"), text, at })
}

/// How far a change of its attributes class has come.
fn modifying(name: &str, claim: &PersistentVolumeClaim, all: &Facts) -> Option<Step> {
    let status = claim.status.modify_volume_status.as_ref()?;
    let target = &status.target_volume_attributes_class_name;
    let error = all
        .attempt("resizer", &claim.key().to_string())
        .or_else(|| said(claim, condition::MODIFY_VOLUME_ERROR))
        .or_else(|| all.warning(claim, &[reason::VOLUME_MODIFY_FAILED]));
    let says = format!("it is being changed to attributes class {target} ({})", status.status);
    let since = begun(claim, &[condition::MODIFYING_VOLUME]);
    Some(Step::waits(name, says, "the resizer of its driver").since(since).after(error))
}

/// The way of a volume, from its claim's end to its own.
pub(crate) fn walk_volume(all: &Facts, now: Time) -> Vec<Step> {
    let Some(facts) = all.claims.first() else { return Vec::new() };
    let volume = match &facts.volume {
        Known::There(volume) => volume,
        Known::Absent => {
            return vec![Step::waits("volume", "there is no such volume", "whoever is to make it")];
        }
        Known::Unknown => return vec![Step::unknown("volume", "it could not be read")],
    };
    let name = format!("volume {}", volume.metadata.name);
    let mut steps = vec![phase(&name, volume, all)];
    steps.extend(crate::attach::everywhere(facts, all, now));
    if volume.metadata.is_deleting() {
        let says = format!("it is being deleted, and kept by {}", volume.metadata.finalizers.join(", "));
        let step = Step::waits(&name, says, "whoever put these finalizers there");
        steps.push(step.since(volume.metadata.deletion_timestamp));
    }
    steps
}

fn phase(name: &str, volume: &PersistentVolume, all: &Facts) -> Step {
    let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.key().to_string()).unwrap_or_default();
    let driver = volume.spec.csi.as_ref().map_or("no CSI driver", |csi| csi.driver.as_str());
    match (volume.status.phase, volume.spec.persistent_volume_reclaim_policy) {
        (VolumePhase::Bound, _) => Step::done(name, format!("claim {claim}'s, of {driver}")),
        (VolumePhase::Available, _) if volume.spec.claim_ref.is_some() => {
            Step::done(name, format!("reserved for claim {claim}, and not bound to it"))
        }
        (VolumePhase::Available, _) => Step::done(name, "free for a claim that it fits"),
        (VolumePhase::Released, ReclaimPolicy::Delete) => {
            let provisioner = volume.metadata.annotation(annotation::PROVISIONED_BY).unwrap_or(driver);
            let error = all
                .attempt("provisioner", &volume.metadata.name)
                .or_else(|| all.warning(volume, &[reason::VOLUME_FAILED_DELETE]));
            Step::waits(
                name,
                format!("claim {claim} is gone: it is to be deleted"),
                format!("the provisioner of {provisioner}"),
            )
            .after(error)
        }
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
        (VolumePhase::Failed, ReclaimPolicy::Delete) => {
            Step::waits(name, "it could not be reclaimed", "the provisioner of its driver")
                .after(all.warning(volume, &[reason::VOLUME_FAILED_DELETE]))
        }
        // Nobody tries again.
        (VolumePhase::Failed, _) => {
            let reasons = [reason::VOLUME_FAILED_RECYCLE, reason::VOLUME_UNKNOWN_RECLAIM_POLICY];
            Step::waits(name, "it could not be reclaimed", TAKE_BACK).after(all.warning(volume, &reasons))
        }
        (VolumePhase::Pending | VolumePhase::Unknown, _) => {
            Step::waits(name, "nobody has looked at it yet", BINDER)
        }
    }
}
