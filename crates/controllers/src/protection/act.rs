//! Adds finalizers, and removes them once the object is proven unused.

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Patch, WatchOptions};
use wharf_model::names::finalizer;
use wharf_model::patch::{add_finalizer, remove_finalizer};
use wharf_model::{Key, Kind, Meta, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

use super::decide::{
    FinalizerAction, claim_action, class_action, classes_of_claim, classes_of_volume, pod_uses_claim,
    volume_action,
};
use super::{DELETING, ProtectionController};

/// Maximum number of attempts after conflicts; the object is re-read after each.
const MAX_CONFLICTS: u32 = 5;

/// Why a finalizer could not be updated.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProtectionError {
    /// The API server rejected the request.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// This replica no longer holds the lease.
    #[error("the lease was lost; the new leader continues")]
    NotLeader,
    /// Another client keeps changing the object.
    #[error("{0} still conflicts after {MAX_CONFLICTS} attempts: another client keeps changing it")]
    TooManyConflicts(String),
    /// The list is incomplete, so it does not prove that the object is unused.
    #[error("{count} {kind} objects cannot be decoded, so {subject} may be in use: repair or delete them")]
    Unreadable {
        /// The object that is being deleted.
        subject: String,
        /// The kind of the objects that could not be decoded.
        kind: &'static str,
        /// Their number.
        count: usize,
    },
}

impl ProtectionController {
    /// Adds the finalizer to a claim.
    pub(super) async fn reconcile_claim(&self, key: &Key) -> Result<(), ProtectionError> {
        let patch = || {
            let claim = self.claims.get(key).filter(|claim| claim_action(claim) == FinalizerAction::Add)?;
            add_finalizer(&claim.metadata, finalizer::CLAIM_PROTECTION)
        };
        self.patch_until_current::<PersistentVolumeClaim>(key, patch).await
    }

    /// Removes the finalizer from all unused claims of a namespace that are being deleted.
    pub(super) async fn reconcile_namespace(&self, namespace: &str) -> Result<(), ProtectionError> {
        // Read before the pods are listed: a claim that is being deleted gets no new users, since pods with such a
        // claim are not scheduled.
        let deleting = self.claims.by_index(DELETING, namespace);
        let deleting: Vec<_> = deleting.into_iter().filter(|claim| !self.has_users(claim)).collect();
        if deleting.is_empty() {
            return Ok(());
        }
        let options = WatchOptions { namespace: Some(namespace.to_owned()), ..WatchOptions::default() };
        let pods: Vec<Pod> = self.list_all(&options, &format!("a claim of {namespace}")).await?;
        let mut failed = None;
        for claim in deleting.iter().filter(|claim| !pods.iter().any(|pod| pod_uses_claim(pod, claim))) {
            let (key, uid) = (claim.key(), &claim.metadata.uid);
            let patch = || {
                let claim = self.claims.get(&key)?;
                // The pod list does not cover a new claim of the same name.
                let same =
                    claim.metadata.uid == *uid && claim_action(&claim) == FinalizerAction::RemoveIfUnused;
                same.then(|| remove_finalizer(&claim.metadata, finalizer::CLAIM_PROTECTION))?
            };
            // A failure for one claim does not block the others.
            failed = self.patch_until_current::<PersistentVolumeClaim>(&key, patch).await.err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Adds the finalizer to a volume, or removes it from one that is being deleted.
    pub(super) async fn reconcile_volume(&self, name: &str) -> Result<(), ProtectionError> {
        let key = Key::cluster(name);
        let patch = || {
            let volume = self.volumes.get(&key)?;
            match volume_action(&volume) {
                FinalizerAction::Keep => None,
                FinalizerAction::Add => add_finalizer(&volume.metadata, finalizer::VOLUME_PROTECTION),
                // If the volume was bound since, the API server rejects this patch.
                FinalizerAction::RemoveIfUnused => {
                    remove_finalizer(&volume.metadata, finalizer::VOLUME_PROTECTION)
                        .map(|patch| at_version(patch, &volume.metadata))
                }
            }
        };
        self.patch_until_current::<PersistentVolume>(&key, patch).await
    }

    /// Adds the finalizer to a VolumeAttributesClass, or removes it from an unused one that is being deleted.
    pub(super) async fn reconcile_class(&self, name: &str) -> Result<(), ProtectionError> {
        let key = Key::cluster(name);
        let Some(class) = self.classes.get(&key) else { return Ok(()) };
        let action = class_action(&class);
        if action == FinalizerAction::RemoveIfUnused && self.class_in_use(name).await? {
            return Ok(());
        }
        let uid = &class.metadata.uid;
        let patch = || {
            let class = self.classes.get(&key).filter(|class| class.metadata.uid == *uid)?;
            match (action, class_action(&class)) {
                (_, FinalizerAction::Add) => {
                    add_finalizer(&class.metadata, finalizer::ATTRIBUTES_CLASS_PROTECTION)
                }
                (FinalizerAction::RemoveIfUnused, FinalizerAction::RemoveIfUnused) => {
                    remove_finalizer(&class.metadata, finalizer::ATTRIBUTES_CLASS_PROTECTION)
                }
                _ => None,
            }
        };
        self.patch_until_current::<VolumeAttributesClass>(&key, patch).await
    }

    /// Whether a claim or a volume names the class: checks the stores first, then lists from the API server.
    async fn class_in_use(&self, class: &str) -> Result<bool, ProtectionError> {
        let known = self.volumes.first_by_index(super::BY_CLASS, class).is_some()
            || self.claims.first_by_index(super::BY_CLASS, class).is_some();
        if known {
            return Ok(true);
        }
        let (all, subject) = (WatchOptions::default(), format!("VolumeAttributesClass {class}"));
        let volumes: Vec<PersistentVolume> = self.list_all(&all, &subject).await?;
        if volumes.iter().any(|volume| classes_of_volume(volume).contains(class)) {
            return Ok(true);
        }
        let claims: Vec<PersistentVolumeClaim> = self.list_all(&all, &subject).await?;
        Ok(claims.iter().any(|claim| classes_of_claim(claim).contains(class)))
    }

    async fn list_all<K: Kind>(
        &self,
        options: &WatchOptions,
        subject: &str,
    ) -> Result<Vec<K>, ProtectionError> {
        let listed = self.context.cluster.list::<K>(options).await?;
        match listed.undecodable.len() {
            0 => Ok(listed.items),
            count => {
                Err(ProtectionError::Unreadable { subject: subject.to_owned(), kind: K::API.kind, count })
            }
        }
    }

    /// Sends the patch. After a conflict, re-reads the object, recomputes the patch and sends it again.
    async fn patch_until_current<K: Kind>(
        &self,
        key: &Key,
        patch: impl Fn() -> Option<Patch>,
    ) -> Result<(), ProtectionError> {
        for _ in 0..MAX_CONFLICTS {
            if !self.context.gate.is_open() {
                return Err(ProtectionError::NotLeader);
            }
            let Some(patch) = patch() else { return Ok(()) };
            match self.context.cluster.patch(&K::API, key, None, patch).await {
                Ok(_) | Err(ApiError::NotFound(_)) => return Ok(()),
                // The store is behind: this read updates it.
                Err(ApiError::Conflict(_) | ApiError::Invalid(_)) => {
                    if self.context.cluster.get::<K>(key).await?.is_none() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(ProtectionError::TooManyConflicts(format!("{} {key}", K::API.kind)))
    }
}

/// Makes a JSON patch fail if the object's resource version has changed.
fn at_version(patch: Patch, meta: &Meta) -> Patch {
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version});
    match patch {
        Patch::Json(Value::Array(mut operations)) => {
            operations.insert(0, test);
            Patch::Json(Value::Array(operations))
        }
        other => other,
    }
}
