//! The steps of a claim to its volume, and its deletion, by the rules of the binder and the claim protection
//! controller.

use wharf_controllers::protection::pod_uses_claim;
use wharf_controllers::{binder, scheduler};
use wharf_model::Pod;
use wharf_model::claim::ClaimPhase;
use wharf_model::matching::{MatchFor, check_requested_volume, find_matching_volume, is_reserved_for};
use wharf_model::names::{finalizer, reason};
use wharf_model::snapshot::names;
use wharf_model::{Key, Kind as _, PersistentVolume, PersistentVolumeClaim, StorageClass};

use crate::explanation::{ReportedError, Step};
use crate::facts::{ClaimFacts, Facts, Lookup};

/// Binds claims to volumes.
pub(crate) const BINDER: &str = "the volume binder (persistentvolume-binder-controller)";
/// Assigns pods to nodes.
pub(crate) const SCHEDULER: &str = "the scheduler";
/// Removes the finalizer that protects claims in use.
const PROTECTION: &str = "the claim protection controller (pvc-protection-controller)";
/// The user's options when the PersistentVolume is gone.
const RESTORE: &str = "you to delete the claim, or restore the PersistentVolume";

pub(crate) fn name(facts: &ClaimFacts) -> String {
    facts.key.as_ref().map(|key| format!("claim {key}")).unwrap_or_default()
}

/// The controllers that remove finalizers, for `waiting_for`. Finalizers that Kubernetes and the sidecars do not use
/// belong to whichever controller set them.
pub(crate) fn finalizer_owners(finalizers: &[String]) -> String {
    let owner = |finalizer: &str| match finalizer {
        finalizer::CLAIM_PROTECTION => "claim protection controller",
        finalizer::VOLUME_PROTECTION => "volume protection controller",
        finalizer::IN_TREE_DELETION => "in-tree volume plugin",
        finalizer::PROVISIONER | finalizer::CLONING_PROTECTION | finalizer::SNAPSHOT_SOURCE_PROTECTION => {
            "provisioner"
        }
        names::CLAIM_PROTECTION
        | names::AS_SOURCE_PROTECTION
        | names::BOUND_PROTECTION
        | names::IN_GROUP_PROTECTION => "snapshot controller",
        names::CONTENT_PROTECTION => "snapshotter",
        other if other.starts_with("external-attacher/") => "attacher",
        _ => "the controller that set it",
    };
    let owners = finalizers.iter().map(|finalizer| format!("{} (finalizer {finalizer})", owner(finalizer)));
    owners.collect::<Vec<_>>().join(", ")
}

/// The steps of a claim to its volume, up to the first that is not done.
pub(crate) fn steps(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let name = name(facts);
    let claim = match &facts.claim {
        Lookup::Found(claim) => claim,
        Lookup::Absent => {
            let key = facts.key.as_ref();
            let message = match key {
                Some(key) => format!("PersistentVolumeClaim {key} does not exist"),
                None => "does not exist".to_owned(),
            };
            return vec![Step::waits(name, message, claim_creator(key, all))];
        }
        Lookup::Unknown => return vec![Step::unknown(name, "could not be read")],
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
            // The binder has not reacted yet.
            steps.extend(missing_volume(&name, claim, facts, all));
            if facts.volume.found().is_some_and(|volume| volume.spec.claim_ref.is_none()) {
                steps.push(Step::waits(&name, format!("PersistentVolume {volume} has no claimRef"), BINDER));
            }
        }
        ClaimPhase::Lost => steps.push(lost(&name, claim, facts, all)),
        ClaimPhase::Pending | ClaimPhase::Unknown => steps.push(unbound(&name, claim, facts, all)),
    }
    steps
}

/// The steps of a claim to its volume, and of the volume to the nodes whose pods use it.
pub(crate) fn steps_to_nodes(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let mut steps = steps(facts, all);
    steps.extend(crate::changes::steps(facts, all));
    if facts.claim.found().is_some_and(|claim| claim.status.phase == ClaimPhase::Bound) {
        steps.extend(crate::attach::to_all_nodes(facts, all));
    }
    steps
}

/// Who creates a claim that does not exist: for a pod's ephemeral volume, the controller that does so from its
/// template.
fn claim_creator(key: Option<&Key>, all: &Facts) -> &'static str {
    let is_ephemeral = |pod: &Pod| {
        let mut own = pod.spec.volumes.iter().filter(|volume| volume.persistent_volume_claim.is_none());
        own.any(|volume| pod.claim_name(volume).is_some_and(|name| key.is_some_and(|key| key.name == name)))
    };
    match all.pod.found().is_some_and(is_ephemeral) {
        true => "the ephemeral volume controller",
        false => "you to create it",
    }
}

/// Why a claim that was bound no longer has a volume, by the binder's rules; `None` if it has one, or if that is
/// unknown.
fn missing_volume(
    name: &str,
    claim: &PersistentVolumeClaim,
    facts: &ClaimFacts,
    all: &Facts,
) -> Option<Step> {
    let volume = &claim.spec.volume_name;
    let step = match &facts.volume {
        _ if volume.is_empty() => {
            Step::waits(name, "was bound, but spec.volumeName is empty now", "you to delete the claim")
        }
        Lookup::Absent => Step::waits(name, format!("PersistentVolume {volume} no longer exists"), RESTORE),
        Lookup::Unknown => return None,
        Lookup::Found(found) => {
            let other =
                found.spec.claim_ref.as_ref().filter(|_| !found.references_uid_of(&claim.metadata))?;
            let message =
                format!("PersistentVolume {volume} belongs to claim {} (uid {:?})", other.key(), other.uid);
            Step::waits(name, message, "you to delete the claim, or free the volume")
        }
    };
    Some(step.with_error(all.last_warning(claim, &[reason::CLAIM_LOST, reason::CLAIM_MISBOUND])))
}

/// Why a claim is in phase Lost.
fn lost(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Step {
    let volume = &claim.spec.volume_name;
    match (missing_volume(name, claim, facts, all), &facts.volume) {
        (Some(step), _) => step,
        (None, Lookup::Unknown) => {
            Step::unknown(name, format!("lost PersistentVolume {volume}, which could not be read"))
        }
        (None, _) => {
            let message =
                format!("PersistentVolume {volume} exists again, but is not bound to the claim yet");
            Step::waits(name, message, BINDER)
        }
    }
}

/// Why a claim in deletion still exists.
pub(crate) fn deleting(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts) -> Step {
    let users: Vec<&Pod> = facts.pods.iter().flatten().filter(|pod| pod_uses_claim(pod, claim)).collect();
    let (deleted, remaining): (Vec<&Pod>, Vec<&Pod>) =
        users.iter().partition(|pod| pod.metadata.is_deleting());
    let list = |pods: &[&Pod]| {
        let names: Vec<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
        names.join(", ")
    };
    let finalizers = &claim.metadata.finalizers;
    let message = format!("being deleted; held by finalizers {}", finalizers.join(", "));
    let protected = claim.metadata.has_finalizer(finalizer::CLAIM_PROTECTION);
    let step = match (&facts.pods, deleted.first()) {
        (None, _) if protected => {
            Step::unknown(name, format!("{message}; whether a pod still uses it is unknown"))
        }
        _ if !remaining.is_empty() => {
            let message = format!("being deleted, but still used by pod {}", list(&remaining));
            Step::waits(name, message, "you to delete these pods (finished pods count too)")
        }
        (_, Some(first)) => {
            let message = format!("being deleted, but still used by terminating pod {}", list(&deleted));
            Step::waits(name, message, format!("kubelet on node {}", first.node_name))
        }
        _ if protected => Step::waits(name, message, PROTECTION),
        _ => Step::waits(name, message, finalizer_owners(finalizers)),
    };
    step.since(claim.metadata.deletion_timestamp)
}

/// What an unbound claim waits for.
fn unbound(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Step {
    let since = claim.metadata.creation_timestamp;
    let step = |message: String, waiting_for: &str| Step::waits(name, message, waiting_for).since(since);
    let mismatch = all.last_warning(claim, &["VolumeMismatch", "FailedBinding"]);
    if !claim.spec.volume_name.is_empty() {
        let volume = &claim.spec.volume_name;
        return match &facts.volume {
            Lookup::Absent => {
                step(format!("requests PersistentVolume {volume}, which does not exist"), "you to create it")
            }
            Lookup::Unknown => {
                Step::unknown(name, format!("requests PersistentVolume {volume}, which could not be read"))
            }
            Lookup::Found(found) => {
                let (message, waiting_for) = requested_volume(claim, found, volume);
                step(message, waiting_for).with_error(mismatch)
            }
        };
    }
    if let (Some(class), Lookup::Unknown) = (claim.class().filter(|class| !class.is_empty()), &facts.class) {
        return Step::unknown(name, format!("StorageClass {class} could not be read"));
    }
    let delayed = facts.class.found().is_some_and(StorageClass::waits_for_first_consumer);
    let candidates = facts.candidates.iter().flatten();
    if let Some(volume) = find_matching_volume(claim, candidates, MatchFor::Binder { delayed }) {
        let message =
            format!("PersistentVolume {} matches, but is not bound to the claim yet", volume.metadata.name);
        return step(message, BINDER);
    }
    // That no volume matches is certain only if all could be read.
    let none_matches = |message: String, waiting_for: &str| match facts.candidates {
        Some(_) => step(format!("{message}, and no existing PersistentVolume matches"), waiting_for),
        None => {
            Step::unknown(name, format!("{message}; whether an existing PersistentVolume matches is unknown"))
        }
    };
    match (claim.class(), facts.class.found()) {
        (None, _) => match facts.default_class {
            Some(false) => none_matches(
                "storageClassName is not set, no default StorageClass exists".to_owned(),
                "you to set storageClassName, or mark a StorageClass as the default",
            ),
            Some(true) => step("the default StorageClass is about to be set".to_owned(), BINDER),
            None => Step::unknown(
                name,
                "storageClassName is not set; whether a default StorageClass exists is unknown",
            ),
        },
        (Some(""), _) => none_matches(
            "storageClassName is empty, which disables dynamic provisioning".to_owned(),
            "you to create a PersistentVolume without a class",
        )
        .with_error(mismatch),
        (Some(class), None) => none_matches(
            format!("StorageClass {class} does not exist"),
            "you to create the StorageClass or a matching PersistentVolume, or recreate the claim with another class",
        ),
        (Some(_), Some(_)) if delayed && claim.selected_node().is_none() => {
            waiting_for_pod(name, claim, facts).since(since)
        }
        (Some(_), Some(class)) => match binder::csi_provisioner(&class.provisioner) {
            Some(driver) => provisioning(name, claim, driver, facts, all).since(since),
            None => none_matches(
                format!(
                    "StorageClass {} ({}) does not provision volumes dynamically",
                    class.metadata.name, class.provisioner
                ),
                "you to create a PersistentVolume of that class",
            )
            .with_error(all.last_warning(claim, &[reason::PROVISIONING_FAILED])),
        },
    }
}

/// Why a claim is not bound to the volume that it requests by name, by the binder's rules.
fn requested_volume(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    name: &str,
) -> (String, &'static str) {
    match (&volume.spec.claim_ref, check_requested_volume(volume, claim)) {
        (Some(other), _) if !is_reserved_for(volume, claim) => {
            let message = format!("requests PersistentVolume {name}, which belongs to claim {}", other.key());
            (message, "you to request another volume, or free this one")
        }
        (None, Err(mismatch)) => {
            let message = format!("requests PersistentVolume {name}, which does not match: {mismatch}");
            (message, "you to recreate the claim for a volume that matches")
        }
        _ => (format!("requests PersistentVolume {name}, but is not bound to it yet"), BINDER),
    }
}

/// What a claim of a WaitForFirstConsumer class without a selected node waits for.
fn waiting_for_pod(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts) -> Step {
    let class = claim.class().unwrap_or_default();
    let Some(pods) = &facts.pods else {
        let message = format!("StorageClass {class} uses WaitForFirstConsumer; pods could not be read");
        return Step::unknown(name, message);
    };
    let unscheduled = |pod: &&Pod| pod.node_name.is_empty() && !pod.has_ended();
    match pods.iter().find(unscheduled) {
        None if pods.is_empty() => {
            let message =
                format!("StorageClass {class} uses WaitForFirstConsumer, and no pod uses this claim yet");
            Step::waits(name, message, "you to create a pod that uses it")
        }
        None => {
            let message = format!(
                "StorageClass {class} uses WaitForFirstConsumer, but the pod was assigned to a node without the \
                 scheduler"
            );
            let waiting_for =
                "Wharf's scheduler; with another scheduler, you to recreate the pod without spec.nodeName";
            Step::waits(name, message, waiting_for)
        }
        Some(pod) => {
            let message = format!(
                "StorageClass {class} uses WaitForFirstConsumer, and pod {} is not scheduled yet",
                pod.metadata.name
            );
            Step::waits(name, message, responsible_scheduler(pod)).with_error(scheduling_error(pod))
        }
    }
}

/// Which scheduler assigns a pod to a node: none while the pod has scheduling gates, and not ours if it names another.
pub(crate) fn responsible_scheduler(pod: &Pod) -> String {
    let gates: Vec<&str> = pod.spec.scheduling_gates.iter().map(|gate| gate.name.as_str()).collect();
    match pod.spec.scheduler_name.as_str() {
        _ if !gates.is_empty() => {
            format!("removal of its scheduling gates: {}", gates.join(", "))
        }
        "" | scheduler::COMPONENT => SCHEDULER.to_owned(),
        other => format!("scheduler {other}"),
    }
}

/// The scheduler's last error for a pod that it cannot schedule.
pub(crate) fn scheduling_error(pod: &Pod) -> Option<ReportedError> {
    let condition = pod.status.conditions.iter().find(|condition| condition.kind == "PodScheduled")?;
    (condition.status == "False").then(|| ReportedError {
        source: format!("pod {}", condition.reason),
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
        return Step::waits(name, format!("provisioning by {driver} has not been requested yet"), BINDER)
            .with_error(all.last_warning(claim, &[reason::PROVISIONING_FAILED]));
    }
    let for_node = claim.selected_node().map(|node| format!(" for node {node}")).unwrap_or_default();
    let hint = match facts.driver {
        Lookup::Absent => format!(" (CSIDriver {driver} does not exist: is the driver installed?)"),
        Lookup::Found(_) | Lookup::Unknown => String::new(),
    };
    let error = all
        .attempt_error("provisioner", &claim.key().to_string())
        .or_else(|| all.last_warning(claim, &[reason::PROVISIONING_FAILED]));
    let message = format!("provisioning requested from {driver}{for_node}{hint}");
    Step::waits(name, message, format!("the provisioner of {driver}")).with_error(error)
}
