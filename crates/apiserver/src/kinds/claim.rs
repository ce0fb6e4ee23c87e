//! PersistentVolumeClaim: a user's request for a volume.

use serde_json::{Value, json};

use super::{
    AGE, Admission, BASE, Column, Kind, NAME, Operation, Subresource, age, json, names, storage_class, volume,
};
use crate::status::StatusError;

pub(super) mod spec;
mod update;

pub(super) static CLAIM: Kind = Kind {
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    short_names: &["pvc"],
    namespaced: true,
    subresources: &[Subresource::status("", "PersistentVolumeClaim")],
    default: |claim| {
        json::set_default(json::object_mut(claim, "spec"), "volumeMode", "Filesystem");
        json::set_default(json::object_mut(claim, "status"), "phase", "Pending");
        json::null_missing_times(claim, "/status/conditions", &["lastProbeTime", "lastTransitionTime"]);
    },
    on_create: |claim, _| {
        claim["status"] = json!({"phase": "Pending"});
        normalize_data_sources(claim, None);
    },
    on_update: |claim, old, _| {
        json::restore(claim, old, "status");
        normalize_data_sources(claim, Some(old));
    },
    on_status: |claim, old, _| json::restore(claim, old, "spec"),
    validate: |claim| {
        let mut causes = super::meta::validate(claim, true, names::subdomain);
        causes.extend(spec::validate(
            &json::at(claim, "/spec"),
            "spec",
            &spec::SpecValidationOptions::default(),
        ));
        causes
    },
    validate_update: update::validate,
    validate_status: update::validate_status,
    warnings: |claim, _| {
        let mut warnings = Vec::new();
        if json::annotation(claim, volume::BETA_CLASS).is_some() {
            let warning = "deprecated since v1.8; use \"storageClassName\" attribute instead";
            warnings.push(format!("metadata.annotations[{}]: {warning}", volume::BETA_CLASS));
        }
        warnings.extend(spec::warnings(&json::at(claim, "/spec"), "spec"));
        warnings
    },
    admit: |claim, admission| {
        if admission.operation == Operation::Create && admission.subresource.is_empty() {
            volume::add_protection_finalizer(claim, admission, "kubernetes.io/pvc-protection");
            if let Some(class) = default_class(claim, admission) {
                json::object_mut(claim, "spec").insert("storageClassName".into(), class);
            }
        }
        Ok(())
    },
    validate_admission: check_expansion,
    columns: &[
        NAME,
        Column::text("Status", "The phase of the claim."),
        Column::text("Volume", "The PersistentVolume that the claim is, or will be, bound to."),
        Column::text("Capacity", "The size of the bound volume."),
        Column::text("Access Modes", "The access modes of the bound volume."),
        Column::text("StorageClass", "The StorageClass of the claim."),
        Column::text("VolumeAttributesClass", "The VolumeAttributesClass of the claim."),
        AGE,
        Column::text("VolumeMode", "Filesystem or Block.").wide(),
    ],
    row: |claim, now| {
        let name = json::text(claim, "/spec/volumeName");
        let (capacity, modes) = if name.is_empty() {
            (String::new(), String::new())
        } else {
            (
                volume::size_cell(claim, "/status/capacity/storage"),
                volume::short_access_modes(json::list(claim, "/status/accessModes")),
            )
        };
        vec![
            json::text(claim, "/metadata/name").into(),
            volume::phase_cell(claim).into(),
            name.into(),
            capacity.into(),
            modes.into(),
            class(claim).into(),
            volume::or_unset(claim, "/spec/volumeAttributesClassName").into(),
            age(claim, now).into(),
            volume::or_unset(claim, "/spec/volumeMode").into(),
        ]
    },
    ..BASE
};

/// The class of a claim. The annotation takes precedence over the field.
fn class(claim: &Value) -> &str {
    json::annotation(claim, volume::BETA_CLASS).unwrap_or(json::text(claim, "/spec/storageClassName"))
}

/// The newest default class, for a claim that names no class. An empty name counts as a name: it disables the default.
fn default_class(claim: &Value, admission: &Admission<'_>) -> Option<Value> {
    if json::annotation(claim, volume::BETA_CLASS).is_some() || json::has(claim, "/spec/storageClassName") {
        return None;
    }
    let classes = admission.lookup.list(&storage_class::STORAGE_CLASS, "");
    let marked = classes.iter().filter(|class| storage_class::is_default(class));
    let newest = marked.max_by_key(|class| {
        let name = json::text(class, "/metadata/name");
        (json::text(class, "/metadata/creationTimestamp"), std::cmp::Reverse(name))
    });
    newest.map(|class| json::at(class, "/metadata/name"))
}

/// A claim can be expanded only if it is bound and its class allows expansion.
fn check_expansion(claim: &Value, admission: &Admission<'_>) -> Result<(), StatusError> {
    let (Some(old), "") = (admission.old, admission.subresource) else { return Ok(()) };
    const SIZE: &str = "/spec/resources/requests/storage";
    let grows = match (json::quantity(claim, SIZE), json::quantity(old, SIZE)) {
        (Some(new), Some(old)) => new > old,
        _ => false,
    };
    if admission.operation != Operation::Update || !grows {
        return Ok(());
    }
    let forbid = |reason: &str| {
        Err(StatusError::forbidden(CLAIM.resource(), json::text(claim, "/metadata/name"), reason))
    };
    if json::text(old, "/status/phase") != "Bound" {
        return forbid("Only bound persistent volume claims can be expanded");
    }
    let name = class(claim);
    let allowed = !name.is_empty()
        && name == class(old)
        && admission
            .lookup
            .get(&storage_class::STORAGE_CLASS, "", name)
            .is_some_and(|class| json::flag(&class, "/allowVolumeExpansion"));
    if !allowed {
        return forbid(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support \
             resize",
        );
    }
    Ok(())
}

/// Synchronizes `dataSource` and `dataSourceRef`. The older field, `dataSource`, allows only claims and snapshots.
fn normalize_data_sources(claim: &mut Value, old: Option<&Value>) {
    let used = |field: &str| old.is_some_and(|old| json::has(old, &format!("/spec/{field}")));
    let was_used = used("dataSource") || used("dataSourceRef");
    let spec = json::object_mut(claim, "spec");
    // A source in another namespace is dropped: upstream's feature gate CrossNamespaceVolumeDataSource is disabled by
    // default.
    let in_other_namespace =
        spec.get("dataSourceRef").is_some_and(|source| !json::text(source, "/namespace").is_empty());
    if in_other_namespace && !used("dataSourceRef") {
        spec.remove("dataSourceRef");
    }
    if !was_used && !spec.contains_key("dataSourceRef") {
        let known = spec.get("dataSource").is_some_and(|source| {
            matches!(
                (json::text(source, "/apiGroup"), json::text(source, "/kind")),
                ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
            )
        });
        if !known {
            spec.remove("dataSource");
        }
    }
    match (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned()) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".into(), source);
        }
        (None, Some(source)) if json::text(&source, "/namespace").is_empty() => {
            let mut source = source;
            json::remove(&mut source, "namespace");
            spec.insert("dataSource".into(), source);
        }
        _ => (),
    }
}

#[cfg(test)]
mod tests;
