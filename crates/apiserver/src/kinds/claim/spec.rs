//! Validation of a claim's spec, also of a claim template in a pod.

use serde_json::{Value, json};
use wharf_model::Quantity;

use crate::kinds::{json, meta, names, volume};
use crate::status::Cause;

/// Invalid values that are accepted because the stored object has them: they predate the rule.
#[derive(Default)]
pub(in crate::kinds) struct SpecValidationOptions {
    /// Label values in the selector.
    pub(in crate::kinds) allow_invalid_label_values: bool,
    /// API groups of data sources.
    pub(in crate::kinds) allow_invalid_api_group: bool,
}

/// Validates a claim's spec.
pub(in crate::kinds) fn validate(spec: &Value, field: &str, options: &SpecValidationOptions) -> Vec<Cause> {
    let at = |name: &str| format!("{field}.{name}");
    let modes = json::list(spec, "/accessModes");
    let mut causes = Vec::new();
    if modes.is_empty() {
        causes.push(Cause::required(&at("accessModes"), "at least 1 access mode is required"));
    }
    causes.extend(meta::label_selector(
        spec,
        "/selector",
        &at("selector"),
        options.allow_invalid_label_values,
    ));
    causes.extend(volume::spec::access_modes(modes, &at("accessModes")));
    // Upstream's path omits `requests`.
    match json::quantity(spec, "/resources/requests/storage") {
        None => causes.push(Cause::required(&at("resources[storage]"), "")),
        Some(size) if size <= Quantity::ZERO => {
            let value = json::at(spec, "/resources/requests/storage");
            causes.push(Cause::invalid(&at("resources[storage]"), &value, "must be greater than zero"));
        }
        Some(_) => (),
    }
    match json::text(spec, "/storageClassName") {
        "" => (),
        class => causes.extend(meta::invalid_causes(
            &at("storageClassName"),
            class,
            names::subdomain(class, false),
        )),
    }
    match json::text(spec, "/volumeMode") {
        "" if !json::has(spec, "/volumeMode") => (),
        "Block" | "Filesystem" => (),
        mode => causes.push(Cause::not_supported(&at("volumeMode"), &mode.into(), &["Block", "Filesystem"])),
    }
    causes.extend(data_sources(spec, field, options));
    match json::text(spec, "/volumeAttributesClassName") {
        "" => (),
        class => causes.extend(meta::invalid_causes(
            &at("volumeAttributesClassName"),
            class,
            names::subdomain(class, false),
        )),
    }
    causes
}

fn data_sources(spec: &Value, field: &str, options: &SpecValidationOptions) -> Vec<Cause> {
    let mut causes = Vec::new();
    for name in ["dataSource", "dataSourceRef"] {
        let Some(source) = spec.get(name) else { continue };
        let field = format!("{field}.{name}");
        for part in ["name", "kind"] {
            if json::text(source, &format!("/{part}")).is_empty() {
                causes.push(Cause::required(&format!("{field}.{part}"), ""));
            }
        }
        match (json::text(source, "/apiGroup"), json::text(source, "/kind")) {
            ("", "PersistentVolumeClaim") => (),
            ("", kind) => {
                let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
                causes.push(Cause::invalid(&field, &kind.into(), detail));
            }
            (group, _) if !options.allow_invalid_api_group => {
                causes.extend(meta::invalid_causes(
                    &format!("{field}.apiGroup"),
                    group,
                    names::subdomain(group, false),
                ));
            }
            _ => (),
        }
        match json::text(source, "/namespace") {
            "" => (),
            namespace => {
                causes.extend(meta::invalid_causes(
                    &format!("{field}.namespace"),
                    namespace,
                    names::label(namespace, false),
                ));
            }
        }
    }
    let (Some(source), Some(reference)) = (spec.get("dataSource"), spec.get("dataSourceRef")) else {
        return causes;
    };
    // In both cases, upstream passes a field path as the value, which it prints as `{}`.
    if !json::text(reference, "/namespace").is_empty() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        causes.push(Cause::invalid(field, &json!({}), detail));
    } else if ["apiGroup", "kind", "name"].iter().any(|part| source.get(part) != reference.get(part)) {
        causes.push(Cause::invalid(field, &json!({}), "must match dataSourceRef"));
    }
    causes
}

/// Warnings about a claim's spec.
pub(in crate::kinds) fn warnings(spec: &Value, field: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for part in ["requests", "limits"] {
        let pointer = format!("/resources/{part}/storage");
        let Some(size) = json::quantity(spec, &pointer) else { continue };
        if Quantity::from_bytes(size.bytes()) != size {
            warnings.push(format!(
                "{field}.resources.{part}[storage]: fractional byte value {} is invalid, must be an integer",
                json::at(spec, &pointer)
            ));
        }
    }
    warnings
}
