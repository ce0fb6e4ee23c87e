//! A claim's way to its volume, by the rules of the binder and the protection.

use wharf_controllers::protection::uses;
use wharf_controllers::{binder, scheduler};
use wharf_model::claim::ClaimPhase;
use wharf_model::matching::{Seeker, best, check, is_for};
use wharf_model::names::{finalizer, reason};
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind as _, PersistentVolume, PersistentVolumeClaim, StorageClass, Time};

use crate::facts::{ClaimFacts, Facts, Known};
use crate::story::{Said, Step};

/// Who binds claims.
pub(crate) const BINDER: &str = "the volume binder (persistentvolume-binder-controller)";
/// Who places pods.
pub(crate) const SCHEDULER: &str = "the scheduler";
/// Who lets claims go.
const PROTECTION: &str = "the claim protection controller (pvc-protection-controller)";
/// Whose turn it is when a volume is gone.
const RESTORE: &str = "you: delete the claim, or restore the volume object";

pub(crate) fn name(facts: &ClaimFacts) -> String {
    facts.key.as_ref().map(|key| format!("claim {key}")).unwrap_or_default()
}

/// The way of a claim to its volume, as far as it has come.
pub(crate) fn walk(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let name = name(facts);
    let claim = match &facts.claim {
        Known::There(claim) => claim,
        Known::Absent => {
            let whose = maker(facts.key.as_ref(), all);
            return vec![Step::waits(name, "there is no such claim", whose)];
        }
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
            steps.extend(bereft(&name, claim, facts, all));
            if facts.volume.there().is_some_and(|volume| volume.spec.claim_ref.is_none()) {
                steps.push(Step::waits(&name, format!("its volume {volume} names no claim"), BINDER));
            }
        }
        ClaimPhase::Lost => steps.push(lost(&name, claim, facts, all)),
        ClaimPhase::Pending | ClaimPhase::Unknown => steps.push(unbound(&name, claim, facts, all)),
    }
    steps
}

/// All of that, and on to the nodes whose pods use it.
pub(crate) fn walk_on(facts: &ClaimFacts, all: &Facts, now: Time) -> Vec<Step> {
    let mut steps = walk(facts, all);
    steps.extend(crate::changes::walk(facts, all));
    if facts.claim.there().is_some_and(|claim| claim.status.phase == ClaimPhase::Bound) {
        steps.extend(crate::attach::everywhere(facts, all, now));
    }
    steps
}

/// Who makes a claim that is not there: for a pod's own volume, the controller that makes them of its template.
fn maker(key: Option<&Key>, all: &Facts) -> &'static str {
    let is_made = |pod: &Pod| {
        let mut own = pod.spec.volumes.iter().filter(|volume| volume.persistent_volume_claim.is_none());
        own.any(|volume| pod.claim_of(volume).is_some_and(|name| key.is_some_and(|key| key.name == name)))
    };
    match all.pod.there().is_some_and(is_made) {
        true => "the ephemeral volume controller",
        false => "whoever is to make it",
    }
}

/// Why a claim that was bound has no volume any more, by the binder's rules; nothing, if it has, or that is not known.
fn bereft(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Option<Step> {
    let volume = &claim.spec.volume_name;
    let step = match &facts.volume {
        _ if volume.is_empty() => {
            Step::waits(name, "it no longer names the volume that it was bound to", "you: delete the claim")
        }
        Known::Absent => Step::waits(name, format!("its volume {volume} is gone"), RESTORE),
        Known::Unknown => return None,
        Known::There(there) => {
            // By identity alone: a claim of the same name may have been made since.
            let other = there.spec.claim_ref.as_ref().filter(|other| other.uid != claim.metadata.uid)?;
            let says = format!("its volume {volume} is claim {}'s, of uid {:?}", other.key(), other.uid);
            Step::waits(name, says, "you: delete the claim, or free the volume")
        }
    };
    Some(step.after(all.warning(claim, &[reason::CLAIM_LOST, reason::CLAIM_MISBOUND])))
}

/// What has become of the volume of a lost claim.
fn lost(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Step {
    let volume = &claim.spec.volume_name;
    match (bereft(name, claim, facts, all), &facts.volume) {
        (Some(step), _) => step,
        (None, Known::Unknown) => {
            Step::unknown(name, format!("it has lost its volume {volume}, which could not be read"))
        }
        (None, _) => {
            let says = format!("its volume {volume} is there again, and it is not bound to it yet");
            Step::waits(name, says, BINDER)
        }
    }
}

/// Why a claim that is to go is still there.
pub(crate) fn deleting(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts) -> Step {
    let users: Vec<&Pod> = facts.pods.iter().flatten().filter(|pod| uses(pod, claim)).collect();
    let (going, staying): (Vec<&Pod>, Vec<&Pod>) = users.iter().partition(|pod| pod.metadata.is_deleting());
    let names = |pods: &[&Pod]| {
        let names: Vec<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
        names.join(", ")
    };
    let kept = claim.metadata.finalizers.join(", ");
    let says = format!("it is being deleted, and kept by {kept}");
    let guarded = claim.metadata.has_finalizer(finalizer::CLAIM_PROTECTION);
    let step = match (&facts.pods, going.first()) {
        (None, _) if guarded => {
            Step::unknown(name, format!("{says}; whether a pod still uses it is not known"))
        }
        _ if !staying.is_empty() => {
            let says = format!("it is being deleted, and still used by pod {}", names(&staying));
            Step::waits(name, says, "you: delete these pods; ended ones count too")
        }
        (_, Some(first)) => {
            let says =
                format!("it is being deleted, and still used by pod {}, which is going", names(&going));
            Step::waits(name, says, format!("node {} (kubelet)", first.spec.node_name))
        }
        _ if guarded => Step::waits(name, says, PROTECTION),
        _ => Step::waits(name, says, "whoever put these finalizers there"),
    };
    step.since(claim.metadata.deletion_timestamp)
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
            Step::waits(name, says, placer(pod)).after(unscheduled(pod))
        }
    }
}

/// Who places a pod: no scheduler does while it has a gate, and ours no pod that names another.
pub(crate) fn placer(pod: &Pod) -> String {
    let gates: Vec<&str> = pod.spec.scheduling_gates.iter().map(|gate| gate.name.as_str()).collect();
    match pod.spec.scheduler_name.as_str() {
        _ if !gates.is_empty() => {
            format!("whoever is to take away its scheduling gates: {}", gates.join(", "))
        }
        "" | scheduler::COMPONENT => SCHEDULER.to_owned(),
        other => format!("{SCHEDULER} {other}"),
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
