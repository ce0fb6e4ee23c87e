//! What a pod's volumes are, and its plain ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::Change;
use wharf_cluster::work::{Outcome, Wish};
use wharf_model::whole::Pod;
use wharf_model::whole::pod::PodVolume;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim};

use super::super::resolve::{self, Unresolved, used};
use super::super::world::{PodEntry, Resolved, Volume, Want, World};
use super::super::{names, plain, selinux};
use super::{Manager, Subject, same, wish};

/// Between two looks at a pod whose volumes cannot be told, where nobody tells of changes.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

impl Manager {
    /// Works on a pod: either all of its volumes are looked up, or its plain ones are taken down.
    pub(super) async fn see_to_pod(&self, uid: &str) -> Outcome {
        let pod = {
            let world = self.world();
            match (world.pods.get(uid), world.is_released(uid)) {
                (None, _) => return Outcome::Done,
                (Some(_), true) => None,
                (Some(PodEntry { pod: Some(pod), gone: false, .. }), false) => Some(Arc::clone(pod)),
                (Some(PodEntry { .. }), false) => return Outcome::Done,
            }
        };
        match pod {
            Some(pod) => self.resolve_all(uid, &pod).await,
            None => self.take_down(uid).await,
        }
    }

    async fn resolve_all(&self, uid: &str, pod: &Arc<Pod>) -> Outcome {
        let used = used(pod);
        let mut troubles = BTreeMap::new();
        for volume in &pod.spec.volumes {
            if !used.names().any(|name| name == volume.name) {
                continue;
            }
            if let Err(trouble) = self.resolve_one(uid, pod, volume).await {
                tracing::warn!(pod = %pod.metadata.key(), volume = volume.name, error = trouble, "not there yet");
                if !plain::is_plain(volume) {
                    self.tell_unresolved(pod, &volume.name, &trouble);
                }
                troubles.insert(volume.name.clone(), trouble);
            }
        }
        let failed = !troubles.is_empty();
        if let Some(entry) = self.world().pods.get_mut(uid) {
            entry.troubles = troubles;
        }
        if failed {
            self.round_failed([uid.to_owned()].iter());
            return match self.wide {
                Some(_) => Outcome::Retry,
                // Nobody tells that the claim is bound, or the config map there.
                None => Outcome::After(LOOK_AGAIN),
            };
        }
        self.stir();
        // Secrets and config maps change, and so do sizes.
        Outcome::After(self.settings.resync)
    }

    async fn resolve_one(&self, uid: &str, pod: &Arc<Pod>, volume: &PodVolume) -> Result<(), String> {
        if plain::is_plain(volume) {
            return self.set_up(uid, pod, volume).await;
        }
        let (known, want) = match pod.claim_of(volume) {
            None => resolve::inline(pod, volume).map_err(|error| error.to_string())?,
            Some(name) => {
                let key = Key { namespace: pod.metadata.namespace.clone(), name };
                let resolved = self.claimed(pod, volume, &key).await;
                resolved.map_err(|error| format!("error processing PVC {key}: {error}"))?
            }
        };
        let unique = names::unique(&known.driver, &known.handle);
        if add(&mut self.world(), uid, volume, &unique, known, want) {
            self.in_use.change();
            self.wake(Subject::Volume(unique));
        }
        Ok(())
    }

    /// Asked of the server, not of what we remember.
    async fn claimed(
        &self,
        pod: &Arc<Pod>,
        volume: &PodVolume,
        key: &Key,
    ) -> Result<(Volume, Want), Unresolved> {
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
            // Before it is there: whoever asks meanwhile must not think that nothing is.
            let mut world = self.world();
            let Some(entry) = world.pods.get_mut(uid).filter(|entry| !entry.released) else { return Ok(()) };
            entry.plain |= plain::plugin(volume).is_some();
        }
        let parts = &self.parts;
        let hidden = &self.settings.hidden;
        let place = plain::set_up(&parts.cluster, &parts.root, &parts.kernel, pod, volume, hidden).await;
        let place = place
            .map_err(|error| format!("MountVolume.SetUp failed for volume \"{}\" : {error}", volume.name));
        match place {
            Ok(place) => {
                let mut world = self.world();
                if let Some(entry) = world.pods.get_mut(uid).filter(|entry| !entry.released) {
                    entry.resolved.insert(volume.name.clone(), Resolved::Plain(place));
                }
                Ok(())
            }
            Err(note) => {
                let warning = wharf_cluster::EventType::Warning;
                parts.events.tell(pod, warning, "FailedMount", note.clone());
                Err(note)
            }
        }
    }

    /// The pod is gone, or going: its plain volumes go.
    async fn take_down(&self, uid: &str) -> Outcome {
        let parts = &self.parts;
        let found = match plain::found(&parts.root, uid) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(pod = uid, %error, "cannot look for the pod's volumes, trying again");
                return Outcome::Retry;
            }
        };
        let mut failed = false;
        for (plugin, volume) in found {
            if let Err(error) = plain::tear_down(&parts.root, &parts.kernel, uid, &plugin, &volume).await {
                tracing::warn!(pod = uid, volume, %error, "cannot take the volume down, trying again");
                failed = true;
            }
        }
        if failed {
            return Outcome::Retry;
        }
        {
            let mut world = self.world();
            let going = world.is_released(uid);
            if let Some(entry) = world.pods.get_mut(uid).filter(|_| going) {
                entry.plain = false;
            }
            // Somebody may have wanted it again meanwhile.
            if !world.holds(uid) && world.is_released(uid) {
                world.pods.remove(uid);
            }
        }
        self.stir();
        Outcome::Done
    }

    /// Pods that use a claim which is another than before.
    pub(super) fn of_claim(&self, change: &Change<PersistentVolumeClaim>) -> Vec<Wish<Subject>> {
        // What the binder and the resizer write, and whether it goes.
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
                    pod.metadata.namespace == change.key.namespace
                        && pod.claims().any(|name| name == change.key.name)
                })
        };
        let pods = world.pods.iter().filter(|(_, entry)| uses(entry));
        pods.map(|(uid, _)| wish(Subject::Pod(uid.clone()))).collect()
    }
}

/// Puts a pod's wish into the world; `false`: nothing has changed, or the pod was released meanwhile.
fn add(
    world: &mut World,
    uid: &str,
    volume: &PodVolume,
    unique: &str,
    known: Volume,
    mut want: Want,
) -> bool {
    let Some(entry) = world.pods.get_mut(uid).filter(|entry| !entry.released) else { return false };
    entry.resolved.insert(volume.name.clone(), Resolved::Csi(unique.to_owned()));
    let there = world.volumes.entry(unique.to_owned()).or_insert(known.clone());
    if there.mounts.is_empty() && there.wants.is_empty() {
        // What was found staged does not know its own name.
        (there.spec, there.ephemeral) = (known.spec, known.ephemeral);
    }
    if let Some(before) = there.wants.get(uid) {
        // Two of the pod's volumes may be the same claim: it is mounted once, for writing if one of them wants that.
        let others = before.names.iter().any(|name| *name != volume.name);
        want.read_only &= before.read_only || !others;
        want.names.extend(before.names.iter().cloned());
        if *before == want {
            return false;
        }
    }
    there.wants.insert(uid.to_owned(), want);
    true
}

#[cfg(test)]
mod tests;
