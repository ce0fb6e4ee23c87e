//! PersistentVolume: a provisioned volume.

use serde_json::{Value, json};

use super::go;
use super::{
    AGE, Admission, BASE, Column, Kind, NAME, Operation, Subresource, age, json, legacy, meta, names,
    topology,
};
use crate::status::Cause;

pub(super) mod source;
pub(super) mod spec;

use source::SOURCES;

pub(super) static VOLUME: Kind = Kind {
    kind: "PersistentVolume",
    plural: "persistentvolumes",
    singular: "persistentvolume",
    short_names: &["pv"],
    subresources: &[Subresource::status("", "PersistentVolume")],
    default: |volume| {
        let spec = json::object_mut(volume, "spec");
        json::set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
        json::set_default(spec, "volumeMode", "Filesystem");
        legacy::default(spec);
        json::set_default(json::object_mut(volume, "status"), "phase", "Pending");
    },
    on_create: |volume, now| {
        volume["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": now.to_string()});
    },
    on_update: |volume, old, _| json::restore(volume, old, "status"),
    on_status: |volume, old, now| {
        json::restore(volume, old, "spec");
        const SINCE: &str = "/status/lastPhaseTransitionTime";
        let changed = json::text(volume, "/status/phase") != json::text(old, "/status/phase");
        let (since, before) = (json::at(volume, SINCE), json::at(old, SINCE));
        let status = json::object_mut(volume, "status");
        if !changed && since.is_null() && !before.is_null() {
            status.insert("lastPhaseTransitionTime".into(), before);
        } else if changed && (since.is_null() || since == before) {
            status.insert("lastPhaseTransitionTime".into(), now.to_string().into());
        }
    },
    validate: |volume| {
        let mut causes = validate(volume, false);
        causes.extend(mount_options(volume));
        causes
    },
    validate_update,
    validate_status: |volume, old| {
        let mut causes = meta::validate_update(volume, old);
        if json::text(volume, "/metadata/resourceVersion").is_empty() {
            causes.push(Cause::required("resourceVersion", ""));
        }
        causes
    },
    warnings: |volume, _| warnings(volume),
    admit: |volume, admission| {
        add_protection_finalizer(volume, admission, "kubernetes.io/pv-protection");
        Ok(())
    },
    columns: &[
        NAME,
        Column::text("Capacity", "The size of the volume."),
        Column::text("Access Modes", "The access modes of the volume."),
        Column::text("Reclaim Policy", "What happens to the volume when its claim is deleted."),
        Column::text("Status", "The phase of the volume."),
        Column::text("Claim", "The claim that the volume is bound to or reserved for."),
        Column::text("StorageClass", "The StorageClass of the volume."),
        Column::text("VolumeAttributesClass", "The VolumeAttributesClass of the volume."),
        Column::text("Reason", "The reason for a failure."),
        AGE,
        Column::text("VolumeMode", "Filesystem or Block.").wide(),
    ],
    row: |volume, now| {
        let claim = if json::has(volume, "/spec/claimRef") {
            let text = |field| json::text(volume, field);
            format!("{}/{}", text("/spec/claimRef/namespace"), text("/spec/claimRef/name"))
        } else {
            String::new()
        };
        let class =
            json::annotation(volume, BETA_CLASS).unwrap_or(json::text(volume, "/spec/storageClassName"));
        vec![
            json::text(volume, "/metadata/name").into(),
            size_cell(volume, "/spec/capacity/storage").into(),
            short_access_modes(json::list(volume, "/spec/accessModes")).into(),
            json::text(volume, "/spec/persistentVolumeReclaimPolicy").into(),
            phase_cell(volume).into(),
            claim.into(),
            class.into(),
            or_unset(volume, "/spec/volumeAttributesClassName").into(),
            json::text(volume, "/status/reason").into(),
            age(volume, now).into(),
            or_unset(volume, "/spec/volumeMode").into(),
        ]
    },
    ..BASE
};

/// The annotation that named the class before `storageClassName` existed. It takes precedence.
pub(super) const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const BETA_MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Adds a finalizer to a new object, which prevents its deletion while it is in use.
pub(super) fn add_protection_finalizer(object: &mut Value, admission: &Admission<'_>, finalizer: &str) {
    if admission.operation != Operation::Create || !admission.subresource.is_empty() {
        return;
    }
    let metadata = json::object_mut(object, "metadata");
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(finalizers) = finalizers
        && !finalizers.iter().any(|one| one == finalizer)
    {
        finalizers.push(finalizer.into());
    }
}

/// Access modes, as kubectl abbreviates them.
pub(super) fn short_access_modes(modes: &[Value]) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let named = known.iter().filter(|(mode, _)| modes.iter().any(|one| one == mode));
    named.map(|(_, letters)| *letters).collect::<Vec<_>>().join(",")
}

/// A size as kubectl prints it; `0` if it is missing.
pub(super) fn size_cell(object: &Value, pointer: &str) -> String {
    match json::at(object, pointer) {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        _ => "0".into(),
    }
}

/// The phase, or `Terminating` if the object is being deleted.
pub(super) fn phase_cell(object: &Value) -> &str {
    if json::has(object, "/metadata/deletionTimestamp") {
        "Terminating"
    } else {
        json::text(object, "/status/phase")
    }
}

/// The string at a pointer; `<unset>` if there is none.
pub(super) fn or_unset<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("<unset>")
}

fn validate(volume: &Value, allow_invalid_values: bool) -> Vec<Cause> {
    let mut causes = meta::validate(volume, false, names::subdomain);
    causes.extend(spec::validate(&json::at(volume, "/spec"), "spec", false, allow_invalid_values));
    causes
}

/// The mount-options annotation is allowed only for in-tree volume sources that support it.
fn mount_options(volume: &Value) -> Option<Cause> {
    const UNSUPPORTED: [&str; 9] =
        ["hostPath", "flocker", "fc", "flexVolume", "portworxVolume", "scaleIO", "local", "storageos", "csi"];
    json::annotation(volume, BETA_MOUNT_OPTIONS)?;
    let is_supported = SOURCES
        .iter()
        .any(|(name, _)| !UNSUPPORTED.contains(name) && json::has(volume, &format!("/spec/{name}")));
    let field = format!("metadata.annotations.{BETA_MOUNT_OPTIONS}");
    (!is_supported).then(|| Cause::forbidden(&field, "may not specify mount options for this volume type"))
}

fn validate_update(volume: &Value, old: &Value) -> Vec<Cause> {
    let allow_invalid_values = old.pointer("/spec/nodeAffinity/required").is_some_and(|before| {
        topology::node_selector(before, "", true).len() != topology::node_selector(before, "", false).len()
    });
    let mut causes = validate(volume, allow_invalid_values);
    causes.extend(mount_options(volume));
    causes.extend(validate(volume, allow_invalid_values));
    let sources = |volume: &Value| -> Value {
        let present = SOURCES
            .iter()
            .filter_map(|(name, _)| Some(((*name).to_owned(), volume.get("spec")?.get(name)?.clone())));
        present.collect::<serde_json::Map<_, _>>().into()
    };
    let (mut new_source, old_source) = (sources(volume), sources(old));
    if json::has(&old_source, "/csi")
        && !json::has(&old_source, "/csi/controllerExpandSecretRef")
        && let Some(csi) = new_source.get_mut("csi")
    {
        json::remove(csi, "controllerExpandSecretRef");
    }
    if new_source != old_source {
        let detail = format!(
            "spec.persistentvolumesource is immutable after creation\n{}",
            go::difference(&old_source, &new_source, "PersistentVolumeSource")
        );
        causes.push(Cause::forbidden("spec.persistentvolumesource", &detail));
    }
    causes.extend(meta::immutable(volume, old, "/spec/volumeMode", "volumeMode"));
    if json::has(old, "/spec/nodeAffinity") {
        let affinity = json::at(volume, "/spec/nodeAffinity");
        if !same_affinity(&affinity, &json::at(old, "/spec/nodeAffinity")) {
            let detail = "field is immutable, except for updating from beta label to GA";
            causes.push(meta::invalid_raw(
                "nodeAffinity",
                &go::compact(&affinity, "*VolumeNodeAffinity"),
                detail,
            ));
        }
    }
    if json::has(old, "/spec/volumeAttributesClassName")
        && !json::has(volume, "/spec/volumeAttributesClassName")
    {
        let detail = "update from non-nil value to nil is forbidden";
        causes.push(Cause::forbidden("spec.volumeAttributesClassName", detail));
    }
    causes
}

/// Whether two affinities are equal, apart from deprecated label keys that were updated to the GA key.
fn same_affinity(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old))
            if new.contains_key("operator") && old.contains_key("operator") =>
        {
            let mut old = old.clone();
            let renamed = match old.get("key").and_then(Value::as_str).unwrap_or_default() {
                "beta.kubernetes.io/arch" => "kubernetes.io/arch",
                "beta.kubernetes.io/os" => "kubernetes.io/os",
                "failure-domain.beta.kubernetes.io/region" => "topology.kubernetes.io/region",
                "failure-domain.beta.kubernetes.io/zone" => "topology.kubernetes.io/zone",
                "beta.kubernetes.io/instance-type" => "node.kubernetes.io/instance-type",
                _ => "",
            };
            if new.get("key").is_some_and(|key| key == renamed) {
                old.insert("key".into(), renamed.into());
            }
            *new == old
        }
        (Value::Object(new), Value::Object(old)) => {
            new.len() == old.len()
                && new
                    .iter()
                    .all(|(key, value)| old.get(key).is_some_and(|before| same_affinity(value, before)))
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(value, before)| same_affinity(value, before))
        }
        (new, old) => new == old,
    }
}

fn warnings(volume: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (annotation, warning) in [
        (BETA_CLASS, "deprecated since v1.8; use \"storageClassName\" attribute instead"),
        (BETA_MOUNT_OPTIONS, "deprecated since v1.31; use \"mountOptions\" attribute instead"),
    ] {
        if json::annotation(volume, annotation).is_some() {
            warnings.push(format!("metadata.annotations[{annotation}]: {warning}"));
        }
    }
    if json::text(volume, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
             approach is to use dynamic provisioning."
                .into(),
        );
    }
    for (i, term) in json::list(volume, "/spec/nodeAffinity/required/nodeSelectorTerms").iter().enumerate() {
        for (j, one) in json::list(term, "/matchExpressions").iter().enumerate() {
            let key = json::text(one, "/key");
            if let Some(warning) = topology::deprecation(key) {
                let field =
                    format!("spec.nodeAffinity.required.nodeSelectorTerms[{i}].matchExpressions[{j}].key");
                warnings.push(format!("{field}: {key} is {warning}"));
            }
        }
    }
    for (source, named, since) in [
        ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ] {
        if json::has(volume, &format!("/spec/{source}")) {
            warnings.push(format!("spec.{named}: {since}"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
