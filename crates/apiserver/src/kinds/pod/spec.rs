//! Validation of a pod's spec.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{affinity, container, network, ports, security, volumes};
use crate::kinds::{json, meta, names, node};
use crate::status::Cause;

/// The maximum of a 32-bit integer, upstream's type for seconds.
const MAX_SECONDS: i64 = 2_147_483_647;

/// Validates a pod's spec.
pub(super) fn validate(pod: &Value) -> Vec<Cause> {
    let spec = &json::at(pod, "/spec");
    let mut causes = Vec::new();
    if !json::has(spec, "/terminationGracePeriodSeconds") {
        causes.push(Cause::required("spec.terminationGracePeriodSeconds", ""));
    }
    let (volumes, errors) = volumes::validate(spec, json::text(pod, "/metadata/name"));
    causes.extend(errors);
    causes.extend(container::validate_all(spec, &volumes));
    if json::flag(spec, "/hostNetwork") {
        causes.extend(ports::host_ports(spec));
    }
    causes.extend(one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"]));
    causes.extend(one_of(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]));
    causes.extend(meta::labels(spec, "/nodeSelector", "spec.nodeSelector"));
    causes.extend(security::pod(spec));
    causes.extend(affinity::validate(spec));
    causes.extend(network::dns(spec));
    for (index, gate) in json::list(spec, "/readinessGates").iter().enumerate() {
        let field = format!("spec.readinessGates[{index}].conditionType");
        let name = json::text(gate, "/conditionType");
        causes.extend(meta::invalid_causes(&field, name, names::qualified_name(name)));
    }
    let mut gates = BTreeSet::new();
    for (index, gate) in json::list(spec, "/schedulingGates").iter().enumerate() {
        let field = format!("spec.schedulingGates[{index}]");
        let name = json::text(gate, "/name");
        causes.extend(meta::invalid_causes(&field, name, names::qualified_name(name)));
        if !gates.insert(name) {
            causes.push(Cause::duplicate(&field, &name.into()));
        }
    }
    causes.extend(affinity::topology_spread(spec));
    causes.extend(security::host_users(spec));
    for (field, rule) in
        [("serviceAccountName", names::subdomain as meta::NameRule), ("nodeName", names::subdomain)]
    {
        causes.extend(validate_name(spec, field, rule));
    }
    if let Some(seconds) = json::number(spec, "/activeDeadlineSeconds")
        && !(1..=MAX_SECONDS).contains(&seconds)
    {
        let detail = format!("must be between 1 and {MAX_SECONDS}, inclusive");
        causes.push(Cause::invalid("spec.activeDeadlineSeconds", &seconds.into(), &detail));
    }
    causes.extend(validate_name(spec, "hostname", names::label));
    causes.extend(validate_name(spec, "subdomain", names::label));
    causes.extend(tolerations(spec));
    causes.extend(network::host_aliases(spec));
    causes.extend(validate_name(spec, "priorityClassName", names::subdomain));
    causes.extend(validate_name(spec, "runtimeClassName", names::subdomain));
    if json::has(spec, "/preemptionPolicy") {
        causes.extend(one_of(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"]));
    }
    causes.extend(security::os(spec));
    if json::text(spec, "/serviceAccountName").is_empty() {
        causes.extend(volumes::tokens_without_account(spec));
    }
    for list in ["containers", "initContainers"] {
        causes.extend(container::images(spec, list));
    }
    causes
}

fn validate_name(spec: &Value, field: &str, rule: meta::NameRule) -> Vec<Cause> {
    match json::text(spec, &format!("/{field}")) {
        "" => Vec::new(),
        text => meta::invalid_causes(&format!("spec.{field}"), text, rule(text, false)).collect(),
    }
}

fn one_of(spec: &Value, field: &str, known: &[&str]) -> Option<Cause> {
    let path = format!("spec.{field}");
    match json::text(spec, &format!("/{field}")) {
        "" => Some(Cause::required(&path, "")),
        value if known.contains(&value) => None,
        value => Some(Cause::not_supported(&path, &value.into(), known)),
    }
}

/// Validates tolerations.
pub(super) fn tolerations(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, toleration) in json::list(spec, "/tolerations").iter().enumerate() {
        let text = |name: &str| json::text(toleration, &format!("/{name}"));
        let at = |name: &str| format!("spec.tolerations[{index}].{name}");
        if !text("key").is_empty() {
            causes.extend(meta::invalid_causes(&at("key"), text("key"), names::qualified_name(text("key"))));
        } else if text("operator") != "Exists" {
            let detail =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            causes.push(Cause::invalid(&at("operator"), &text("operator").into(), detail));
        }
        if json::has(toleration, "/tolerationSeconds") && text("effect") != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            causes.push(Cause::invalid(&at("effect"), &text("effect").into(), detail));
        }
        match text("operator") {
            "" | "Equal" => {
                let errors = names::label_value(text("value"));
                if !errors.is_empty() {
                    causes.push(Cause::invalid(&at("operator"), &text("value").into(), &errors.join(";")));
                }
            }
            "Exists" if !text("value").is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                causes.push(Cause::invalid(&at("operator"), &text("value").into(), detail));
            }
            "Exists" => (),
            other => causes.push(Cause::not_supported(&at("operator"), &other.into(), &["Equal", "Exists"])),
        }
        if !text("effect").is_empty() {
            causes.extend(node::taint_effect(text("effect"), &at("effect"), true));
        }
    }
    causes
}
