//! Validation of pod updates: only images, the deadline, tolerations, scheduling gates and the status can change.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wharf_model::Time;

use super::spec;
use crate::kinds::{go, json, meta, names};
use crate::status::Cause;

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Restores what a status update cannot change.
pub(super) fn on_status(pod: &mut Value, old: &Value, _: Time) {
    json::restore(pod, old, "spec");
    if let (Some(metadata), Some(old)) = (pod.get_mut("metadata"), old.get("metadata")) {
        json::remove(metadata, "deletionTimestamp");
        json::restore(metadata, old, "ownerReferences");
    }
    let before = index_by(json::list(old, "/status/conditions"), "/type");
    let Some(status) = pod.get_mut("status") else { return };
    for field in ["qosClass", "observedGeneration"] {
        if let (None, Some(value)) = (status.get(field), old.get("status").and_then(|old| old.get(field))) {
            status[field] = value.clone();
        }
    }
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let same = before.get(json::text(condition, "/type"));
        let generation = same.and_then(|old| old.get("observedGeneration"));
        if let (None, Some(generation)) = (condition.get("observedGeneration"), generation) {
            condition["observedGeneration"] = generation.clone();
        }
    }
}

/// Indexes the items of a list by the string at a pointer. The first of several items with the same string wins.
fn index_by<'a>(list: &'a [Value], at: &str) -> BTreeMap<&'a str, &'a Value> {
    list.iter().rev().map(|member| (json::text(member, at), member)).collect()
}

fn mirror_annotation(pod: &Value, old: &Value) -> Option<Cause> {
    let detail = match (json::annotation(old, MIRROR), json::annotation(pod, MIRROR)) {
        (Some(before), now) if now != Some(before) => "may not remove or update mirror pod annotation",
        (None, Some(_)) => "may not add mirror pod annotation",
        _ => return None,
    };
    Some(Cause::forbidden(&format!("metadata.annotations[{MIRROR}]"), detail))
}

/// Validates an update of a pod.
pub(super) fn validate(pod: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = meta::validate_update(pod, old);
    causes.extend(super::validate(pod));
    causes.extend(mirror_annotation(pod, old));
    for list in ["containers", "initContainers"] {
        let (new, before) =
            (json::list(pod, &format!("/spec/{list}")), json::list(old, &format!("/spec/{list}")));
        if new.len() != before.len() {
            let detail = "pod updates may not add or remove containers";
            causes.push(Cause::forbidden(&format!("spec.{list}"), detail));
            return causes;
        }
        for (index, container) in new.iter().enumerate() {
            if json::text(container, "/image").is_empty() {
                causes.push(Cause::required(&format!("spec.{list}[{index}].image"), ""));
            }
        }
        causes.extend(super::container::images(&json::at(pod, "/spec"), list));
    }
    const DEADLINE: &str = "spec.activeDeadlineSeconds";
    let deadline = |pod: &Value| json::number(pod, "/spec/activeDeadlineSeconds");
    match (deadline(pod), deadline(old)) {
        (Some(seconds), _) if !(0..=2_147_483_647).contains(&seconds) => {
            let detail = "must be between 0 and 2147483647, inclusive";
            causes.push(Cause::invalid(DEADLINE, &seconds.into(), detail));
            return causes;
        }
        (Some(seconds), Some(before)) if before < seconds => {
            let detail = "must be less than or equal to previous value";
            causes.push(Cause::invalid(DEADLINE, &seconds.into(), detail));
            return causes;
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            causes.push(Cause::invalid(DEADLINE, &Value::Null, detail));
        }
        _ => (),
    }
    causes.extend(tolerations(pod, old));
    let gates = json::list(old, "/spec/schedulingGates").iter();
    let gates: BTreeSet<&str> = gates.map(|gate| json::text(gate, "/name")).collect();
    let is_new = |gate: &&Value| !gates.contains(json::text(gate, "/name"));
    let added: Vec<&str> = json::list(pod, "/spec/schedulingGates")
        .iter()
        .filter(is_new)
        .map(|gate| json::text(gate, "/name"))
        .collect();
    if !added.is_empty() {
        let detail = format!("only deletion is allowed, but found new scheduling gate '{}'", added[0]);
        causes.push(Cause::forbidden(&format!("spec.schedulingGates[{}]", added[0]), &detail));
    }
    causes.extend(check_immutable_fields(pod, old));
    causes
}

/// Tolerations can be added, and their `tolerationSeconds` can change.
fn tolerations(pod: &Value, old: &Value) -> Vec<Cause> {
    let without_time = |toleration: &Value| {
        let mut toleration = toleration.clone();
        json::remove(&mut toleration, "tolerationSeconds");
        // Compared as text, so that a set lookup can replace the comparison of all pairs.
        toleration.to_string()
    };
    let new: BTreeSet<String> = json::list(pod, "/spec/tolerations").iter().map(without_time).collect();
    let kept = |old: &Value| new.contains(&without_time(old));
    if !json::list(old, "/spec/tolerations").iter().all(kept) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        return vec![Cause::forbidden("spec.tolerations", detail)];
    }
    spec::tolerations(&json::at(pod, "/spec"))
}

/// Rejects changes of immutable fields.
fn check_immutable_fields(pod: &Value, old: &Value) -> Option<Cause> {
    let before = json::at(old, "/spec");
    let mut spec = json::at(pod, "/spec");
    for list in ["containers", "initContainers"] {
        let images: Vec<Value> = json::list(&before, &format!("/{list}"))
            .iter()
            .map(|container| json::at(container, "/image"))
            .collect();
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, image) in containers.zip(images) {
            container["image"] = image;
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        json::restore(&mut spec, &before, field);
    }
    let grace = |spec: &Value| json::number(spec, "/terminationGracePeriodSeconds");
    if grace(&before).is_some_and(|seconds| seconds < 0) && grace(&spec) == Some(1) {
        json::restore(&mut spec, &before, "terminationGracePeriodSeconds");
    }
    if !json::list(&before, "/schedulingGates").is_empty() {
        // The node constraints of a gated pod can still change.
        json::restore(&mut spec, &before, "nodeSelector");
        json::restore(&mut spec, &before, "affinity");
    }
    if spec == before {
        return None;
    }
    let detail = format!(
        "pod updates may not change fields other than \
         `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
         additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
         previously negative)\n{}",
        go::difference(&before, &spec, "PodSpec")
    );
    Some(Cause::forbidden("spec", &detail))
}

/// Validates a status update of a pod.
pub(super) fn validate_status(pod: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = meta::validate_update(pod, old);
    causes.extend(mirror_annotation(pod, old));
    for (index, condition) in json::list(pod, "/status/conditions").iter().enumerate() {
        let kind = json::text(condition, "/type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            causes.extend(meta::invalid_causes(
                &format!("status.conditions[{index}].Type"),
                kind,
                names::qualified_name(kind),
            ));
        }
    }
    let nominated = json::text(pod, "/status/nominatedNodeName");
    if !nominated.is_empty() && nominated != json::text(old, "/status/nominatedNodeName") {
        let errors = names::subdomain(nominated, false);
        causes.extend(meta::invalid_causes("status.nominatedNodeName", nominated, errors));
        if !json::text(old, "/spec/nodeName").is_empty() {
            let detail = "may not be set on pods that are already bound to a node";
            causes.push(Cause::forbidden("status.nominatedNodeName", detail));
        }
    }
    causes.extend(meta::immutable(pod, old, "/status/qosClass", "status.qosClass"));
    let policy = json::text(old, "/spec/restartPolicy");
    let new = index_by(json::list(pod, "/status/containerStatuses"), "/name");
    for (index, before) in json::list(old, "/status/containerStatuses").iter().enumerate() {
        let Some(code) = before.pointer("/state/terminated").map(|ended| json::number(ended, "/exitCode"))
        else {
            continue;
        };
        let may_start = policy == "Always" || (policy == "OnFailure" && code.unwrap_or_default() != 0);
        let same = new.get(json::text(before, "/name"));
        if !may_start && same.is_some_and(|status| !json::has(status, "/state/terminated")) {
            let detail = "may not be transitioned to non-terminated state";
            causes.push(Cause::forbidden(&format!("status.containerStatuses[{index}].state"), detail));
        }
    }
    causes
}
