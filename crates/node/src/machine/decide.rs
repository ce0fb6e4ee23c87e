//! Rules for writing the Node object, and its content.
//!
//! The Node is created once, or adopted as found: foreign labels, annotations and status fields stay. If it is deleted
//! while we run, it is not created again, as in kubelet, unless the settings say so.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use wharf_model::Node;
use wharf_model::claim::Condition;
use wharf_model::names::annotation::CONTROLLER_MANAGED_ATTACH;
use wharf_model::patch::Patch;
use wharf_model::{Kind as _, Time};

use super::facts::Facts;

/// The Kubernetes version we are compatible with, and our own.
const VERSION: &str = concat!("v1.34.2+wharf-", env!("CARGO_PKG_VERSION"));
const RUNTIME: &str = concat!("wharf://", env!("CARGO_PKG_VERSION"));

/// Inputs of the rules.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The Node; `None` only if the API server confirmed that it does not exist.
    pub(super) node: Option<&'a Node>,
    /// We created or adopted it in this run.
    pub(super) known: bool,
    /// The last report.
    pub(super) reported: Option<&'a Report>,
    /// The current problem; empty if none.
    pub(super) problem: &'a str,
}

/// A status report of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    /// The Node's uid.
    pub(super) uid: String,
    /// Time since our start.
    pub(super) at: Duration,
    /// The reported problem.
    pub(super) problem: String,
}

/// The settings that the rules depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) recreate_node: bool,
    pub(super) report_every: Duration,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the Node.
    Create,
    /// Write the node's status.
    Report,
    /// Wait for a change, or until this time.
    Wait(Option<Duration>),
}

/// Determines the next step. `now` counts from our start.
pub(super) fn decide(view: &View<'_>, rules: Rules, now: Duration) -> Step {
    let Some(node) = view.node else {
        return if view.known && !rules.recreate_node { Step::Wait(None) } else { Step::Create };
    };
    let last =
        view.reported.filter(|report| report.uid == node.metadata.uid && report.problem == view.problem);
    let Some(last) = last else { return Step::Report };
    // The node-lifecycle-controller sets the condition to Unknown when it misses renewals of the lease.
    let ready = if view.problem.is_empty() { "True" } else { "False" };
    let is_reported = |condition: &Condition| condition.kind == "Ready" && condition.status == ready;
    if now >= last.at + rules.report_every || !node.status.conditions.iter().any(is_reported) {
        return Step::Report;
    }
    Step::Wait(Some(last.at + rules.report_every))
}

/// The body of a new Node.
pub(super) fn create(name: &str, facts: &Facts, pods: u32, problem: &str, now: Time) -> Value {
    json!({
        "apiVersion": Node::API.api_version(),
        "kind": Node::API.kind,
        "metadata": {"name": name, "labels": labels(name, facts), "annotations": {CONTROLLER_MANAGED_ATTACH: "true"}},
        "status": status(name, facts, pods, &conditions(None, problem, now)),
    })
}

/// The status patch, including missing labels and annotations of an adopted Node.
pub(super) fn report(node: &Node, facts: &Facts, pods: u32, problem: &str, now: Time) -> Patch {
    let name = &node.metadata.name;
    let mut metadata = json!({"uid": node.metadata.uid});
    let mut missing = labels(name, facts);
    missing.retain(|key, value| node.metadata.labels.get(key) != Some(value));
    if !missing.is_empty() {
        metadata["labels"] = json!(missing);
    }
    if node.metadata.annotation(CONTROLLER_MANAGED_ATTACH) != Some("true") {
        metadata["annotations"] = json!({CONTROLLER_MANAGED_ATTACH: "true"});
    }
    let mut status = status(name, facts, pods, &conditions(Some(node), problem, now));
    // Addresses are merged by type otherwise, and those of another network would stay.
    if let Some(addresses) = status["addresses"].as_array_mut() {
        addresses.insert(0, json!({"$patch": "replace"}));
    }
    Patch::Strategic(json!({"metadata": metadata, "status": status}))
}

fn labels(name: &str, facts: &Facts) -> BTreeMap<&'static str, String> {
    let architecture = facts.architecture.to_owned();
    BTreeMap::from([
        ("kubernetes.io/hostname", name.to_owned()),
        ("kubernetes.io/os", "linux".to_owned()),
        ("kubernetes.io/arch", architecture.clone()),
        ("beta.kubernetes.io/os", "linux".to_owned()),
        ("beta.kubernetes.io/arch", architecture),
    ])
}

fn status(name: &str, facts: &Facts, pods: u32, conditions: &Value) -> Value {
    let capacity = json!({
        "cpu": facts.cpus.to_string(),
        "memory": format!("{}Ki", facts.memory),
        "ephemeral-storage": format!("{}Ki", facts.storage),
        "pods": pods.to_string(),
    });
    json!({
        "addresses": [
            {"type": "InternalIP", "address": facts.address.to_string()},
            {"type": "Hostname", "address": name},
        ],
        "allocatable": capacity,
        "capacity": capacity,
        "conditions": conditions,
        "nodeInfo": {
            "architecture": facts.architecture,
            "bootID": facts.boot_id,
            "containerRuntimeVersion": RUNTIME,
            "kernelVersion": facts.kernel,
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": facts.machine_id,
            "operatingSystem": "linux",
            "osImage": facts.os_image,
            "systemUUID": facts.system_uuid,
        },
    })
}

/// Kubelet's four conditions with their transition times.
fn conditions(before: Option<&Node>, problem: &str, now: Time) -> Value {
    let ready = match problem {
        "" => ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        problem => ("Ready", "False", "KubeletNotReady", problem),
    };
    let wanted = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ready,
    ];
    let since = |kind: &str, status: &str| {
        let before = before?.status.conditions.iter().find(|condition| condition.kind == kind)?;
        before.last_transition_time.filter(|_| before.status == status)
    };
    let conditions = wanted.map(|(kind, status, reason, message)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now.to_string(),
            "lastTransitionTime": since(kind, status).unwrap_or(now).to_string(),
        })
    });
    json!(conditions)
}

#[cfg(test)]
mod tests;
