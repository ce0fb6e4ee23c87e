//! Validation of a PersistentVolume's spec.

use serde_json::Value;

use super::source;
use crate::kinds::{json, meta, names, topology};
use crate::status::Cause;

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Validates the access modes of volumes and claims.
pub(in crate::kinds) fn access_modes(modes: &[Value], field: &str) -> Vec<Cause> {
    let is_known = |mode: &Value| mode.as_str().is_some_and(|mode| ACCESS_MODES.contains(&mode));
    let mut causes: Vec<Cause> = modes
        .iter()
        .filter(|mode| !is_known(mode))
        .map(|mode| Cause::not_supported(field, mode, &ACCESS_MODES))
        .collect();
    let is_single_pod = |mode: &Value| mode == "ReadWriteOncePod";
    if modes.iter().any(is_single_pod) && modes.iter().any(|mode| is_known(mode) && !is_single_pod(mode)) {
        causes.push(Cause::forbidden(field, "may not use ReadWriteOncePod with other access modes"));
    }
    causes
}

/// Validates the spec of a volume, or the inline spec of an attachment.
pub(in crate::kinds) fn validate(
    spec: &Value,
    field: &str,
    is_inline: bool,
    allow_invalid_values: bool,
) -> Vec<Cause> {
    let at = |name: &str| format!("{field}.{name}");
    let inline = "may not be specified in the context of inline volumes";
    let mut causes = Vec::new();
    let capacity: Vec<_> = json::entries(spec, "/capacity").collect();
    if is_inline {
        if json::has(spec, "/claimRef") {
            causes.push(Cause::forbidden(&at("claimRef"), inline));
        }
        if !capacity.is_empty() {
            causes.push(Cause::forbidden(&at("capacity"), inline));
        }
        if !json::has(spec, "/csi") {
            causes.push(Cause::required(&at("csi"), "has to be specified in the context of inline volumes"));
        }
    }
    let modes = json::list(spec, "/accessModes");
    if modes.is_empty() {
        causes.push(Cause::required(&at("accessModes"), ""));
    }
    causes.extend(access_modes(modes, &at("accessModes")));
    if !is_inline {
        if capacity.is_empty() {
            causes.push(Cause::required(&at("capacity"), ""));
        }
        if capacity.len() != 1 || capacity[0].0 != "storage" {
            causes.push(Cause::not_supported(&at("capacity"), &json::at(spec, "/capacity"), &["storage"]));
        }
        for (resource, value) in capacity {
            let Some(size) = json::quantity(value, "") else { continue };
            let field = format!("{}[{resource}]", at("capacity"));
            if size < wharf_model::Quantity::ZERO {
                causes.push(Cause::invalid(
                    &field,
                    &size.bytes().into(),
                    "must be a valid resource quantity",
                ));
            }
            if size <= wharf_model::Quantity::ZERO {
                causes.push(Cause::invalid(&field, value, "must be greater than zero"));
            }
        }
    }
    let policy = json::text(spec, "/persistentVolumeReclaimPolicy");
    let policies = ["Delete", "Recycle", "Retain"];
    if is_inline && !matches!(policy, "" | "Retain") {
        let detail = "may only be Retain in the context of inline volumes";
        causes.push(Cause::forbidden(&at("persistentVolumeReclaimPolicy"), detail));
    } else if !is_inline && !policy.is_empty() && !policies.contains(&policy) {
        causes.push(Cause::not_supported(&at("persistentVolumeReclaimPolicy"), &policy.into(), &policies));
    }
    if let Some(affinity) = spec.get("nodeAffinity") {
        if is_inline {
            causes.push(Cause::forbidden(&at("nodeAffinity"), inline));
        } else if let Some(required) = affinity.get("required") {
            causes.extend(topology::node_selector(
                required,
                &at("nodeAffinity.required"),
                allow_invalid_values,
            ));
        } else {
            let detail = "must specify required node constraints";
            causes.push(Cause::required(&at("nodeAffinity.required"), detail));
        }
    }
    causes.extend(source::validate(spec, field, is_inline));
    if policy == "Recycle" && is_root(json::text(spec, "/hostPath/path")) {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        causes.push(Cause::forbidden(&at("persistentVolumeReclaimPolicy"), detail));
    }
    match json::text(spec, "/storageClassName") {
        "" => (),
        _ if is_inline => causes.push(Cause::forbidden(&at("storageClassName"), inline)),
        class => causes.extend(meta::invalid_causes(
            &at("storageClassName"),
            class,
            names::subdomain(class, false),
        )),
    }
    match json::text(spec, "/volumeMode") {
        "" | "Filesystem" => (),
        _ if is_inline => {
            let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            causes.push(Cause::forbidden(&at("volumeMode"), detail));
        }
        "Block" => (),
        mode => causes.push(Cause::not_supported(&at("volumeMode"), &mode.into(), &["Block", "Filesystem"])),
    }
    // Upstream validates this field only in PersistentVolumes.
    if let Some(class) = spec.get("volumeAttributesClassName").and_then(Value::as_str).filter(|_| !is_inline)
    {
        let field = at("volumeAttributesClassName");
        if class.is_empty() {
            causes.push(Cause::required(&field, "an empty string is disallowed"));
        } else {
            causes.extend(meta::invalid_causes(&field, class, names::subdomain(class, false)));
        }
        if !json::has(spec, "/csi") {
            causes.push(Cause::required(
                &at("csi"),
                "has to be specified when using volumeAttributesClassName",
            ));
        }
    }
    causes
}

/// Whether a path resolves to `/`.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
}
