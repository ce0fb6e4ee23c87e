//! Validation of a pod's volumes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wharf_model::Quantity;

use crate::kinds::claim::spec::{self as claim_spec, SpecValidationOptions};
use crate::kinds::volume::source;
use crate::kinds::{csi_node, json, meta, names};
use crate::status::Cause;

/// Volume sources in the order of validation: name in the API, name in messages.
const SOURCES: [(&str, &str); 30] = [
    ("emptyDir", "emptyDir"),
    ("hostPath", "hostPath"),
    ("gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret"),
    ("nfs", "nfs"),
    ("iscsi", "iscsi"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd"),
    ("cinder", "cinder"),
    ("cephfs", "cephFS"),
    ("quobyte", "quobyte"),
    // Upstream's typo.
    ("downwardAPI", "downwarAPI"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("configMap", "configMap"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("storageos", "storageos"),
    ("projected", "projected"),
    ("scaleIO", "scaleIO"),
    ("csi", "csi"),
    ("ephemeral", "ephemeral"),
    ("image", "image"),
];

/// Returns the valid volumes by name, and the errors of the others.
pub(super) fn validate<'a>(spec: &'a Value, pod: &str) -> (BTreeMap<&'a str, &'a Value>, Vec<Cause>) {
    let volumes = json::list(spec, "/volumes");
    let generated_claims: BTreeSet<String> = volumes
        .iter()
        .filter(|volume| !pod.is_empty() && volume.get("ephemeral").is_some())
        .map(|volume| format!("{pod}-{}", json::text(volume, "/name")))
        .collect();
    let mut valid = BTreeMap::new();
    let mut causes = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = format!("spec.volumes[{index}]");
        let name = json::text(volume, "/name");
        let mut errors = validate_source(volume, &field, pod);
        if name.is_empty() {
            errors.push(Cause::required(&format!("{field}.name"), ""));
        } else {
            errors.extend(meta::invalid_causes(&format!("{field}.name"), name, names::label(name, false)));
        }
        if valid.contains_key(name) {
            errors.push(Cause::duplicate(&format!("{field}.name"), &name.into()));
        }
        if errors.is_empty() {
            valid.insert(name, volume);
        }
        causes.extend(errors);
        let claim = json::text(volume, "/persistentVolumeClaim/claimName");
        if generated_claims.contains(claim) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            causes.push(Cause::invalid(
                &format!("{field}.persistentVolumeClaim.claimName"),
                &claim.into(),
                detail,
            ));
        }
    }
    (valid, causes)
}

fn validate_source(volume: &Value, field: &str, pod: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut found = 0;
    for (name, named) in SOURCES {
        let Some(source) = volume.get(name) else { continue };
        found += 1;
        if found > 1 {
            causes.push(Cause::forbidden(
                &format!("{field}.{named}"),
                "may not specify more than 1 volume type",
            ));
            continue;
        }
        let at = format!("{field}.{name}");
        let required = |part: &str| {
            json::text(source, &format!("/{part}"))
                .is_empty()
                .then(|| Cause::required(&format!("{at}.{part}"), ""))
        };
        match name {
            "emptyDir" if json::quantity(source, "/sizeLimit").is_some_and(|size| size < Quantity::ZERO) => {
                let detail = "SizeLimit field must be a valid resource quantity";
                causes.push(Cause::forbidden(&format!("{at}.sizeLimit"), detail));
            }
            "hostPath" => causes.extend(source::host_path(source, &at)),
            "nfs" => causes.extend(source::nfs(source, &at)),
            "persistentVolumeClaim" => causes.extend(required("claimName")),
            "secret" => {
                causes.extend(required("secretName"));
                causes.extend(key_to_paths(source, &at));
            }
            "configMap" => {
                causes.extend(required("name"));
                causes.extend(key_to_paths(source, &at));
            }
            "downwardAPI" | "projected" => causes.extend(mode(source, "defaultMode", &at)),
            "csi" => {
                causes.extend(csi_node::driver_name(json::text(source, "/driver"), &format!("{at}.driver")));
                if let Some(secret) = source.get("nodePublishSecretRef") {
                    match json::text(secret, "/name") {
                        "" => causes.push(Cause::required(&format!("{at}.nodePublishSecretRef.name"), "")),
                        // Upstream's path omits the reference.
                        name => {
                            causes.extend(meta::invalid_causes(
                                &format!("{at}.name"),
                                name,
                                names::subdomain(name, false),
                            ));
                        }
                    }
                }
            }
            "ephemeral" => causes.extend(ephemeral(source, &at, field, pod, json::text(volume, "/name"))),
            _ => (),
        }
    }
    if found == 0 {
        causes.push(Cause::required(field, "must specify a volume type"));
    }
    causes
}

/// Validates a generic ephemeral volume, whose claim is created and deleted with the pod.
fn ephemeral(source: &Value, at: &str, field: &str, pod: &str, name: &str) -> Vec<Cause> {
    let template_at = format!("{at}.volumeClaimTemplate");
    let Some(template) = source.get("volumeClaimTemplate") else {
        return vec![Cause::required(&template_at, "")];
    };
    let mut causes = meta::labels(template, "/metadata/labels", &format!("{template_at}.metadata.labels"));
    let annotations = format!("{template_at}.metadata.annotations");
    causes.extend(meta::annotations(template, "/metadata/annotations", &annotations));
    let spec = json::at(template, "/spec");
    causes.extend(claim_spec::validate(
        &spec,
        &format!("{template_at}.spec"),
        &SpecValidationOptions::default(),
    ));
    if !pod.is_empty() && !name.is_empty() {
        let claim = format!("{pod}-{name}");
        for error in names::subdomain(&claim, false) {
            let detail = format!("PVC name {claim:?}: {error}");
            causes.push(Cause::invalid(&format!("{field}.name"), &name.into(), &detail));
        }
    }
    causes
}

fn mode(source: &Value, field: &str, at: &str) -> Option<Cause> {
    let mode = json::number(source, &format!("/{field}")).filter(|mode| !(0..=0o777).contains(mode))?;
    let detail = "must be a number between 0 and 0777 (octal), both inclusive";
    Some(Cause::invalid(&format!("{at}.{field}"), &mode.into(), detail))
}

/// Validates the keys that are projected to files.
fn key_to_paths(source: &Value, at: &str) -> Vec<Cause> {
    let mut causes: Vec<Cause> = mode(source, "defaultMode", at).into_iter().collect();
    for (index, item) in json::list(source, "/items").iter().enumerate() {
        let at = format!("{at}.items[{index}]");
        for part in ["key", "path"] {
            if json::text(item, &format!("/{part}")).is_empty() {
                causes.push(Cause::required(&format!("{at}.{part}"), ""));
            }
        }
        let path = json::text(item, "/path");
        causes.extend(local_descending_path(path, &format!("{at}.path")));
        if path.starts_with("..") && !path.starts_with("../") {
            causes.push(Cause::invalid(&format!("{at}.path"), &path.into(), "must not start with '..'"));
        }
        causes.extend(mode(item, "mode", &at));
    }
    causes
}

/// Validates a relative path that does not leave its base directory.
pub(super) fn local_descending_path(path: &str, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    if path.starts_with('/') {
        causes.push(Cause::invalid(field, &path.into(), "must be a relative path"));
    }
    causes.extend(source::no_backsteps(path, field));
    causes
}

/// Rejects projected tokens in a pod without a service account.
pub(super) fn tokens_without_account(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (i, volume) in json::list(spec, "/volumes").iter().enumerate() {
        for (j, source) in json::list(volume, "/projected/sources").iter().enumerate() {
            if source.get("serviceAccountToken").is_some() {
                let field = format!("spec.volumes[{i}].projected.sources[{j}].serviceAccountToken");
                causes.push(Cause::forbidden(
                    &field,
                    "must not be specified when serviceAccountName is not set",
                ));
            }
        }
    }
    causes
}
