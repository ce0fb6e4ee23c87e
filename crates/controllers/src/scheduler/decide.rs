//! Where a pod goes, or why it has to wait: every rule in upstream's order, the first that refuses speaks for its node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::claims::{self, Sorted, Stop};
use super::requests::{self, Requests};
use super::view::{Place, View};
use super::volumes::{Found, Plan, find};
use super::{fit, limits, zone};

pub(super) const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
const NO_NODES: &str = "no nodes available to schedule pods";

/// What is to be done for a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: it is on its node, with all that it needs.
    Leave,
    /// It goes there, once its volumes are seen to.
    Place { node: String, plan: Plan },
    /// It has to wait until something changes. An empty message is told to nobody.
    Refuse { message: String, causes: BTreeSet<Cause> },
    /// Things are not as they can be: again after a while.
    Fail { message: String },
}

/// What kept a pod off nodes, by what can change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// What nodes say of themselves.
    Node,
    /// What nodes have left.
    Resources,
    /// What is wrong with the claims themselves.
    Claims,
    /// Another pod's claim.
    InUse,
    /// Limits and drivers.
    Limits,
    /// Where volumes are.
    Volumes,
    /// Their zones.
    Zone,
}

/// Why a node will not do.
enum Refusal {
    Reasons(Cause, Vec<String>),
    Failed(String),
}

/// The one step for this pod.
pub(super) fn decide(view: &View) -> Step {
    if !view.pod.spec.node_name.is_empty() {
        return assigned(view);
    }
    if view.places.is_empty() {
        return Step::Refuse { message: NO_NODES.to_owned(), causes: [Cause::Node].into() };
    }
    let sorted = match claims::sort(view) {
        Ok(sorted) => sorted,
        Err(stop) => return stopped(view, stop),
    };
    let (asked, taken) = (requests::of(&view.pod), claims::is_taken(view));
    let mut fitting = Vec::new();
    let mut refused = Refused::default();
    for place in &view.places {
        match filter(view, &sorted, &asked, taken, place) {
            Ok(plan) => fitting.push((place, plan)),
            Err(Refusal::Reasons(cause, reasons)) => refused.add(cause, reasons),
            Err(Refusal::Failed(message)) => return Step::Fail { message },
        }
    }
    // Ties go to the first by name, so that the same cluster gives the same answer.
    let best = |(place, _): &(&Place, Plan)| {
        (
            fit::unwelcome(&view.pod, place),
            Reverse(fit::room(&asked, place)),
            place.pods,
            place.name().to_owned(),
        )
    };
    match fitting.into_iter().min_by_key(best) {
        Some((place, plan)) => Step::Place { node: place.name().to_owned(), plan },
        None => refused.step(view),
    }
}

fn filter(
    view: &View,
    sorted: &Sorted,
    asked: &Requests,
    taken: bool,
    place: &Place,
) -> Result<Plan, Refusal> {
    let no = |cause, reason: &str| Err(Refusal::Reasons(cause, vec![reason.to_owned()]));
    if !fit::takes_pods(&view.pod, place) {
        return no(Cause::Node, fit::UNSCHEDULABLE);
    }
    if !fit::tolerates_all(&view.pod, place) {
        return no(Cause::Node, fit::TAINTED);
    }
    if !fit::is_selected(&view.pod, place) {
        return no(Cause::Node, fit::NOT_SELECTED);
    }
    let lacks = fit::lacks(asked, place);
    if !lacks.is_empty() {
        return Err(Refusal::Reasons(Cause::Resources, lacks));
    }
    if taken {
        return no(Cause::InUse, IN_USE);
    }
    if let Some(reason) = limits::refuses(view, place, &limits::of_claims(view, sorted)) {
        return no(Cause::Limits, &reason);
    }
    let plan = volumes(view, sorted, place)?;
    if let Some(reason) = limits::refuses(view, place, &limits::of_plan(view, sorted, &plan)) {
        return no(Cause::Limits, &reason);
    }
    if !zone::is_there(view, place) {
        return no(Cause::Zone, zone::NO_ZONE);
    }
    Ok(plan)
}

fn volumes(view: &View, sorted: &Sorted, place: &Place) -> Result<Plan, Refusal> {
    match find(view, sorted, place) {
        Found::Plan(plan) => Ok(plan),
        Found::Conflicts(reasons) => {
            Err(Refusal::Reasons(Cause::Volumes, reasons.into_iter().map(str::to_owned).collect()))
        }
        Found::Failed(why) => Err(Refusal::Failed(format!("running \"VolumeBinding\" filter plugin: {why}"))),
    }
}

/// A pod that somebody has put on a node by hand: only its volumes are seen to (kubernetes#95767).
fn assigned(view: &View) -> Step {
    let Some(place) = view.places.first() else {
        // The node may be yet to come, and then it wakes the pod.
        return Step::Refuse { message: String::new(), causes: [Cause::Node].into() };
    };
    let sorted = match claims::sort(view) {
        Ok(sorted) if sorted.delayed.is_empty() => return Step::Leave,
        Ok(sorted) => sorted,
        Err(Stop::Refused(_)) => {
            // Others see to these claims, and we look again when they change.
            return Step::Refuse { message: String::new(), causes: [Cause::Claims].into() };
        }
        Err(stop) => return stopped(view, stop),
    };
    match volumes(view, &sorted, place) {
        Ok(plan) => Step::Place { node: place.name().to_owned(), plan },
        Err(Refusal::Failed(message)) => Step::Fail { message },
        Err(Refusal::Reasons(cause, reasons)) => {
            let mut refused = Refused::default();
            refused.add(cause, reasons);
            refused.step(view)
        }
    }
}

fn stopped(view: &View, stop: Stop) -> Step {
    match stop {
        Stop::Refused(why) => {
            let message = format!("0/{} nodes are available: {why}.", view.places.len());
            Step::Refuse { message, causes: [Cause::Claims].into() }
        }
        Stop::Failed(why) => {
            Step::Fail { message: format!("running PreFilter plugin \"VolumeBinding\": {why}") }
        }
    }
}

/// How often each reason was given.
#[derive(Default)]
struct Refused {
    causes: BTreeSet<Cause>,
    reasons: BTreeMap<String, usize>,
}

impl Refused {
    fn add(&mut self, cause: Cause, reasons: Vec<String>) {
        self.causes.insert(cause);
        for reason in reasons {
            *self.reasons.entry(reason).or_default() += 1;
        }
    }

    fn step(self, view: &View) -> Step {
        let mut reasons: Vec<String> =
            self.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        // As text: 10 comes before 2.
        reasons.sort();
        let message = format!("0/{} nodes are available: {}.", view.places.len(), reasons.join(", "));
        Step::Refuse { message, causes: self.causes }
    }
}

#[cfg(test)]
mod tests;
