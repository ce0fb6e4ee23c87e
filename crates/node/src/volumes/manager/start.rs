//! The start: what an earlier life has left is found before anything is done.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;
use wharf_cluster::{ApiError, Listed, WatchOptions};
use wharf_model::whole::Pod;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim};

use super::super::plain;
use super::super::reconstruct::{self, Found, Readable, Scan, Stuck};
use super::super::world::{Device, Volume};
use super::{Manager, Subject};

/// Between looks at what is mounted and cannot be told.
const STUCK_AGAIN: Duration = Duration::from_secs(30);

impl Manager {
    /// Finds what there is. Nothing else happens before: what we do not know of, we cannot keep from being detached.
    pub(super) async fn start(&self) {
        let mut failures = 0;
        loop {
            match self.disk.run(reconstruct::scan).await {
                Ok(scan) => {
                    let found = self.judge(&scan).await;
                    return self.take_over(&scan.pods, found).await;
                }
                Err(error) => {
                    tracing::error!(%error, "cannot look for volumes of an earlier life; nothing is mounted before that");
                    sleep(self.backoff.after(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    async fn judge(&self, scan: &Scan) -> Found {
        let persistent = match scan.has_gaps() {
            true => self.persistent().await,
            false => Readable::default(),
        };
        scan.judge(&self.parts.root, &persistent, self.settings.find_staged)
    }

    async fn take_over(&self, pods: &[String], found: Found) {
        let Found { volumes, leftovers, stuck } = found;
        for Stuck { path, pod, why } in &stuck {
            tracing::error!(path = %path.display(), pod, why, "left as it is");
        }
        let plain: Vec<(String, bool)> = pods
            .iter()
            // A look that fails proves nothing: then there may be some.
            .map(|uid| (uid, plain::found(&self.parts.root, uid).map_or(true, |found| !found.is_empty())))
            .map(|(uid, plain)| (uid.clone(), plain))
            .collect();
        let subjects: Vec<Subject> = {
            let mut world = self.world();
            world.stuck = stuck;
            world.told = volumes.keys().cloned().collect();
            world.started = true;
            for (uid, plain) in plain {
                world.pods.entry(uid).or_default().plain |= plain;
            }
            for (unique, volume) in volumes {
                tracing::info!(volume = unique, pods = ?volume.mounts.keys(), device = ?volume.device, "found");
                world.volumes.insert(unique, volume);
            }
            let pods = world.pods.keys().cloned().map(Subject::Pod);
            pods.chain(world.volumes.keys().cloned().map(Subject::Volume)).collect()
        };
        self.sweep(leftovers).await;
        self.in_use.change();
        self.stir();
        subjects.into_iter().for_each(|subject| self.wake(subject));
    }

    async fn sweep(&self, leftovers: Vec<PathBuf>) {
        let swept = self.disk.run(move |here| {
            for path in leftovers {
                if let Err(error) = here.sweep(&path) {
                    tracing::warn!(path = %path.display(), %error, "what is left of a volume stays");
                }
            }
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "what is left of volumes stays");
        }
    }

    /// Looks again at what is mounted and cannot be told, while there is any: somebody may have unmounted it, or the
    /// server may tell by now.
    pub(super) async fn keep_stuck(&self) {
        while !self.world().stuck.is_empty() {
            sleep(STUCK_AGAIN).await;
            let found = match self.disk.run(reconstruct::scan).await {
                Ok(scan) => self.judge(&scan).await,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for volumes of an earlier life");
                    continue;
                }
            };
            self.untangle(found).await;
        }
        std::future::pending::<()>().await;
    }

    /// Takes over what was stuck and is not any more; all else is known already, and better.
    async fn untangle(&self, found: Found) {
        let Found { volumes, leftovers, stuck } = found;
        let mut woken = Vec::new();
        let before = {
            let mut world = self.world();
            let before = std::mem::replace(&mut world.stuck, stuck);
            for (unique, volume) in volumes {
                let target = |pod: &str| volume.target(&self.parts.root, pod);
                let was = |stuck: &Stuck| match &stuck.pod {
                    Some(pod) => volume.mounts.contains_key(pod) && target(pod) == stuck.path,
                    None => volume.staging(&self.parts.root) == stuck.path,
                };
                let freed: Vec<&Stuck> = before.iter().filter(|stuck| was(stuck)).collect();
                if freed.is_empty() {
                    continue;
                }
                let empty = || {
                    Volume::new(&volume.driver, &volume.handle, &volume.spec, volume.mode, volume.ephemeral)
                };
                let known = world.volumes.entry(unique.clone()).or_insert_with(empty);
                for stuck in freed {
                    match &stuck.pod {
                        Some(pod) => {
                            known.mounts.entry(pod.clone()).or_insert_with(|| volume.mounts[pod].clone());
                        }
                        None if known.device == Device::None => known.device = volume.device,
                        None => {}
                    }
                }
                world.told.insert(unique.clone());
                woken.push(Subject::Volume(unique));
            }
            before
        };
        let gone =
            leftovers.into_iter().filter(|path| before.iter().any(|stuck| stuck.path == *path)).collect();
        self.sweep(gone).await;
        self.in_use.change();
        woken.extend(before.into_iter().filter_map(|stuck| stuck.pod).map(Subject::Pod));
        woken.into_iter().for_each(|subject| self.wake(subject));
        self.stir();
    }

    /// All PersistentVolumes, or with a node's rights alone those that its pods use.
    async fn persistent(&self) -> Readable {
        let wide = self.parts.wide.as_ref().unwrap_or(&self.parts.cluster);
        let error = match wide.list::<PersistentVolume>(&WatchOptions::default()).await {
            // What cannot be read may be the very one.
            Ok(Listed { items, unreadable }) => {
                return Readable { all: unreadable.is_empty(), volumes: items };
            }
            Err(ApiError::Forbidden(_)) => match self.persistent_of_pods().await {
                Ok(volumes) => return Readable { volumes, all: false },
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::warn!(%error, "PersistentVolumes cannot be read, which may tell what is on disk");
        Readable::default()
    }

    async fn persistent_of_pods(&self) -> Result<Vec<PersistentVolume>, ApiError> {
        let cluster = &self.parts.cluster;
        let field_selector = Some(format!("spec.nodeName={}", self.parts.node));
        let pods = cluster.list::<Pod>(&WatchOptions { field_selector, ..WatchOptions::default() }).await?;
        let mut volumes = Vec::new();
        for pod in &pods.items {
            for name in pod.claims() {
                let key = Key { namespace: pod.metadata.namespace.clone(), name };
                let claim = allowed(cluster.get::<PersistentVolumeClaim>(&key).await)?;
                let Some(name) = claim.map(|claim| claim.spec.volume_name).filter(|name| !name.is_empty())
                else {
                    continue;
                };
                volumes.extend(allowed(cluster.get::<PersistentVolume>(&Key::cluster(name)).await)?);
            }
        }
        Ok(volumes)
    }
}

/// What a node may not read is no volume of its pods.
fn allowed<K>(read: Result<Option<K>, ApiError>) -> Result<Option<K>, ApiError> {
    match read {
        Err(ApiError::Forbidden(_)) => Ok(None),
        read => read,
    }
}
