//! A pod's way to its volumes.

use wharf_model::Time;
use wharf_model::pod::PodPhase;
use wharf_model::whole::Pod;

use crate::facts::{Facts, Known};
use crate::story::{State, Step};
use crate::{attach, changes, claim};

/// The way of a pod, as far as it has come.
pub(crate) fn walk(facts: &Facts, now: Time) -> Vec<Step> {
    let pod = match &facts.pod {
        Known::There(pod) => pod,
        Known::Absent => return vec![Step::waits("pod", "there is no such pod", "whoever is to make it")],
        Known::Unknown => return vec![Step::unknown("pod", "it could not be read")],
    };
    let name = format!("pod {}", wharf_model::Kind::key(pod));
    if pod.has_ended() && !pod.metadata.is_deleting() {
        return vec![Step::done(name, format!("it has ended ({})", pod.status.phase))];
    }
    let node = &pod.spec.node_name;
    if pod.metadata.is_deleting() && !node.is_empty() {
        return deleting(&name, pod, facts);
    }
    let claims = facts.claims.iter().flat_map(|claim| claim::walk(claim, facts));
    let changes = facts.claims.iter().flat_map(|claim| changes::walk(claim, facts));
    if node.is_empty() {
        let whose = claim::placer(pod);
        // The scheduler waits for claims, except for those that wait for it. What it said last may be older than that.
        let waits = |step: &Step| step.whose == claim::SCHEDULER || step.whose == whose;
        let (delayed, mut steps): (Vec<Step>, _) = claims.partition(waits);
        let step = Step::waits(&name, "it has no node yet", &*whose);
        steps.push(step.since(pod.metadata.creation_timestamp).after(claim::unscheduled(pod)));
        steps.extend(delayed.into_iter().chain(changes));
        return steps;
    }
    let mut steps = vec![Step::done(&name, format!("placed on node {node}"))];
    steps.extend(claims);
    for claim in &facts.claims {
        steps.extend(attach::to_node(claim, node, facts, now));
    }
    if steps.iter().all(|step| step.state == State::Done) {
        steps.extend(on_node(&name, pod, facts));
    }
    // It does not wait for these.
    steps.extend(changes);
    steps
}

/// Why a pod that is to go is still there. Its claims have no part in that, but their drivers have to unmount.
fn deleting(name: &str, pod: &Pod, facts: &Facts) -> Vec<Step> {
    let node = &pod.spec.node_name;
    let mut steps = vec![Step::done(name, format!("placed on node {node}"))];
    let mut drivers = Vec::new();
    for step in facts.claims.iter().filter_map(|claim| attach::driver_on(claim, node, facts)) {
        if !drivers.contains(&step) {
            drivers.push(step);
        }
    }
    let says = "it is being deleted: its containers end, then its volumes are unmounted";
    let error = facts.unmounting(&pod.metadata.uid).or_else(|| facts.warning(pod, &["FailedKillPod"]));
    let step = Step::waits(name, says, keeper(node, facts));
    let step = step.since(pod.metadata.deletion_timestamp).after(error);
    // Nothing is unmounted before the last container has ended.
    match pod.status.own_container_statuses().any(|status| status.state.running.is_some()) {
        true => steps.extend([step].into_iter().chain(drivers)),
        false => steps.extend(drivers.into_iter().chain([step])),
    }
    steps
}

/// Whose turn it is on a node.
fn keeper(node: &str, facts: &Facts) -> String {
    let machine = facts.nodes.get(node).and_then(|node| node.node.there());
    match machine.is_some_and(|machine| !machine.is_ready()) {
        true => format!("node {node}, which is not ready"),
        false => format!("node {node} (kubelet)"),
    }
}

/// What its node makes of it.
fn on_node(name: &str, pod: &Pod, facts: &Facts) -> Option<Step> {
    let waiting = pod.status.own_container_statuses().find_map(|status| {
        let waiting = status.state.waiting.as_ref()?;
        Some(
            format!("container {} waits: {} {}", status.name, waiting.reason, waiting.message)
                .trim_end()
                .to_owned(),
        )
    });
    let reasons =
        ["FailedMount", "FailedMapVolume", "FailedAttachVolume", "Failed", "BackOff", "VolumeResizeFailed"];
    match (pod.status.phase, waiting) {
        (PodPhase::Running, None) => Some(Step::done(name, "it runs")),
        (_, says) => {
            let says =
                says.unwrap_or_else(|| "its volumes are mounted, then its containers start".to_owned());
            let whose = keeper(&pod.spec.node_name, facts);
            let step = Step::waits(name, says, whose).since(pod.status.start_time);
            Some(step.after(facts.warning(pod, &reasons)))
        }
    }
}
