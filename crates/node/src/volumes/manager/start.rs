//! Start: recovers the state of an earlier run from disk before anything else is done.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;
use wharf_cluster::{ApiError, ObjectList, WatchOptions};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod};

use super::super::plain;
use super::super::reconstruct::{self, Found, ReadableVolumes, Scan, Stuck};
use super::super::world::{Device, Volume};
use super::{Manager, Subject};

/// Interval at which unidentified mounts are checked again.
const STUCK_RECHECK: Duration = Duration::from_secs(30);

impl Manager {
    /// Scans the disk. Nothing else happens before: a volume we do not know of is not in `volumesInUse` and could be
    /// detached.
    pub(super) async fn start(&self) {
        let mut failures = 0;
        loop {
            match self.disk.run(reconstruct::scan).await {
                Ok(scan) => {
                    let found = self.identify(&scan).await;
                    return self.adopt(&scan.pods, found).await;
                }
                Err(error) => {
                    tracing::error!(%error, "failed to scan for volumes of an earlier run; mounting nothing until it succeeds");
                    sleep(self.backoff.delay(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    async fn identify(&self, scan: &Scan) -> Found {
        let persistent = match scan.has_gaps() {
            true => self.persistent().await,
            false => ReadableVolumes::default(),
        };
        scan.identify(&self.parts.root, &persistent, self.settings.recover_staged)
    }

    async fn adopt(&self, pods: &[String], found: Found) {
        let Found { volumes, leftovers, stuck } = found;
        for Stuck { path, pod, reason } in &stuck {
            tracing::error!(path = %path.display(), pod_uid = pod, reason, "cannot identify volume; leaving it mounted");
        }
        let plain: Vec<(String, bool)> = pods
            .iter()
            // If listing fails, there may be some.
            .map(|uid| (uid, plain::found(&self.parts.root, uid).map_or(true, |found| !found.is_empty())))
            .map(|(uid, plain)| (uid.clone(), plain))
            .collect();
        let subjects: Vec<Subject> = {
            let mut world = self.world();
            world.stuck = stuck;
            world.identified = volumes.keys().cloned().collect();
            world.started = true;
            for (uid, plain) in plain {
                world.pods.entry(uid).or_default().plain |= plain;
            }
            for (unique, volume) in volumes {
                tracing::info!(
                    driver = volume.driver,
                    volume_handle = volume.handle,
                    pod_uids = ?volume.mounts.keys(),
                    device = ?volume.device,
                    "found volume of an earlier run"
                );
                world.volumes.insert(unique, volume);
            }
            let pods = world.pods.keys().cloned().map(Subject::Pod);
            pods.chain(world.volumes.keys().cloned().map(Subject::Volume)).collect()
        };
        self.sweep(leftovers).await;
        self.in_use.change();
        self.notify_waiters();
        subjects.into_iter().for_each(|subject| self.wake(subject));
    }

    async fn sweep(&self, leftovers: Vec<PathBuf>) {
        let swept = self.disk.run(move |disk| {
            for path in leftovers {
                if let Err(error) = disk.sweep(&path) {
                    tracing::warn!(path = %path.display(), %error, "failed to remove leftover volume directory");
                }
            }
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "failed to remove leftover volume directories");
        }
    }

    /// Checks unidentified mounts again while there are any: they may have been unmounted, or the API server may
    /// identify them by now.
    pub(super) async fn recheck_stuck(&self) {
        while !self.world().stuck.is_empty() {
            sleep(STUCK_RECHECK).await;
            let found = match self.disk.run(reconstruct::scan).await {
                Ok(scan) => self.identify(&scan).await,
                Err(error) => {
                    tracing::warn!(%error, "failed to scan for volumes of an earlier run");
                    continue;
                }
            };
            self.adopt_identified(found).await;
        }
        std::future::pending::<()>().await;
    }

    /// Adopts volumes that were unidentified and now are; the state of all others is already known more precisely.
    async fn adopt_identified(&self, found: Found) {
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
                world.identified.insert(unique.clone());
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
        self.notify_waiters();
    }

    /// All PersistentVolumes, or, with node permissions only, those used by its pods.
    async fn persistent(&self) -> ReadableVolumes {
        let wide = self.parts.wide.as_ref().unwrap_or(&self.parts.cluster);
        let error = match wide.list::<PersistentVolume>(&WatchOptions::default()).await {
            // An unreadable one may be the one we look for.
            Ok(ObjectList { items, undecodable: unreadable }) => {
                return ReadableVolumes { all: unreadable.is_empty(), volumes: items };
            }
            Err(ApiError::Forbidden(_)) => match self.persistent_of_pods().await {
                Ok(volumes) => return ReadableVolumes { volumes, all: false },
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::warn!(%error, "failed to list PersistentVolumes to identify volumes on disk");
        ReadableVolumes::default()
    }

    async fn persistent_of_pods(&self) -> Result<Vec<PersistentVolume>, ApiError> {
        let cluster = &self.parts.cluster;
        let field_selector = Some(format!("spec.nodeName={}", self.parts.node));
        let pods = cluster.list::<Pod>(&WatchOptions { field_selector, ..WatchOptions::default() }).await?;
        let mut volumes = Vec::new();
        for pod in &pods.items {
            for key in pod.claim_keys() {
                let claim = permitted(cluster.get::<PersistentVolumeClaim>(&key).await)?;
                let Some(name) = claim.map(|claim| claim.spec.volume_name).filter(|name| !name.is_empty())
                else {
                    continue;
                };
                volumes.extend(permitted(cluster.get::<PersistentVolume>(&Key::cluster(name)).await)?);
            }
        }
        Ok(volumes)
    }
}

/// An object that a node may not read does not belong to its pods.
fn permitted<K>(read: Result<Option<K>, ApiError>) -> Result<Option<K>, ApiError> {
    match read {
        Err(ApiError::Forbidden(_)) => Ok(None),
        read => read,
    }
}
