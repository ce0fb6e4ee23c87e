//! Adds finalizers, and removes them once it is proven that nobody uses the object.

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Patch, WatchOptions};
use wharf_model::names::finalizer;
use wharf_model::patch::{add_finalizer, remove_finalizer};
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind, Meta, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass};

use super::decide::{Need, classes_of_claim, classes_of_volume, of_claim, of_class, of_volume, uses};
use super::{GOING, Keeper};

/// So often in a row an object may turn out to be another than we saw, before that counts as a failure.
const STALE: u32 = 5;

/// Why something is not protected, or not let go.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    /// The server did not take it.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Others are to do it.
    #[error("the lease is lost")]
    Shut,
    /// Somebody else writes all the time.
    #[error("{0} changes faster than it can be written")]
    Restless(String),
    /// A list that has holes proves nothing.
    #[error(
        "{count} {kind} objects cannot be read, so nobody can say whether {subject} is in use: repair or delete them"
    )]
    Unreadable {
        /// What is to go.
        subject: String,
        /// Of what.
        kind: &'static str,
        /// How many.
        count: usize,
    },
}

impl Keeper {
    /// A claim that lacks its finalizer.
    pub(super) async fn see_to_claim(&self, key: &Key) -> Result<(), KeepError> {
        let patch = || {
            let claim = self.claims.get(key).filter(|claim| of_claim(claim) == Need::Add)?;
            add_finalizer(&claim.metadata, finalizer::CLAIM_PROTECTION)
        };
        self.send::<PersistentVolumeClaim>(key, patch).await
    }

    /// All claims of a namespace that are to go.
    pub(super) async fn see_to_namespace(&self, namespace: &str) -> Result<(), KeepError> {
        // Taken before the pods are listed: who is to go by now gets no new users, since no pod with such a claim is
        // placed.
        let going = self.claims.by_index(GOING, namespace);
        let going: Vec<_> = going.into_iter().filter(|claim| !self.users(claim)).collect();
        if going.is_empty() {
            return Ok(());
        }
        let options = WatchOptions { namespace: Some(namespace.to_owned()), ..WatchOptions::default() };
        let pods: Vec<Pod> = self.listed(&options, &format!("a claim of {namespace}")).await?;
        let mut failed = None;
        for claim in going.iter().filter(|claim| !pods.iter().any(|pod| uses(pod, claim))) {
            let (key, uid) = (claim.key(), &claim.metadata.uid);
            let patch = || {
                let claim = self.claims.get(&key)?;
                // Another one of its name was not asked for.
                let same = claim.metadata.uid == *uid && of_claim(&claim) == Need::MayGo;
                same.then(|| remove_finalizer(&claim.metadata, finalizer::CLAIM_PROTECTION))?
            };
            // One that cannot be written keeps no other.
            failed = self.send::<PersistentVolumeClaim>(&key, patch).await.err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    /// A volume that lacks its finalizer, or is to go.
    pub(super) async fn see_to_volume(&self, name: &str) -> Result<(), KeepError> {
        let key = Key::cluster(name);
        let patch = || {
            let volume = self.volumes.get(&key)?;
            match of_volume(&volume) {
                Need::Nothing => None,
                Need::Add => add_finalizer(&volume.metadata, finalizer::VOLUME_PROTECTION),
                // It may have been bound since: then this is refused.
                Need::MayGo => remove_finalizer(&volume.metadata, finalizer::VOLUME_PROTECTION)
                    .map(|patch| at_version(patch, &volume.metadata)),
            }
        };
        self.send::<PersistentVolume>(&key, patch).await
    }

    /// A mutable class that lacks its finalizer, or is to go.
    pub(super) async fn see_to_class(&self, name: &str) -> Result<(), KeepError> {
        let key = Key::cluster(name);
        let Some(class) = self.classes.get(&key) else { return Ok(()) };
        let need = of_class(&class);
        if need == Need::MayGo && self.is_named(name).await? {
            return Ok(());
        }
        let uid = &class.metadata.uid;
        let patch = || {
            let class = self.classes.get(&key).filter(|class| class.metadata.uid == *uid)?;
            match (need, of_class(&class)) {
                (_, Need::Add) => add_finalizer(&class.metadata, finalizer::ATTRIBUTES_CLASS_PROTECTION),
                (Need::MayGo, Need::MayGo) => {
                    remove_finalizer(&class.metadata, finalizer::ATTRIBUTES_CLASS_PROTECTION)
                }
                _ => None,
            }
        };
        self.send::<VolumeAttributesClass>(&key, patch).await
    }

    /// Whether a claim or a volume names a mutable class: first those we know of, then the server.
    async fn is_named(&self, class: &str) -> Result<bool, KeepError> {
        let known = self.volumes.first_by_index(super::BY_CLASS, class).is_some()
            || self.claims.first_by_index(super::BY_CLASS, class).is_some();
        if known {
            return Ok(true);
        }
        let (all, subject) = (WatchOptions::default(), format!("VolumeAttributesClass {class}"));
        let volumes: Vec<PersistentVolume> = self.listed(&all, &subject).await?;
        if volumes.iter().any(|volume| classes_of_volume(volume).contains(class)) {
            return Ok(true);
        }
        let claims: Vec<PersistentVolumeClaim> = self.listed(&all, &subject).await?;
        Ok(claims.iter().any(|claim| classes_of_claim(claim).contains(class)))
    }

    async fn listed<K: Kind>(&self, options: &WatchOptions, subject: &str) -> Result<Vec<K>, KeepError> {
        let listed = self.context.cluster.list::<K>(options).await?;
        match listed.unreadable.len() {
            0 => Ok(listed.items),
            count => Err(KeepError::Unreadable { subject: subject.to_owned(), kind: K::API.kind, count }),
        }
    }

    /// Writes what is called for, as long as it is.
    async fn send<K: Kind>(&self, key: &Key, patch: impl Fn() -> Option<Patch>) -> Result<(), KeepError> {
        for _ in 0..STALE {
            if !self.context.gate.is_open() {
                return Err(KeepError::Shut);
            }
            let Some(patch) = patch() else { return Ok(()) };
            match self.context.cluster.patch(&K::API, key, None, patch).await {
                Ok(_) | Err(ApiError::NotFound(_)) => return Ok(()),
                // Our store is behind: what we read now enters it.
                Err(ApiError::Conflict(_) | ApiError::Invalid(_)) => {
                    if self.context.cluster.get::<K>(key).await?.is_none() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(KeepError::Restless(format!("{} {key}", K::API.kind)))
    }
}

/// The same patch, for the version that was seen and no other.
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
