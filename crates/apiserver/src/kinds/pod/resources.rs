//! Validation of resource requests and limits, and the QoS class.

use std::collections::BTreeSet;

use serde_json::Value;
use wharf_model::Quantity;

use super::container::one_of;
use crate::kinds::{json, meta, names, node};
use crate::status::Cause;

/// Whether a resource can be overcommitted.
fn is_shareable(resource: &str) -> bool {
    (!resource.contains('/') || resource.contains("kubernetes.io/")) && !resource.starts_with("hugepages-")
}

/// Validates a container's requests and limits.
pub(super) fn validate(container: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for part in ["limits", "requests"] {
        for (resource, value) in json::entries(container, &format!("/resources/{part}")) {
            let field = format!("{at}.resources.{part}[{resource}]");
            let errors = names::qualified_name(resource);
            let is_native = !resource.contains('/');
            let known = ["cpu", "memory", "ephemeral-storage"].contains(&resource)
                || resource.starts_with("hugepages-");
            if !errors.is_empty() {
                causes.extend(meta::invalid_causes(&field, resource, errors));
            } else if is_native && !known {
                let standard =
                    ["storage", "pods", "services", "secrets", "configmaps", "persistentvolumeclaims"];
                if !standard.contains(&resource) {
                    let detail = "must be a standard resource type or fully qualified";
                    causes.push(Cause::invalid(&field, &resource.into(), detail));
                }
                let detail = "must be a standard resource for containers";
                causes.push(Cause::invalid(&field, &resource.into(), detail));
            }
            causes.extend(node::resource_value(resource, value, &field));
            if part == "limits" {
                continue;
            }
            let all = format!("{at}.resources.requests");
            let limit = container.pointer("/resources/limits").and_then(|limits| limits.get(resource));
            match (limit, json::quantity(value, "")) {
                (Some(limit), Some(request)) => {
                    let max = json::quantity(limit, "").unwrap_or(Quantity::ZERO);
                    let printed = limit.as_str().unwrap_or_default();
                    if request != max && !is_shareable(resource) {
                        let detail = format!("must be equal to {resource} limit of {printed}");
                        causes.push(Cause::invalid(&all, value, &detail));
                    } else if request > max {
                        let detail = format!("must be less than or equal to {resource} limit of {printed}");
                        causes.push(Cause::invalid(&all, value, &detail));
                    }
                }
                (None, _) if !is_shareable(resource) => {
                    let detail = "Limit must be set for non overcommitable resources";
                    causes.push(Cause::required(&format!("{at}.resources.limits"), detail));
                }
                _ => (),
            }
        }
    }
    causes
}

/// Validates a container's resizePolicy: whether it restarts when its resources are resized.
pub(super) fn resize_policies(container: &Value, at: &str, pod: &str) -> Vec<Cause> {
    let at = format!("{at}.resizePolicy");
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, policy) in json::list(container, "/resizePolicy").iter().enumerate() {
        let (resource, restart) = (json::text(policy, "/resourceName"), json::text(policy, "/restartPolicy"));
        if !seen.insert(resource) {
            causes.push(Cause::duplicate(&format!("{at}[{index}]"), &resource.into()));
        }
        causes.extend(one_of(resource, &at, &["cpu", "memory"]));
        causes.extend(one_of(restart, &at, &["NotRequired", "RestartContainer"]));
        if pod == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            causes.push(Cause::invalid(&at, &restart.into(), detail));
        }
    }
    causes
}

/// The quality-of-service class of a pod.
pub(super) fn qos_class(pod: &Value) -> &'static str {
    let mut is_any = false;
    let mut is_guaranteed = true;
    for list in ["/spec/containers", "/spec/initContainers"] {
        for container in json::list(pod, list) {
            let quantity = |part: &str, resource: &str| {
                json::quantity(container, &format!("/resources/{part}/{resource}"))
                    .filter(|size| *size > Quantity::ZERO)
            };
            for resource in ["cpu", "memory"] {
                let (request, limit) = (quantity("requests", resource), quantity("limits", resource));
                is_any |= request.is_some() || limit.is_some();
                is_guaranteed &= limit.is_some() && request == limit;
            }
        }
    }
    match (is_any, is_guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
