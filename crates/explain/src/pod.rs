//! A pod's way to its volumes.

use wharf_model::Time;
use wharf_model::pod::PodPhase;
use wharf_model::whole::Pod;

use crate::facts::{Facts, Known};
use crate::story::{State, Step};
use crate::{attach, claim};

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
    let claims = facts.claims.iter().flat_map(|claim| claim::walk(claim, facts));
    let changes = facts.claims.iter().flat_map(|claim| claim::changes(claim, facts));
    let node = &pod.spec.node_name;
    if node.is_empty() {
        // The scheduler waits for claims, except for those that wait for it. What it said last may be older than that.
        let (delayed, mut steps): (Vec<Step>, _) = claims.partition(|step| step.whose == claim::SCHEDULER);
        let step = Step::waits(&name, "it has no node yet", claim::SCHEDULER);
        steps.push(step.since(pod.metadata.creation_timestamp).after(claim::unscheduled(pod)));
        steps.extend(delayed.into_iter().chain(changes));
        return steps;
    }
    let mut steps = vec![Step::done(&name, format!("placed on node {node}"))];
    steps.extend(claims.chain(changes));
    if pod.metadata.is_deleting() {
        let says = "it is being deleted: its containers end, then its volumes are unmounted";
        let step = Step::waits(&name, says, format!("node {node} (kubelet)"));
        steps.push(
            step.since(pod.metadata.deletion_timestamp)
                .after(facts.warning(pod, &["FailedKillPod", "FailedUnMount"])),
        );
        return steps;
    }
    for claim in &facts.claims {
        steps.extend(attach::to_node(claim, node, facts, now));
    }
    if steps.iter().all(|step| step.state == State::Done) {
        steps.extend(on_node(&name, pod, facts));
    }
    steps
}

/// What its node makes of it.
fn on_node(name: &str, pod: &Pod, facts: &Facts) -> Option<Step> {
    let node = &pod.spec.node_name;
    let waiting = pod.status.container_statuses.iter().find_map(|status| {
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
            let machine = facts.nodes.get(node).and_then(|node| node.node.there());
            let whose = match machine.is_some_and(|machine| !machine.is_ready()) {
                true => format!("node {node}, which is not ready"),
                false => format!("node {node} (kubelet)"),
            };
            let step = Step::waits(name, says, whose).since(pod.status.start_time);
            Some(step.after(facts.warning(pod, &reasons)))
        }
    }
}
