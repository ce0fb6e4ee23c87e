//! The rules: the node for a pod, or why it is unschedulable. Every rule runs in upstream's order, and the first that
//! rejects a node gives the reason.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::claims::{self, PodClaims, PreFilterError};
use super::requests::{self, Requests};
use super::view::{NodeInfo, View};
use super::volumes::{FindResult, Plan, find_pod_volumes};
use super::{fit, limits, zone};

pub(super) const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
const NO_NODES: &str = "no nodes available to schedule pods";

/// The next step for a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: it is on its node, with all its volumes.
    Ignore,
    /// Bind it to this node once its volumes are bound.
    Schedule { node: String, plan: Plan },
    /// It has to wait until something changes. An empty message is not reported.
    Unschedulable { message: String, causes: BTreeSet<Cause> },
    /// An object is invalid: retry after the backoff.
    Error { message: String },
}

/// Why nodes were rejected, by the kind of change that can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// Properties of the node: taints, labels, unschedulable.
    Node,
    /// Insufficient resources.
    Resources,
    /// Problems with the claims themselves.
    Claims,
    /// A claim that another pod uses.
    InUse,
    /// Volume limits and missing drivers.
    Limits,
    /// Location of volumes, and capacity for new ones.
    Volumes,
    /// Zones of volumes.
    Zone,
}

/// Why a node was rejected.
enum FilterFailure {
    Reasons(Cause, Vec<String>),
    Error(String),
}

/// The next step for this pod.
pub(super) fn decide(view: &View) -> Step {
    if !view.pod.node_name.is_empty() {
        return preassigned(view);
    }
    if view.nodes.is_empty() {
        return Step::Unschedulable { message: NO_NODES.to_owned(), causes: [Cause::Node].into() };
    }
    let pod_claims = match claims::classify(view) {
        Ok(pod_claims) => pod_claims,
        Err(error) => return prefilter_failed(view, error),
    };
    let (requests, rwop_conflict) = (requests::of(&view.pod), claims::has_rwop_conflict(view));
    let mut fitting = Vec::new();
    let mut diagnosis = Diagnosis::default();
    for node_info in &view.nodes {
        match filter(view, &pod_claims, &requests, rwop_conflict, node_info) {
            Ok(plan) => fitting.push((node_info, plan)),
            Err(FilterFailure::Reasons(cause, reasons)) => diagnosis.add(cause, reasons),
            Err(FilterFailure::Error(message)) => return Step::Error { message },
        }
    }
    // Ties go to the first name, so that the result is deterministic.
    let best = |(node_info, _): &(&NodeInfo, Plan)| {
        (
            fit::prefer_no_schedule_count(&view.pod, node_info),
            Reverse(fit::least_allocated_score(&requests, node_info)),
            node_info.pods,
            node_info.name().to_owned(),
        )
    };
    match fitting.into_iter().min_by_key(best) {
        Some((node_info, plan)) => Step::Schedule { node: node_info.name().to_owned(), plan },
        None => diagnosis.step(view),
    }
}

fn filter(
    view: &View,
    pod_claims: &PodClaims,
    requests: &Requests,
    rwop_conflict: bool,
    node_info: &NodeInfo,
) -> Result<Plan, FilterFailure> {
    let reject = |cause, reason: &str| Err(FilterFailure::Reasons(cause, vec![reason.to_owned()]));
    if !fit::is_schedulable(&view.pod, node_info) {
        return reject(Cause::Node, fit::UNSCHEDULABLE);
    }
    if !fit::tolerates_taints(&view.pod, node_info) {
        return reject(Cause::Node, fit::TAINTED);
    }
    if !fit::matches_node_selector(&view.pod, node_info) {
        return reject(Cause::Node, fit::NOT_SELECTED);
    }
    let insufficient = fit::insufficient_resources(requests, node_info);
    if !insufficient.is_empty() {
        return Err(FilterFailure::Reasons(Cause::Resources, insufficient));
    }
    if rwop_conflict {
        return reject(Cause::InUse, IN_USE);
    }
    if let Some(reason) = limits::rejection(view, node_info, &limits::volumes_of_claims(view, pod_claims)) {
        return reject(Cause::Limits, &reason);
    }
    let plan = volumes(view, pod_claims, node_info)?;
    if let Some(reason) =
        limits::rejection(view, node_info, &limits::volumes_of_plan(view, pod_claims, &plan))
    {
        return reject(Cause::Limits, &reason);
    }
    if !zone::matches_zones(view, node_info) {
        return reject(Cause::Zone, zone::ZONE_CONFLICT);
    }
    Ok(plan)
}

fn volumes(view: &View, pod_claims: &PodClaims, node_info: &NodeInfo) -> Result<Plan, FilterFailure> {
    match find_pod_volumes(view, pod_claims, node_info) {
        FindResult::Plan(plan) => Ok(plan),
        FindResult::Conflicts(reasons) => {
            Err(FilterFailure::Reasons(Cause::Volumes, reasons.into_iter().map(str::to_owned).collect()))
        }
        FindResult::Error(reason) => {
            Err(FilterFailure::Error(format!("running \"VolumeBinding\" filter plugin: {reason}")))
        }
    }
}

/// A pod that was created with a `nodeName`: only its volumes are bound (kubernetes#95767).
fn preassigned(view: &View) -> Step {
    let Some(node_info) = view.nodes.first() else {
        // If the node is created later, that wakes the pod.
        return Step::Unschedulable { message: String::new(), causes: [Cause::Node].into() };
    };
    let pod_claims = match claims::classify(view) {
        Ok(pod_claims) if pod_claims.delayed.is_empty() => return Step::Ignore,
        Ok(pod_claims) => pod_claims,
        Err(PreFilterError::Unschedulable(_)) => {
            // Other controllers handle these claims; the pod is retried when they change.
            return Step::Unschedulable { message: String::new(), causes: [Cause::Claims].into() };
        }
        Err(error) => return prefilter_failed(view, error),
    };
    match volumes(view, &pod_claims, node_info) {
        Ok(plan) => Step::Schedule { node: node_info.name().to_owned(), plan },
        Err(FilterFailure::Error(message)) => Step::Error { message },
        Err(FilterFailure::Reasons(cause, reasons)) => {
            let mut diagnosis = Diagnosis::default();
            diagnosis.add(cause, reasons);
            diagnosis.step(view)
        }
    }
}

fn prefilter_failed(view: &View, error: PreFilterError) -> Step {
    match error {
        PreFilterError::Unschedulable(reason) => {
            let message = format!("0/{} nodes are available: {reason}.", view.nodes.len());
            Step::Unschedulable { message, causes: [Cause::Claims].into() }
        }
        PreFilterError::Error(reason) => {
            Step::Error { message: format!("running PreFilter plugin \"VolumeBinding\": {reason}") }
        }
    }
}

/// The reasons of all rejected nodes, counted.
#[derive(Default)]
struct Diagnosis {
    causes: BTreeSet<Cause>,
    reasons: BTreeMap<String, usize>,
}

impl Diagnosis {
    fn add(&mut self, cause: Cause, reasons: Vec<String>) {
        self.causes.insert(cause);
        for reason in reasons {
            *self.reasons.entry(reason).or_default() += 1;
        }
    }

    fn step(self, view: &View) -> Step {
        let mut reasons: Vec<String> =
            self.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        // Sorted as text, as upstream: 10 comes before 2.
        reasons.sort();
        let message = format!("0/{} nodes are available: {}.", view.nodes.len(), reasons.join(", "));
        Step::Unschedulable { message, causes: self.causes }
    }
}

#[cfg(test)]
mod tests;
