//! Pod: containers that run on a node and use volumes.
//!
//! Validation is upstream's, also for fields that have nothing to do with storage: a manifest that a cluster rejects is
//! rejected here with the same message. Windows options, pod-level resources and annotations that fields have replaced
//! are not validated.

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, Subresource, json, meta, names};
use crate::status::Cause;

mod admission;
mod affinity;
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
mod update;
mod volumes;

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
    graceful_deletion: true,
    default: default::default,
    on_create: |pod, now| {
        drop_disabled_fields(pod, None);
        affinity::merge_label_keys(pod);
        json::object_mut(pod, "metadata").insert("generation".into(), 1.into());
        let mut status = json!({"phase": "Pending", "qosClass": resources::qos_class(pod)});
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
        json::restore(pod, old, "status");
        drop_disabled_fields(pod, Some(old));
        if pod.get("spec") != old.get("spec") {
            meta::increment_generation(pod, old);
        }
    },
    on_status: update::on_status,
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
    validate_update: update::validate,
    validate_status: update::validate_status,
    warnings: |pod, old| {
        let name = json::text(pod, "/metadata/name");
        let errors = names::label(name, false);
        if old.is_some() || errors.is_empty() {
            return Vec::new();
        }
        let warning = "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
                       recommended";
        vec![format!("metadata.name: {warning}: [{}]", errors.join(" "))]
    },
    admit: admission::admit,
    fields: &[
        ("spec.nodeName", |pod| json::text(pod, "/spec/nodeName").into()),
        // The name of spec.nodeName in early API versions.
        ("spec.host", |pod| json::text(pod, "/spec/nodeName").into()),
        ("spec.restartPolicy", |pod| json::text(pod, "/spec/restartPolicy").into()),
        ("spec.schedulerName", |pod| json::text(pod, "/spec/schedulerName").into()),
        ("spec.serviceAccountName", |pod| json::text(pod, "/spec/serviceAccountName").into()),
        ("spec.hostNetwork", |pod| json::flag(pod, "/spec/hostNetwork").to_string()),
        ("status.phase", |pod| json::text(pod, "/status/phase").into()),
        ("status.podIP", |pod| json::text(pod, "/status/podIP").into()),
        // Upstream accepts this selector, but it matches nothing.
        ("status.podIPs", |_| String::new()),
        ("status.nominatedNodeName", |pod| json::text(pod, "/status/nominatedNodeName").into()),
    ],
    columns: &[
        NAME,
        Column::text("Ready", "The number of ready containers, of all containers."),
        Column::text("Status", "The aggregate state of the containers."),
        Column::text("Restarts", "The number of container restarts, and the time since the last one."),
        AGE,
        Column::text("IP", "The address of the pod.").wide(),
        Column::text("Node", "The node that the pod runs on.").wide(),
        Column::text("Nominated Node", "The node where pods are preempted for this pod.").wide(),
        Column::text("Readiness Gates", "The number of readiness gates that have passed, of all gates.")
            .wide(),
    ],
    row: row::row,
    row_conditions: row::conditions,
    ..BASE
};

/// Drops the fields of feature gates that upstream has disabled (ContainerRestartRules, ContainerStopSignals, EnvFiles,
/// HostnameOverride), unless the old object has them.
fn drop_disabled_fields(pod: &mut Value, old: Option<&Value>) {
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
            for from in variables.into_iter().flatten().filter_map(|variable| variable.get_mut("valueFrom")) {
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
