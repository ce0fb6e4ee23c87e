//! Pod: what runs on a node and uses volumes.
//!
//! Rules are upstream's, those for parts that have nothing to do with storage too: a manifest that a cluster refuses is
//! refused here, in the same words. Options for Windows, resources of the pod as a whole, and annotations that fields have
//! taken the place of are taken as they come.

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, Subresource, json, meta, names};
use crate::status::Cause;

mod admission;
mod affinity;
mod change;
mod container;
mod default;
mod environment;
mod handlers;
mod network;
mod ports;
mod resources;
mod row;
mod security;
mod spec;
mod volumes;

/// What runs on a node and uses volumes.
pub(super) static POD: Kind = Kind {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    namespaced: true,
    subresources: &[
        Subresource { name: "binding", group: "", version: "v1", kind: "Binding", verbs: &["create"] },
        Subresource {
            name: "eviction",
            group: "policy",
            version: "v1",
            kind: "Eviction",
            verbs: &["create"],
        },
        Subresource {
            name: "exec",
            group: "",
            version: "v1",
            kind: "PodExecOptions",
            verbs: &["create", "get"],
        },
        Subresource { name: "log", group: "", version: "v1", kind: "Pod", verbs: &["get"] },
        Subresource::status("", "Pod"),
    ],
    graceful: true,
    default: default::default,
    on_create: |pod, now| {
        closed_gates(pod, None);
        affinity::merge_keys(pod);
        json::map(pod, "metadata").insert("generation".into(), 1.into());
        let mut status = json!({"phase": "Pending", "qosClass": resources::quality(pod)});
        if !json::list(pod, "/spec/schedulingGates").is_empty() {
            status["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": null, "lastTransitionTime": now.to_string(),
            }]);
        }
        pod["status"] = status;
    },
    on_update: |pod, old, _| {
        json::keep(pod, old, "status");
        closed_gates(pod, Some(old));
        if pod.get("spec") != old.get("spec") {
            meta::next_generation(pod, old);
        }
    },
    on_status: change::on_status,
    validate: |pod| {
        let mut causes = validate(pod);
        if !json::list(pod, "/spec/ephemeralContainers").is_empty() {
            causes.push(Cause::forbidden("spec.ephemeralContainers", "cannot be set on create"));
        }
        let has_node = !json::text(pod, "/spec/nodeName").is_empty();
        if has_node && !json::list(pod, "/spec/schedulingGates").is_empty() {
            let detail = "cannot be set until all schedulingGates have been cleared";
            causes.push(Cause::forbidden("spec.nodeName", detail));
        }
        causes
    },
    validate_update: change::validate,
    validate_status: change::validate_status,
    warnings: |pod, old| {
        let name = json::text(pod, "/metadata/name");
        let wrong = names::label(name, false);
        if old.is_some() || wrong.is_empty() {
            return Vec::new();
        }
        let words = "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
                     recommended";
        vec![format!("metadata.name: {words}: [{}]", wrong.join(" "))]
    },
    admit: admission::admit,
    fields: &[
        ("spec.nodeName", |pod| json::text(pod, "/spec/nodeName").into()),
        // Its name before there were nodes.
        ("spec.host", |pod| json::text(pod, "/spec/nodeName").into()),
        ("spec.restartPolicy", |pod| json::text(pod, "/spec/restartPolicy").into()),
        ("spec.schedulerName", |pod| json::text(pod, "/spec/schedulerName").into()),
        ("spec.serviceAccountName", |pod| json::text(pod, "/spec/serviceAccountName").into()),
        ("spec.hostNetwork", |pod| json::flag(pod, "/spec/hostNetwork").to_string()),
        ("status.phase", |pod| json::text(pod, "/status/phase").into()),
        ("status.podIP", |pod| json::text(pod, "/status/podIP").into()),
        // Upstream takes it, and finds nothing by it.
        ("status.podIPs", |_| String::new()),
        ("status.nominatedNodeName", |pod| json::text(pod, "/status/nominatedNodeName").into()),
    ],
    columns: &[
        NAME,
        Column::text("Ready", "How many of its containers are ready."),
        Column::text("Status", "What its containers are doing."),
        Column::text("Restarts", "How often containers were started again, and when last."),
        AGE,
        Column::text("IP", "Its address.").wide(),
        Column::text("Node", "Where it runs.").wide(),
        Column::text("Nominated Node", "Where room is being made for it.").wide(),
        Column::text("Readiness Gates", "How many of its conditions for being ready hold.").wide(),
    ],
    row: row::row,
    row_conditions: row::conditions,
    ..BASE
};

/// Fields of gates that upstream has closed (ContainerRestartRules, ContainerStopSignals, EnvFiles, HostnameOverride) are
/// dropped unless they were there before.
fn closed_gates(pod: &mut Value, old: Option<&Value>) {
    const LISTS: [&str; 2] = ["/spec/containers", "/spec/initContainers"];
    let was = |list: &str, has: &dyn Fn(&Value) -> bool| {
        old.is_some_and(|old| json::list(old, list).iter().any(has))
    };
    let rules = |container: &Value| {
        ["restartPolicy", "restartPolicyRules"].iter().any(|field| container.get(field).is_some())
    };
    let signal = |container: &Value| container.pointer("/lifecycle/stopSignal").is_some();
    let file = |variable: &Value| variable.pointer("/valueFrom/fileKeyRef").is_some();
    let files = |container: &Value| json::list(container, "/env").iter().any(file);
    let had_rules = was(LISTS[0], &rules);
    let had_signal = LISTS.iter().any(|list| was(list, &signal));
    let had_file = LISTS.iter().any(|list| was(list, &files));
    if let Some(spec) = pod.get_mut("spec")
        && !old.is_some_and(|old| json::has(old, "/spec/hostnameOverride"))
    {
        json::remove(spec, "hostnameOverride");
    }
    for list in LISTS {
        for container in pod.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if list == LISTS[0] && !had_rules {
                json::remove(container, "restartPolicy");
                json::remove(container, "restartPolicyRules");
            }
            if let Some(lifecycle) = container.get_mut("lifecycle").filter(|_| !had_signal)
                && let Value::Object(hooks) = lifecycle
                && hooks.remove("stopSignal").is_some()
                && hooks.is_empty()
            {
                json::remove(container, "lifecycle");
            }
            let variables = container.get_mut("env").and_then(Value::as_array_mut).filter(|_| !had_file);
            for from in variables.into_iter().flatten().filter_map(|of| of.get_mut("valueFrom")) {
                json::remove(from, "fileKeyRef");
            }
        }
    }
}

fn validate(pod: &Value) -> Vec<Cause> {
    const MIRROR: &str = "kubernetes.io/config.mirror";
    let mut causes = meta::validate(pod, true, names::subdomain);
    if let (Some(value), "") = (json::annotation(pod, MIRROR), json::text(pod, "/spec/nodeName")) {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        causes.push(Cause::invalid(&format!("metadata.annotations[{MIRROR}]"), &value.into(), detail));
    }
    causes.extend(spec::validate(pod));
    causes
}

#[cfg(test)]
mod tests;
