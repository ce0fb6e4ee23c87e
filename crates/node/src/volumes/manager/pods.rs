//! Reconciles a pod: resolves its volumes, and sets up or tears down its plain ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::Change;
use wharf_cluster::work::{EnqueueRequest, WorkOutcome};
use wharf_model::pod::PodVolume;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod};

use super::super::resolve::{self, Unresolved, used};
use super::super::world::{DesiredMount, PodEntry, Resolved, Volume, World};
use super::super::{names, plain, selinux};
use super::{Manager, Subject, enqueue_request, same};

/// Retry delay for a pod with unresolved volumes, where changes are not watched.
const UNRESOLVED_RETRY: Duration = Duration::from_secs(2);

impl Manager {
    /// Reconciles a pod: resolves all of its volumes, or tears down its plain ones.
    pub(super) async fn reconcile_pod(&self, uid: &str) -> WorkOutcome {
        let pod = {
            let world = self.world();
            match (world.pods.get(uid), world.is_released(uid)) {
                (None, _) => return WorkOutcome::Done,
                (Some(_), true) => None,
                (Some(PodEntry { pod: Some(pod), gone: false, .. }), false) => Some(Arc::clone(pod)),
                (Some(PodEntry { .. }), false) => return WorkOutcome::Done,
            }
        };
        match pod {
            Some(pod) => self.resolve_all(uid, &pod).await,
            None => self.tear_down_plain(uid).await,
        }
    }

    async fn resolve_all(&self, uid: &str, pod: &Arc<Pod>) -> WorkOutcome {
        let used = used(pod);
        let mut problems = BTreeMap::new();
        for volume in &pod.spec.volumes {
            if !used.names().any(|name| name == volume.name) {
                continue;
            }
            if let Err(problem) = self.resolve_one(uid, pod, volume).await {
                tracing::warn!(pod = %pod.metadata.key(), volume_name = volume.name, error = problem, "failed to resolve volume; retrying");
                if !plain::is_plain(volume) {
                    self.record_unresolved_event(pod, &volume.name, &problem);
                }
                problems.insert(volume.name.clone(), problem);
            }
        }
        let failed = !problems.is_empty();
        if let Some(entry) = self.world().pods.get_mut(uid) {
            entry.problems = problems;
        }
        if failed {
            self.round_failed([uid.to_owned()].iter());
            return match self.privileged {
                Some(_) => WorkOutcome::Retry,
                // No watch reports that the claim is bound or the ConfigMap exists.
                None => WorkOutcome::RetryAfter(UNRESOLVED_RETRY),
            };
        }
        self.notify_waiters();
        // Secrets, ConfigMaps and sizes change.
        WorkOutcome::RetryAfter(self.settings.resync)
    }

    async fn resolve_one(&self, uid: &str, pod: &Arc<Pod>, volume: &PodVolume) -> Result<(), String> {
        if plain::is_plain(volume) {
            return self.set_up(uid, pod, volume).await;
        }
        let (known, desired) = match pod.claim_name(volume) {
            None => resolve::inline(pod, volume).map_err(|error| error.to_string())?,
            Some(name) => {
                let key = Key { namespace: pod.metadata.namespace.clone(), name };
                let resolved = self.claimed(pod, volume, &key).await;
                resolved.map_err(|error| format!("error processing PVC {key}: {error}"))?
            }
        };
        let unique = names::unique(&known.driver, &known.handle);
        if add(&mut self.world(), uid, volume, &unique, known, desired) {
            self.in_use.notify_changed();
            self.wake(Subject::Volume(unique));
        }
        Ok(())
    }

    /// Reads claim and volume from the API server, not from a cache.
    async fn claimed(
        &self,
        pod: &Arc<Pod>,
        volume: &PodVolume,
        key: &Key,
    ) -> Result<(Volume, DesiredMount), Unresolved> {
        let cluster = &self.parts.cluster;
        let claim: PersistentVolumeClaim = match cluster.get(key).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return Err(Unresolved::NoClaim(key.name.clone())),
            Err(error) => return Err(Unresolved::ClaimUnread(error)),
        };
        let name = resolve::volume_of(pod, volume, &claim)?.to_owned();
        let persistent: PersistentVolume = match cluster.get(&Key::cluster(&name)).await {
            Ok(Some(persistent)) => persistent,
            Ok(None) => return Err(Unresolved::NoVolume(name)),
            Err(error) => return Err(Unresolved::VolumeUnread { name, error }),
        };
        let label = self.label_of(pod, volume, &persistent)?;
        resolve::persistent(pod, volume, Arc::new(claim), Arc::new(persistent), label)
    }

    fn label_of(
        &self,
        pod: &Pod,
        volume: &PodVolume,
        persistent: &PersistentVolume,
    ) -> Result<Option<String>, Unresolved> {
        let (Some(base), Some(csi)) = (&self.label, &persistent.spec.csi) else { return Ok(None) };
        let driver = self.drivers.get(&Key::cluster(&csi.driver));
        match selinux::applies(driver.as_deref(), &persistent.spec.access_modes) {
            true => Ok(selinux::wanted(pod, &volume.name, base)?),
            false => Ok(None),
        }
    }

    async fn set_up(&self, uid: &str, pod: &Pod, volume: &PodVolume) -> Result<(), String> {
        {
            // Set before the volume exists, so that no reader concludes that there is nothing to tear down.
            let mut world = self.world();
            let Some(entry) = world.pods.get_mut(uid).filter(|entry| !entry.released) else { return Ok(()) };
            entry.plain |= plain::plugin(volume).is_some();
        }
        let parts = &self.parts;
        let hidden = &self.settings.hidden;
        let volume_path =
            plain::set_up(&parts.cluster, &parts.root, &parts.kernel, pod, volume, hidden).await;
        let volume_path = volume_path
            .map_err(|error| format!("MountVolume.SetUp failed for volume \"{}\" : {error}", volume.name));
        match volume_path {
            Ok(volume_path) => {
                let mut world = self.world();
                if let Some(entry) = world.pods.get_mut(uid).filter(|entry| !entry.released) {
                    entry.resolved.insert(volume.name.clone(), Resolved::Plain(volume_path));
                }
                Ok(())
            }
            Err(note) => {
                let warning = wharf_cluster::EventType::Warning;
                parts.events.record_for(pod, warning, "FailedMount", note.clone());
                Err(note)
            }
        }
    }

    /// Tears down the plain volumes of a released pod.
    async fn tear_down_plain(&self, uid: &str) -> WorkOutcome {
        let parts = &self.parts;
        let found = match plain::found(&parts.root, uid) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(pod_uid = uid, %error, "failed to list the pod's volumes; retrying");
                return WorkOutcome::Retry;
            }
        };
        let mut failed = false;
        for (plugin, volume) in found {
            if let Err(error) = plain::tear_down(&parts.root, &parts.kernel, uid, &plugin, &volume).await {
                tracing::warn!(pod_uid = uid, volume_name = volume, %error, "failed to tear down volume; retrying");
                failed = true;
            }
        }
        if failed {
            return WorkOutcome::Retry;
        }
        {
            let mut world = self.world();
            let going = world.is_released(uid);
            if let Some(entry) = world.pods.get_mut(uid).filter(|_| going) {
                entry.plain = false;
            }
            // The pod may have been requested again in the meantime.
            if !world.holds(uid) && world.is_released(uid) {
                world.pods.remove(uid);
            }
        }
        self.notify_waiters();
        WorkOutcome::Done
    }

    /// Pods that use a claim that changed.
    pub(super) fn pods_of_changed_claim(
        &self,
        change: &Change<PersistentVolumeClaim>,
    ) -> Vec<EnqueueRequest<Subject>> {
        // The fields that the binder and the resizer write, and the identity.
        let part = |claim: &PersistentVolumeClaim| {
            let (spec, status, meta) = (&claim.spec, &claim.status, &claim.metadata);
            (
                (spec.volume_name.clone(), spec.resources.requests.storage, meta.uid.clone()),
                (
                    status.phase,
                    status.capacity,
                    status.allocated_resources,
                    status.allocated_resource_statuses,
                ),
            )
        };
        if same(change, part) {
            return Vec::new();
        }
        let world = self.world();
        let uses = |entry: &PodEntry| {
            !entry.released
                && entry.pod.as_ref().is_some_and(|pod| {
                    pod.metadata.namespace == change.key.namespace && pod.claims.contains(&change.key.name)
                })
        };
        let pods = world.pods.iter().filter(|(_, entry)| uses(entry));
        pods.map(|(uid, _)| enqueue_request(Subject::Pod(uid.clone()))).collect()
    }
}

/// Adds a pod's desired mount to the world; `false` if nothing changed or the pod was released in the meantime.
fn add(
    world: &mut World,
    uid: &str,
    volume: &PodVolume,
    unique: &str,
    known: Volume,
    mut desired: DesiredMount,
) -> bool {
    let Some(entry) = world.pods.get_mut(uid).filter(|entry| !entry.released) else { return false };
    entry.resolved.insert(volume.name.clone(), Resolved::Csi(unique.to_owned()));
    let existing = world.volumes.entry(unique.to_owned()).or_insert(known.clone());
    if existing.mounts.is_empty() && existing.desired.is_empty() {
        // A volume found staged does not know its PersistentVolume's name.
        (existing.spec, existing.ephemeral) = (known.spec, known.ephemeral);
    }
    if let Some(before) = existing.desired.get(uid) {
        // Two of the pod's volumes may use the same claim: mounted once, writable if one of them is.
        let others = before.names.iter().any(|name| *name != volume.name);
        desired.read_only &= before.read_only || !others;
        desired.names.extend(before.names.iter().cloned());
        if *before == desired {
            return false;
        }
    }
    existing.desired.insert(uid.to_owned(), desired);
    true
}

#[cfg(test)]
mod tests;
