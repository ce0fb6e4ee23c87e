//! The simulated API server, with the Kubernetes controllers that act on volumes and claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use wharf_model::claim::ClaimPhase;
use wharf_model::names::annotation;
use wharf_model::volume::VolumePhase;
use wharf_model::{AccessMode, PersistentVolume, PersistentVolumeClaim, Quantity, StorageClass, Time};

use super::super::intent::Intent;

pub(super) const DRIVER: &str = "sim.test";
pub(super) const CLASS: &str = "standard";

/// The objects of the server. A cache is a lagging copy.
#[derive(Debug, Clone, Default)]
pub(super) struct Api {
    /// By name. Names are reused.
    pub(super) claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub(super) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// The volume of each attachment.
    pub(super) attachments: BTreeMap<String, String>,
    pub(super) journal: BTreeMap<String, Arc<Intent>>,
    /// The names of volumes that were recorded as suspects.
    pub(super) suspects: BTreeSet<String>,
    /// How often the class was created again.
    class_generation: u64,
    last: u64,
}

impl Api {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A user creates a claim. Only the first digit of its UID goes into the volume's name, so that names collide.
    pub(super) fn create_claim(&mut self, name: &str) {
        let number = self.next();
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = name.to_owned();
        claim.metadata.namespace = Some("ns".to_owned());
        claim.metadata.uid = format!("{}-{number}", number % 4);
        claim.metadata.resource_version = number.to_string();
        claim.metadata.creation_timestamp = Some(Time(i64::try_from(number).unwrap_or(0)));
        claim.metadata.annotations.insert(annotation::STORAGE_PROVISIONER, DRIVER);
        claim.spec.storage_class_name = Some(CLASS.to_owned());
        claim.spec.access_modes = vec![AccessMode::ReadWriteOnce];
        claim.spec.resources.requests.storage = Some(Quantity::from_bytes(1 << 20));
        self.claims.insert(name.to_owned(), Arc::new(claim));
    }

    pub(super) fn class(&self) -> StorageClass {
        let mut class = StorageClass { provisioner: DRIVER.to_owned(), ..StorageClass::default() };
        class.metadata.name = CLASS.to_owned();
        class.metadata.uid = format!("class-{}", self.class_generation);
        class
    }

    /// A user deletes the class and creates it again.
    pub(super) fn replace_class(&mut self) {
        self.class_generation += 1;
    }

    pub(super) fn copy_class(&mut self, other: &Self) {
        self.class_generation = other.class_generation;
    }

    /// Creates a volume object, unless there is one of this name.
    pub(super) fn create(&mut self, object: &Value) {
        let mut volume: PersistentVolume = serde_json::from_value(object.clone()).expect("a volume object");
        let name = volume.metadata.name.clone();
        if self.volumes.contains_key(&name) {
            return;
        }
        let number = self.next();
        volume.metadata.uid = format!("pv-{number}");
        volume.metadata.resource_version = number.to_string();
        volume.status.phase = VolumePhase::Pending;
        self.volumes.insert(name, Arc::new(volume));
    }

    /// Changes a volume object, if its UID still matches. An object in deletion without finalizers is removed.
    pub(super) fn change(&mut self, name: &str, uid: &str, how: impl FnOnce(&mut PersistentVolume)) {
        let number = self.next();
        let Some(volume) = self.volumes.get_mut(name).filter(|volume| volume.metadata.uid == uid) else {
            return;
        };
        let volume = Arc::make_mut(volume);
        how(volume);
        volume.metadata.resource_version = number.to_string();
        if volume.metadata.is_deleting() && volume.metadata.finalizers.is_empty() {
            self.volumes.remove(name);
        }
    }

    /// What the PV controller would do next with a volume: bind it to its claim, or release it from a deleted one.
    pub(super) fn next_binding(&self, name: &str) -> Option<BindingAction> {
        let volume = self.volumes.get(name)?;
        let reference = volume.spec.claim_ref.as_ref()?;
        let claim = self.claims.get(&reference.name).filter(|claim| claim.metadata.uid == reference.uid);
        match (claim, volume.status.phase) {
            (Some(claim), VolumePhase::Pending | VolumePhase::Available)
                if claim.spec.volume_name.is_empty() =>
            {
                Some(BindingAction::Bind { claim: reference.name.clone() })
            }
            (None, VolumePhase::Pending | VolumePhase::Available | VolumePhase::Bound) => {
                Some(BindingAction::Release)
            }
            _ => None,
        }
    }

    pub(super) fn apply_binding(&mut self, name: &str, what: &BindingAction) {
        let Some(uid) = self.volumes.get(name).map(|volume| volume.metadata.uid.clone()) else { return };
        match what {
            BindingAction::Bind { claim } => {
                if let Some(claim) = self.claims.get_mut(claim) {
                    let claim = Arc::make_mut(claim);
                    claim.spec.volume_name = name.to_owned();
                    claim.status.phase = ClaimPhase::Bound;
                }
                self.change(name, &uid, |volume| volume.status.phase = VolumePhase::Bound);
            }
            BindingAction::Release => {
                self.change(name, &uid, |volume| volume.status.phase = VolumePhase::Released);
            }
        }
    }

    /// The claim that is bound to the volume with this handle.
    pub(super) fn in_use(&self, handle: &str) -> Option<&str> {
        self.volumes.values().find_map(|volume| {
            volume.spec.csi.as_ref().filter(|csi| csi.volume_handle == handle)?;
            let claim = self.claims.values().find(|claim| claim.spec.volume_name == volume.metadata.name)?;
            volume.is_bound_to(&claim.metadata).then_some(claim.metadata.name.as_str())
        })
    }
}

/// An action of the PV controller.
#[derive(Debug, Clone)]
pub(super) enum BindingAction {
    Bind { claim: String },
    Release,
}
