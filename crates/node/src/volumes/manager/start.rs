//! Startup: recovers the volumes of an earlier run from disk before the manager does anything else.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;
use wharf_cluster::{ApiError, ObjectList, WatchOptions};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod};

use super::super::plain;
use super::super::reconstruct::{self, Found, ReadableVolumes, Scan, UnidentifiedMount};
use super::super::world::Volume;
use super::{Manager, Subject};

/// Interval at which unidentified mounts are checked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

impl Manager {
    /// Scans the disk. This must be the manager's first action: an unknown volume is not in `volumesInUse` and could be
    /// detached while it is mounted.
    pub(super) async fn start(&self) {
        let mut failures = 0;
        loop {
            match self.disk.run(reconstruct::scan).await {
                Ok(scan) => {
                    let found = self.identify(&scan).await;
                    return self.adopt(&scan.pods, found).await;
                }
                Err(error) => {
                    tracing::error!(%error, "failed to scan for volumes of an earlier run; no volumes are mounted until the scan succeeds");
                    sleep(self.backoff.delay(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    async fn identify(&self, scan: &Scan) -> Found {
        let persistent = match scan.has_gaps() {
            true => self.persistent_volumes().await,
            false => ReadableVolumes::default(),
        };
        scan.identify(&self.parts.root, &persistent, self.settings.recover_staged)
    }

    async fn adopt(&self, pods: &[String], found: Found) {
        let Found { volumes, leftovers, unidentified } = found;
        for UnidentifiedMount { path, pod, reason } in &unidentified {
            tracing::error!(path = %path.display(), pod_uid = pod, reason, "failed to identify mounted volume; leaving it mounted");
        }
        let plain: Vec<(String, bool)> = pods
            .iter()
            // If the directory cannot be listed, assume that there are plain volumes.
            .map(|uid| (uid, plain::found(&self.parts.root, uid).map_or(true, |found| !found.is_empty())))
            .map(|(uid, plain)| (uid.clone(), plain))
            .collect();
        let subjects: Vec<Subject> = {
            let mut world = self.world();
            world.unidentified = unidentified;
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
        self.remove_leftovers(leftovers).await;
        self.in_use.notify_changed();
        self.notify_waiters();
        subjects.into_iter().for_each(|subject| self.wake(subject));
    }

    async fn remove_leftovers(&self, leftovers: Vec<PathBuf>) {
        let removal = self.disk.run(move |disk| {
            for path in leftovers {
                if let Err(error) = disk.remove_leftovers(&path) {
                    tracing::warn!(path = %path.display(), %error, "failed to remove leftover volume directory");
                }
            }
            Ok(())
        });
        if let Err(error) = removal.await {
            tracing::warn!(%error, "failed to remove leftover volume directories");
        }
    }

    /// Checks unidentified mounts again while there are any: they may have been unmounted, or the API server may
    /// identify them by now.
    pub(super) async fn recheck_unidentified(&self) {
        while !self.world().unidentified.is_empty() {
            sleep(RECHECK_INTERVAL).await;
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

    /// Adopts volumes whose mounts were unidentified and now are identified. The manager already knows the state of all
    /// other volumes more precisely.
    async fn adopt_identified(&self, found: Found) {
        let Found { volumes, leftovers, unidentified } = found;
        let mut changed = Vec::new();
        let before = {
            let mut world = self.world();
            let before = std::mem::replace(&mut world.unidentified, unidentified);
            for (unique, volume) in volumes {
                let target = |pod: &str| volume.target(&self.parts.root, pod);
                let is_mount_of_volume = |mount: &UnidentifiedMount| match &mount.pod {
                    Some(pod) => volume.mounts.contains_key(pod) && target(pod) == mount.path,
                    None => volume.staging(&self.parts.root) == mount.path,
                };
                let identified: Vec<&UnidentifiedMount> =
                    before.iter().filter(|mount| is_mount_of_volume(mount)).collect();
                if identified.is_empty() {
                    continue;
                }
                let empty = || {
                    Volume::new(&volume.driver, &volume.handle, &volume.spec, volume.mode, volume.ephemeral)
                };
                let known = world.volumes.entry(unique.clone()).or_insert_with(empty);
                for mount in identified {
                    match &mount.pod {
                        Some(pod) => {
                            known.mounts.entry(pod.clone()).or_insert_with(|| volume.mounts[pod].clone());
                        }
                        None => known.adopt_stage(&volume),
                    }
                }
                world.identified.insert(unique.clone());
                changed.push(Subject::Volume(unique));
            }
            before
        };
        let gone =
            leftovers.into_iter().filter(|path| before.iter().any(|stuck| stuck.path == *path)).collect();
        self.remove_leftovers(gone).await;
        self.in_use.notify_changed();
        changed.extend(before.into_iter().filter_map(|mount| mount.pod).map(Subject::Pod));
        changed.into_iter().for_each(|subject| self.wake(subject));
        self.notify_waiters();
    }

    /// All PersistentVolumes, or with node permissions only those that the node's pods use.
    async fn persistent_volumes(&self) -> ReadableVolumes {
        let cluster = self.parts.privileged_client.as_ref().unwrap_or(&self.parts.cluster);
        let error = match cluster.list::<PersistentVolume>(&WatchOptions::default()).await {
            // A PersistentVolume that cannot be decoded may be the one that identifies a mount.
            Ok(ObjectList { items, undecodable }) => {
                return ReadableVolumes { all: undecodable.is_empty(), volumes: items };
            }
            Err(ApiError::Forbidden(_)) => match self.persistent_volumes_of_pods().await {
                Ok(volumes) => return ReadableVolumes { volumes, all: false },
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::warn!(%error, "failed to list PersistentVolumes to identify volumes on disk");
        ReadableVolumes::default()
    }

    async fn persistent_volumes_of_pods(&self) -> Result<Vec<PersistentVolume>, ApiError> {
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

/// Treats a forbidden object as absent: the node may read all objects of its pods.
fn permitted<K>(read: Result<Option<K>, ApiError>) -> Result<Option<K>, ApiError> {
    match read {
        Err(ApiError::Forbidden(_)) => Ok(None),
        read => read,
    }
}
