//! The patch for each step. A patch applies only to the version in the view, since the step was decided on it.

use serde_json::{Value, json};
use wharf_model::claim::ClaimPhase;
use wharf_model::matching::is_reserved_for;
use wharf_model::names::{annotation, finalizer};
use wharf_model::patch::{Patch, remove_finalizer};
use wharf_model::{Meta, PersistentVolume, PersistentVolumeClaim};

use super::decide::{Step, access_modes_to_report, capacity_to_report};
use super::view::View;

/// A patch for the claim or for a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Write {
    Claim(Part, Patch),
    /// By name.
    Volume(String, Part, Patch),
}

/// The part of an object that a patch changes: the API server ignores the other part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything but the status.
    Spec,
    Status,
}

impl Part {
    /// The subresource to patch.
    pub(super) fn subresource(self) -> Option<&'static str> {
        match self {
            Self::Spec => None,
            Self::Status => Some("status"),
        }
    }
}

impl View {
    /// A volume of the view, by name.
    pub(super) fn volume(&self, name: &str) -> Option<&PersistentVolume> {
        let volumes = self.volumes.iter().chain(&self.offer).chain(&self.named_volume);
        volumes.map(|volume| &**volume).find(|volume| volume.metadata.name == name)
    }
}

/// The patch for a step; `None` for steps that write nothing.
pub(super) fn write(step: &Step, view: &View) -> Option<Write> {
    let claim = view.claim.as_deref();
    let of_claim = |part, body| Some(Write::Claim(part, merge(&claim?.metadata, body)));
    let of_volume = |name: &str, part, body| {
        Some(Write::Volume(name.to_owned(), part, merge(&view.volume(name)?.metadata, body)))
    };
    match step {
        Step::Idle(_) | Step::FetchClaim | Step::FetchVolume { .. } | Step::FetchNode { .. } => None,
        Step::BindVolume { volume } => {
            of_volume(volume, Part::Spec, bind_volume(view.volume(volume)?, claim?))
        }
        Step::SetVolumePhase { volume, phase, event } => {
            let message = event.as_ref().map(|event| &event.note);
            of_volume(volume, Part::Status, json!({"status": {"phase": phase.as_str(), "message": message}}))
        }
        Step::BindClaim { volume } => of_claim(Part::Spec, bind_claim(claim?, volume)),
        Step::MarkClaimBound { volume } => of_claim(Part::Status, claim_bound(claim?, view.volume(volume)?)),
        Step::SetClaimPhase { phase, .. } => {
            let status = json!({
                "phase": phase.as_str(),
                "accessModes": null,
                "capacity": null,
                "currentVolumeAttributesClassName": null,
            });
            of_claim(Part::Status, json!({"status": status}))
        }
        Step::AssignClass { class } => of_claim(Part::Spec, json!({"spec": {"storageClassName": class}})),
        Step::SetProvisioner { provisioner } => of_claim(
            Part::Spec,
            annotations(&[
                (annotation::STORAGE_PROVISIONER, Some(provisioner)),
                (annotation::BETA_STORAGE_PROVISIONER, Some(provisioner)),
            ]),
        ),
        Step::ClearSelectedNode => of_claim(
            Part::Spec,
            annotations(&[(annotation::SELECTED_NODE, None), (annotation::ALPHA_SELECTED_NODE, None)]),
        ),
        Step::Unbind { volume } => of_volume(volume, Part::Spec, unbind(view.volume(volume)?)),
        Step::MigrateClaim { to } => of_claim(Part::Spec, annotations(&[(annotation::MIGRATED_TO, *to)])),
        Step::MigrateVolume { volume, to } => {
            of_volume(volume, Part::Spec, annotations(&[(annotation::MIGRATED_TO, *to)]))
        }
        Step::RemoveInTreeFinalizer { volume } => {
            let patch = remove_finalizer(&view.volume(volume)?.metadata, finalizer::IN_TREE_DELETION)?;
            Some(Write::Volume(volume.clone(), Part::Spec, patch))
        }
    }
}

/// A merge patch for this version of the object.
fn merge(meta: &Meta, mut body: Value) -> Patch {
    body["metadata"]["uid"] = json!(meta.uid);
    body["metadata"]["resourceVersion"] = json!(meta.resource_version);
    Patch::Merge(body)
}

fn annotations(values: &[(&str, Option<&str>)]) -> Value {
    let values: serde_json::Map<_, _> =
        values.iter().map(|&(key, value)| (key.to_owned(), json!(value))).collect();
    json!({"metadata": {"annotations": values}})
}

fn bind_volume(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Value {
    let Meta { name, namespace, uid, resource_version, .. } = &claim.metadata;
    let mut body = match is_reserved_for(volume, claim) {
        // A user reserved the volume: without the annotation, that stays on record.
        true => json!({}),
        false => annotations(&[(annotation::BOUND_BY_CONTROLLER, Some("yes"))]),
    };
    body["spec"]["claimRef"] = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "resourceVersion": resource_version,
    });
    body
}

fn bind_claim(claim: &PersistentVolumeClaim, volume: &str) -> Value {
    let completed = (annotation::BIND_COMPLETED, Some("yes"));
    if claim.spec.volume_name == volume {
        return annotations(&[completed]);
    }
    let mut body = annotations(&[completed, (annotation::BOUND_BY_CONTROLLER, Some("yes"))]);
    body["spec"]["volumeName"] = json!(volume);
    body
}

fn claim_bound(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Value {
    let mut status = json!({"phase": ClaimPhase::Bound.as_str()});
    if let Some(modes) = access_modes_to_report(claim, volume) {
        status["accessModes"] = modes.iter().map(|mode| mode.as_str()).collect();
    }
    // The capacity is written once, when the claim becomes bound: afterwards it belongs to the resizer.
    if claim.status.phase != ClaimPhase::Bound
        && let Some(capacity) = capacity_to_report(volume)
        && claim.status.capacity.storage != Some(capacity)
    {
        status["capacity"] = json!({"storage": capacity.to_string()});
    }
    let class = &volume.spec.volume_attributes_class_name;
    if claim.status.phase == ClaimPhase::Pending
        && claim.status.current_volume_attributes_class_name != *class
    {
        status["currentVolumeAttributesClassName"] = json!(class);
    }
    json!({"status": status})
}

/// A volume that a user reserved stays reserved; one that a controller chose becomes available again.
fn unbind(volume: &PersistentVolume) -> Value {
    if volume.metadata.annotations.contains_key(annotation::BOUND_BY_CONTROLLER) {
        let mut body = annotations(&[(annotation::BOUND_BY_CONTROLLER, None)]);
        body["spec"]["claimRef"] = Value::Null;
        return body;
    }
    json!({"spec": {"claimRef": {"uid": null}}})
}
