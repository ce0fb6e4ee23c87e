//! The steps of a pod: scheduling, its claims, attaching and mounting their volumes, and its deletion.

use wharf_model::Pod;
use wharf_model::pod::PodPhase;

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
