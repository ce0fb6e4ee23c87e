//! PersistentVolumeClaim: the volume that a user asks for.

use serde_json::{Value, json};

use super::{
    AGE, Admission, BASE, Column, Kind, NAME, Operation, Subresource, age, json, names, storage_class, volume,
};
use crate::status::Refusal;

mod change;
pub(super) mod spec;

/// The volume that a user asks for.
pub(super) static CLAIM: Kind = Kind {
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    short_names: &["pvc"],
    namespaced: true,
    subresources: &[Subresource::status("", "PersistentVolumeClaim")],
    default: |claim| {
        json::fill(json::map(claim, "spec"), "volumeMode", "Filesystem");
        json::fill(json::map(claim, "status"), "phase", "Pending");
        json::times(claim, "/status/conditions", &["lastProbeTime", "lastTransitionTime"]);
    },
    on_create: |claim, _| {
        claim["status"] = json!({"phase": "Pending"});
        data_sources(claim, None);
    },
    on_update: |claim, old, _| {
        json::keep(claim, old, "status");
        data_sources(claim, Some(old));
    },
    on_status: |claim, old, _| json::keep(claim, old, "spec"),
    validate: |claim| {
        let mut causes = super::meta::validate(claim, true, names::subdomain);
        causes.extend(spec::validate(&json::at(claim, "/spec"), "spec", &spec::Leave::default()));
        causes
    },
    validate_update: change::validate,
    validate_status: change::validate_status,
    warnings: |claim, _| {
        let mut warnings = Vec::new();
        if json::annotation(claim, volume::BETA_CLASS).is_some() {
            let words = "deprecated since v1.8; use \"storageClassName\" attribute instead";
            warnings.push(format!("metadata.annotations[{}]: {words}", volume::BETA_CLASS));
        }
        warnings.extend(spec::warnings(&json::at(claim, "/spec"), "spec"));
        warnings
    },
    admit: |claim, admission| {
        if admission.operation == Operation::Create && admission.subresource.is_empty() {
            volume::protect(claim, admission, "kubernetes.io/pvc-protection");
            if let Some(class) = default_class(claim, admission) {
                json::map(claim, "spec").insert("storageClassName".into(), class);
            }
        }
        Ok(())
    },
    confirm: may_grow,
    columns: &[
        NAME,
        Column::text("Status", "Whether it is bound."),
        Column::text("Volume", "The volume it is bound to, or is to be."),
        Column::text("Capacity", "The size of that volume."),
        Column::text("Access Modes", "How that volume can be used."),
        Column::text("StorageClass", "The class its volume is made by."),
        Column::text("VolumeAttributesClass", "The class of its volume's attributes."),
        AGE,
        Column::text("VolumeMode", "A file system or a bare device.").wide(),
    ],
    row: |claim, now| {
        let name = json::text(claim, "/spec/volumeName");
        let (capacity, modes) = if name.is_empty() {
            (String::new(), String::new())
        } else {
            (
                volume::size(claim, "/status/capacity/storage"),
                volume::modes(json::list(claim, "/status/accessModes")),
            )
        };
        vec![
            json::text(claim, "/metadata/name").into(),
            volume::phase(claim).into(),
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

/// The class of a claim; the annotation goes before the field.
fn class(claim: &Value) -> &str {
    json::annotation(claim, volume::BETA_CLASS).unwrap_or(json::text(claim, "/spec/storageClassName"))
}

/// The class for a claim that names none, not even the empty one: the newest that is marked as default.
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

/// A claim grows only when it is bound and its class allows it.
fn may_grow(claim: &Value, admission: &Admission<'_>) -> Result<(), Refusal> {
    let (Some(old), "") = (admission.old, admission.subresource) else { return Ok(()) };
    const SIZE: &str = "/spec/resources/requests/storage";
    let grows = match (json::quantity(claim, SIZE), json::quantity(old, SIZE)) {
        (Some(new), Some(old)) => new > old,
        _ => false,
    };
    if admission.operation != Operation::Update || !grows {
        return Ok(());
    }
    let refuse =
        |why: &str| Err(Refusal::forbidden(CLAIM.resource(), json::text(claim, "/metadata/name"), why));
    if json::text(old, "/status/phase") != "Bound" {
        return refuse("Only bound persistent volume claims can be expanded");
    }
    let name = class(claim);
    let allowed = !name.is_empty()
        && name == class(old)
        && admission
            .lookup
            .get(&storage_class::STORAGE_CLASS, "", name)
            .is_some_and(|class| json::flag(&class, "/allowVolumeExpansion"));
    if !allowed {
        return refuse(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support \
             resize",
        );
    }
    Ok(())
}

/// A claim says twice what it is filled from: the older field knows only claims and snapshots.
fn data_sources(claim: &mut Value, old: Option<&Value>) {
    let used = |field: &str| old.is_some_and(|old| json::has(old, &format!("/spec/{field}")));
    let was_used = used("dataSource") || used("dataSourceRef");
    let spec = json::map(claim, "spec");
    // A source in another namespace: upstream's gate CrossNamespaceVolumeDataSource is off.
    let elsewhere =
        spec.get("dataSourceRef").is_some_and(|source| !json::text(source, "/namespace").is_empty());
    if elsewhere && !used("dataSourceRef") {
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
