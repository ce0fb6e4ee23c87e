//! The steps of a pod: scheduling, its claims, attaching and mounting their volumes, and its deletion.

use std::collections::BTreeMap;

use wharf_model::container::ContainerStatus;
use wharf_model::pod::PodPhase;
use wharf_model::{PersistentVolume, Pod, UniqueVolumeName};

use crate::explanation::{State, Step};
use crate::facts::{Facts, Lookup};
use crate::{attach, changes, claim};

/// The steps of the pod, up to the first that is not done.
pub(crate) fn steps(facts: &Facts) -> Vec<Step> {
    let pod = match &facts.pod {
        Lookup::Found(pod) => pod,
        Lookup::Absent => return vec![Step::waits("pod", "does not exist", "you to create it")],
        Lookup::Unknown => return vec![Step::unknown("pod", "could not be read")],
    };
    let name = format!("pod {}", wharf_model::Kind::key(pod));
    if pod.has_ended() && !pod.metadata.is_deleting() {
        return vec![Step::done(name, format!("finished ({})", pod.phase))];
    }
    let node = &pod.node_name;
    if pod.metadata.is_deleting() && !node.is_empty() {
        return deletion_steps(&name, pod, facts);
    }
    let claims = facts.claims.iter().flat_map(|claim| claim::steps(claim, facts));
    let changes = facts.claims.iter().flat_map(|claim| changes::steps(claim, facts));
    if node.is_empty() {
        let waiting_for = claim::responsible_scheduler(pod);
        // The scheduler waits for all claims, except for those that wait for the scheduler. The scheduler's last error
        // may be older than the claims' state.
        let waits_for_scheduler =
            |step: &Step| step.waiting_for == claim::SCHEDULER || step.waiting_for == waiting_for;
        let (delayed, mut steps): (Vec<Step>, _) = claims.partition(waits_for_scheduler);
        let step = Step::waits(&name, "not scheduled to a node yet", &*waiting_for);
        steps.push(step.since(pod.metadata.creation_timestamp).with_error(claim::scheduling_error(pod)));
        steps.extend(delayed.into_iter().chain(changes));
        return steps;
    }
    let mut steps = vec![Step::done(&name, format!("scheduled to node {node}"))];
    steps.extend(claims);
    for claim in &facts.claims {
        steps.extend(attach::to_node(claim, node, facts));
    }
    if steps.iter().all(|step| step.state == State::Done) {
        if may_wait_for_volumes(pod) {
            steps.extend(same_handles(facts).into_iter().map(|step| step.since(pod.status.start_time)));
        }
        steps.extend(container_step(&name, pod, facts));
    }
    // Expansions and modifications do not block the pod.
    steps.extend(changes);
    steps
}

/// The steps of a pod that is being deleted. Its claims are left out, but the drivers of its volumes have to unmount.
fn deletion_steps(name: &str, pod: &Pod, facts: &Facts) -> Vec<Step> {
    let node = &pod.node_name;
    let mut steps = vec![Step::done(name, format!("scheduled to node {node}"))];
    let mut drivers = Vec::new();
    for step in facts.claims.iter().filter_map(|claim| attach::unregistered_driver(claim, node, facts)) {
        if !drivers.contains(&step) {
            drivers.push(step);
        }
    }
    let message = "being deleted: its containers are stopped, then its volumes are unmounted";
    let error =
        facts.unmount_error(&pod.metadata.uid).or_else(|| facts.last_warning(pod, &["FailedKillPod"]));
    let step = Step::waits(name, message, kubelet_on(node, facts));
    let step = step.since(pod.metadata.deletion_timestamp).with_error(error);
    // Volumes are unmounted only after the last container has stopped.
    match pod.status.own_container_statuses().any(|status| status.state.running.is_some()) {
        true => steps.extend([step].into_iter().chain(drivers)),
        false => steps.extend(drivers.into_iter().chain([step])),
    }
    steps
}

/// Whether the volumes of a scheduled pod may not be mounted yet: the kubelet mounts them before it pulls images.
fn may_wait_for_volumes(pod: &Pod) -> bool {
    let reasons = ["", "ContainerCreating", "PodInitializing"];
    let waiting = |status: &ContainerStatus| {
        status.state.waiting.as_ref().is_some_and(|waiting| reasons.contains(&waiting.reason.as_str()))
    };
    pod.phase == PodPhase::Pending && pod.status.own_container_statuses().all(waiting)
}

/// The pod's PersistentVolumes that have the same driver and volume handle. The kubelet identifies volumes by these two: it
/// mounts one of them, and some versions then wait for the others without an event that says why.
fn same_handles(facts: &Facts) -> Vec<Step> {
    let mut same: BTreeMap<UniqueVolumeName, BTreeMap<&str, String>> = BTreeMap::new();
    for claim in &facts.claims {
        let Some(PersistentVolume { metadata, spec, .. }) = claim.volume.found() else { continue };
        let Some(unique) = UniqueVolumeName::from_spec(spec) else { continue };
        same.entry(unique).or_default().insert(&metadata.name, claim::name(claim));
    }
    let step = |(UniqueVolumeName { driver, handle }, volumes): (_, BTreeMap<&str, String>)| {
        let names: Vec<&str> = volumes.keys().copied().collect();
        let claims: Vec<&str> = volumes.values().map(String::as_str).collect();
        let message = format!(
            "have the same driver {driver} and volume handle {handle:?} (bound to {}): for the kubelet they are one volume, \
             and it mounts only one of them",
            claims.join(", ")
        );
        let waiting_for = "you to use only one of the claims, or to create the other PersistentVolumes again with another \
                           volumeHandle";
        Step::waits(format!("volumes {}", names.join(", ")), message, waiting_for)
    };
    same.into_iter().filter(|(_, volumes)| volumes.len() > 1).map(step).collect()
}

/// The kubelet of a node, as the component that has to act.
fn kubelet_on(node: &str, facts: &Facts) -> String {
    let object = facts.nodes.get(node).and_then(|node| node.node.found());
    match object.is_some_and(|object| !object.is_ready()) {
        true => format!("kubelet on node {node}, which is not ready"),
        false => format!("kubelet on node {node}"),
    }
}

/// Mounting the pod's volumes and running its containers, once its volumes are attached.
fn container_step(name: &str, pod: &Pod, facts: &Facts) -> Option<Step> {
    let waiting = pod.status.own_container_statuses().find_map(|status| {
        let waiting = status.state.waiting.as_ref()?;
        Some(
            format!("container {} is waiting: {} {}", status.name, waiting.reason, waiting.message)
                .trim_end()
                .to_owned(),
        )
    });
    let reasons =
        ["FailedMount", "FailedMapVolume", "FailedAttachVolume", "Failed", "BackOff", "VolumeResizeFailed"];
    match (pod.phase, waiting) {
        (PodPhase::Running, None) => Some(Step::done(name, "running")),
        (_, message) => {
            let message =
                message.unwrap_or_else(|| "mounting its volumes, then starting its containers".to_owned());
            let waiting_for = kubelet_on(&pod.node_name, facts);
            let step = Step::waits(name, message, waiting_for).since(pod.status.start_time);
            Some(step.with_error(facts.last_warning(pod, &reasons)))
        }
    }
}
