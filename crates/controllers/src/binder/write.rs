//! What each step writes: a patch that holds only for the version that was seen, since each was decided on what that
//! version says.

use serde_json::{Value, json};
use wharf_model::claim::ClaimPhase;
use wharf_model::matching::is_for;
use wharf_model::names::{annotation, finalizer};
use wharf_model::patch::{Patch, remove_finalizer};
use wharf_model::{Meta, PersistentVolume, PersistentVolumeClaim};

use super::decide::{Step, capacity, modes};
use super::view::View;

/// A write to one of the two.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// To the claim.
    Claim(Part, Patch),
    /// To a volume, by name.
    Volume(String, Part, Patch),
}

/// Which half of an object: the server ignores the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All but the status.
    Spec,
    /// The status.
    Status,
}

impl Part {
    /// The subresource.
    pub(super) fn subresource(self) -> Option<&'static str> {
        match self {
            Self::Spec => None,
            Self::Status => Some("status"),
        }
    }
}

impl View {
    /// A volume that is seen.
    pub(super) fn volume(&self, name: &str) -> Option<&PersistentVolume> {
        let seen = self.volumes.iter().chain(&self.offer).chain(&self.named);
        seen.map(|volume| &**volume).find(|volume| volume.metadata.name == name)
    }
}

/// What a step writes; nothing, if it asks or rests.
pub(super) fn write(step: &Step, view: &View) -> Option<Write> {
    let claim = view.claim.as_deref();
    let of_claim = |part, body| Some(Write::Claim(part, merge(&claim?.metadata, body)));
    let of_volume = |name: &str, part, body| {
        Some(Write::Volume(name.to_owned(), part, merge(&view.volume(name)?.metadata, body)))
    };
    match step {
        Step::Rest(_) | Step::AskClaim | Step::AskVolume { .. } | Step::AskNode { .. } => None,
        Step::BindVolume { volume } => {
            of_volume(volume, Part::Spec, bind_volume(view.volume(volume)?, claim?))
        }
        Step::VolumePhase { volume, phase, told } => {
            let message = told.as_ref().map(|told| &told.note);
            of_volume(volume, Part::Status, json!({"status": {"phase": phase.as_str(), "message": message}}))
        }
        Step::BindClaim { volume } => of_claim(Part::Spec, bind_claim(claim?, volume)),
        Step::ClaimBound { volume } => of_claim(Part::Status, claim_bound(claim?, view.volume(volume)?)),
        Step::ClaimPhase { phase, .. } => {
            let status = json!({
                "phase": phase.as_str(),
                "accessModes": null,
                "capacity": null,
                "currentVolumeAttributesClassName": null,
            });
            of_claim(Part::Status, json!({"status": status}))
        }
        Step::AssignClass { class } => of_claim(Part::Spec, json!({"spec": {"storageClassName": class}})),
        Step::HandOver { provisioner } => of_claim(
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
        Step::FreeVolume { volume } => {
            let patch = remove_finalizer(&view.volume(volume)?.metadata, finalizer::IN_TREE_DELETION)?;
            Some(Write::Volume(volume.clone(), Part::Spec, patch))
        }
    }
}

/// A change of the object as it was seen.
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
    let mut body = match is_for(volume, claim) {
        // A person reserved it: that stays to be seen.
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
    if let Some(modes) = modes(claim, volume) {
        status["accessModes"] = modes.iter().map(|mode| mode.as_str()).collect();
    }
    // The size is told when the claim becomes bound, and never again: afterwards it is for those who resize.
    if claim.status.phase != ClaimPhase::Bound
        && let Some(capacity) = capacity(volume)
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

/// What a person reserved stays reserved; what a controller chose is to be had again.
fn unbind(volume: &PersistentVolume) -> Value {
    if volume.metadata.annotations.contains_key(annotation::BOUND_BY_CONTROLLER) {
        let mut body = annotations(&[(annotation::BOUND_BY_CONTROLLER, None)]);
        body["spec"]["claimRef"] = Value::Null;
        return body;
    }
    json!({"spec": {"claimRef": {"uid": null}}})
}
