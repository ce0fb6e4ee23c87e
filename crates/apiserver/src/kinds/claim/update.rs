//! Validation of updates: the spec of a claim is immutable, apart from its requested size and attributes class.

use serde_json::Value;
use wharf_model::Quantity;

use super::spec::{self, SpecValidationOptions};
use crate::kinds::{go, json, meta, names, volume::BETA_CLASS};
use crate::status::Cause;

const CLASS: &str = "storageClassName";
const ATTRIBUTES: &str = "volumeAttributesClassName";

fn validate_claim(claim: &Value, options: &SpecValidationOptions) -> Vec<Cause> {
    let mut causes = meta::validate(claim, true, names::subdomain);
    causes.extend(spec::validate(&json::at(claim, "/spec"), "spec", options));
    causes
}

/// Validates an update of a claim.
pub(super) fn validate(claim: &Value, old: &Value) -> Vec<Cause> {
    let options = SpecValidationOptions {
        allow_invalid_label_values: !meta::label_selector(old, "/spec/selector", "", false).is_empty(),
        allow_invalid_api_group: json::has(old, "/spec/dataSource/apiGroup")
            || json::has(old, "/spec/dataSourceRef/apiGroup"),
    };
    let mut causes = validate_claim(claim, &options);
    causes.extend(meta::validate_update(claim, old));
    causes.extend(validate_claim(claim, &options));

    let (mut new_spec, mut old_spec) = (json::at(claim, "/spec"), json::at(old, "/spec"));
    if json::text(&old_spec, "/volumeName").is_empty() {
        json::restore(&mut old_spec, &new_spec, "volumeName");
    }
    let (class, before) = (new_spec.get(CLASS).cloned(), old_spec.get(CLASS).cloned());
    let (annotation, annotation_before) =
        (json::annotation(claim, BETA_CLASS), json::annotation(old, BETA_CLASS));
    let as_annotated = class.is_some() && class.as_ref().and_then(Value::as_str) == annotation_before;
    if before.is_none() && as_annotated && (annotation.is_none() || annotation == annotation_before) {
        // The class moves from the annotation to the field.
        json::remove(&mut new_spec, CLASS);
    } else {
        if annotation.unwrap_or_default() != annotation_before.unwrap_or_default() {
            let value = annotation.unwrap_or_default().into();
            causes.push(Cause::invalid(
                &format!("metadata.annotations.{BETA_CLASS}"),
                &value,
                "field is immutable",
            ));
        }
        if class.is_some() && before.is_none() && (annotation_before.is_none() || as_annotated) {
            // A class can be assigned retroactively to a claim without one.
            json::remove(&mut new_spec, CLASS);
        }
    }
    if json::text(claim, "/status/phase") == "Bound" {
        if let (Some(requests), Some(size)) =
            (new_spec.pointer_mut("/resources/requests"), old_spec.pointer("/resources/requests/storage"))
        {
            requests["storage"] = size.clone();
        }
        json::restore(&mut new_spec, &old_spec, ATTRIBUTES);
    }
    if new_spec != old_spec {
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{}",
            go::difference(&old_spec, &new_spec, "PersistentVolumeClaimSpec")
        );
        causes.push(Cause::forbidden("spec", &detail));
    }
    const SIZE: &str = "/spec/resources/requests/storage";
    let size = |object: &Value, pointer: &str| json::quantity(object, pointer).unwrap_or(Quantity::ZERO);
    if size(claim, SIZE) < size(old, SIZE) && size(claim, SIZE) <= size(old, "/status/capacity/storage") {
        let detail = "field can not be less than status.capacity";
        causes.push(Cause::forbidden("spec.resources.requests.storage", detail));
    }
    causes.extend(meta::immutable(claim, old, "/spec/volumeMode", "volumeMode"));
    let changed = json::at(claim, "/spec/volumeAttributesClassName")
        != json::at(old, "/spec/volumeAttributesClassName");
    if changed && json::has(old, "/status/currentVolumeAttributesClassName") {
        let to = match json::at(claim, "/spec/volumeAttributesClassName") {
            Value::Null => Some("nil"),
            Value::String(text) if text.is_empty() => Some("empty string"),
            _ => None,
        };
        if let Some(to) = to {
            let detail = format!(
                "update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
            );
            causes.push(Cause::forbidden("spec.volumeAttributesClassName", &detail));
        }
    }
    causes
}

/// Validates a status update of a claim.
pub(super) fn validate_status(claim: &Value, old: &Value) -> Vec<Cause> {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let mut causes = meta::validate_update(claim, old);
    if json::text(claim, "/metadata/resourceVersion").is_empty() {
        causes.push(Cause::required("resourceVersion", ""));
    }
    if json::list(claim, "/spec/accessModes").is_empty() {
        causes.push(Cause::required("Spec.accessModes", ""));
    }
    let negative = |value: &Value, field: String| {
        let size = json::quantity(value, "").filter(|size| *size < Quantity::ZERO)?;
        Some(Cause::invalid(&field, &size.bytes().into(), "must be a valid resource quantity"))
    };
    for (resource, value) in json::entries(claim, "/status/capacity") {
        causes.extend(negative(value, format!("status.capacity[{resource}]")));
    }
    let states = "status.allocatedResourceStatuses";
    for (resource, state) in json::entries(claim, "/status/allocatedResourceStatuses") {
        causes.extend(resource_key(resource, states));
        if !state.as_str().is_some_and(|state| STATES.contains(&state)) {
            // Upstream reports the key instead of the invalid value.
            let mut known = STATES;
            known.sort_unstable();
            causes.push(Cause::not_supported(states, &resource.into(), &known));
        }
    }
    let allocated = "status.allocatedResources";
    for (resource, value) in json::entries(claim, "/status/allocatedResources") {
        let causes_of_key = resource_key(resource, allocated);
        if causes_of_key.is_empty() {
            causes.extend(negative(value, format!("{allocated}[{resource}]")));
        }
        causes.extend(causes_of_key);
    }
    causes
}

/// Validates a resource name of a claim: `storage`, or a custom resource with a domain prefix.
fn resource_key(resource: &str, field: &str) -> Vec<Cause> {
    let causes_of_key: Vec<Cause> =
        meta::invalid_causes(field, resource, names::qualified_name(resource)).collect();
    let native = !resource.contains('/') || resource.contains("kubernetes.io/");
    if causes_of_key.is_empty() && native && resource != "storage" {
        return vec![Cause::not_supported(field, &resource.into(), &["storage"])];
    }
    causes_of_key
}
