//! Reconstructs the volumes of an earlier run from disk and mount table, including staged volumes that no pod uses.
//!
//! Guarantee: whatever may be mounted counts as mounted. A missing or truncated record is replaced by other evidence:
//! the record of the staged volume with the same mount, a handle whose hash is in the path, or a PersistentVolume. A
//! mount that cannot be identified is left alone and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use wharf_linux::MountTable;
use wharf_model::PersistentVolume;
use wharf_model::csidriver::VolumeLifecycleMode;

use super::data::{Data, Unreadable};
use super::disk::{BlockingDisk, DiskError};
use super::names;
use super::world::{Device, Mode, Mount, Progress, Volume};
use crate::paths::{Root, hash};

/// What is mounted at a path: the file system, and which directory of it.
type Content = ((u32, u32), PathBuf);

/// The PersistentVolumes that could be read.
#[derive(Debug, Default)]
pub(super) struct ReadableVolumes {
    pub(super) volumes: Vec<PersistentVolume>,
    /// Whether the list is complete. Node permissions cover its pods' volumes only, which proves nothing about others.
    pub(super) all: bool,
}

/// Everything found on disk.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Pods with a directory.
    pub(super) pods: Vec<String>,
    /// Volumes that may be published.
    mounts: Vec<PublishedDir>,
    /// Volumes that may be staged.
    stages: Vec<StagedDir>,
}

/// A published volume, by its directory.
#[derive(Debug, Clone)]
struct PublishedDir {
    pod: String,
    spec: String,
    mode: Mode,
    path: PathBuf,
    record: Option<Result<Data, Unreadable>>,
    mounted: Option<Content>,
}

/// A staged volume, by its directory.
#[derive(Debug, Clone)]
struct StagedDir {
    /// Name of the parent directory: the driver for file systems, the PersistentVolume for block volumes.
    owner: String,
    /// Name of its own directory: the hash of the handle for file systems.
    name: String,
    mode: Mode,
    path: PathBuf,
    record: Option<Result<Data, Unreadable>>,
    mounted: Option<Content>,
}

/// Scans the disk.
pub(super) fn scan(disk: &BlockingDisk<'_>) -> Result<Scan, DiskError> {
    let root = disk.root;
    // On a new node, the root does not exist yet.
    disk.kernel.create_target_dir(root.path())?;
    let table = disk.kernel.mount_table()?;
    let mut scan = Scan { pods: disk.names(&root.pods())?, ..Scan::default() };
    for pod in &scan.pods {
        let csi = root.publish(pod, "");
        for spec in disk.names(&csi)? {
            let dir = root.publish(pod, &spec);
            let path = dir.join("mount");
            let (record, mounted) = (disk.read_record(&dir)?, content(disk, &table, &path)?);
            scan.mounts.push(PublishedDir {
                pod: pod.clone(),
                spec,
                mode: Mode::Filesystem,
                path,
                record,
                mounted,
            });
        }
    }
    for (spec, pod) in published_devices(disk, &scan.pods)? {
        let path = root.device_publish(&spec, &pod);
        let (record, mounted) = (disk.read_record(&root.device_data(&spec))?, content(disk, &table, &path)?);
        scan.mounts.push(PublishedDir { pod, spec, mode: Mode::Block, path, record, mounted });
    }
    scan_stages(disk, &table, &mut scan)?;
    Ok(scan)
}

/// Block volumes and the pods that may use them. The link in a pod's directory may outlive the device after a crash.
fn published_devices(
    disk: &BlockingDisk<'_>,
    pods: &[String],
) -> Result<BTreeSet<(String, String)>, DiskError> {
    let mut mounts = BTreeSet::new();
    for pod in pods {
        let linked = disk.names(&disk.device_link("", pod))?;
        mounts.extend(linked.into_iter().map(|spec| (spec, pod.clone())));
    }
    let published_root = disk.root.devices().join("publish");
    for spec in disk.names(&published_root)? {
        let pods = disk.names(&published_root.join(&spec))?;
        mounts.extend(pods.into_iter().map(|pod| (spec.clone(), pod)));
    }
    Ok(mounts)
}

fn scan_stages(disk: &BlockingDisk<'_>, table: &MountTable, scan: &mut Scan) -> Result<(), DiskError> {
    let root = disk.root;
    let devices = root.devices();
    let devices_name = devices.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for owner in disk.names(&root.csi())? {
        if owner == devices_name {
            continue;
        }
        let drivers = root.csi().join(&owner);
        for name in disk.names(&drivers)? {
            let dir = drivers.join(&name);
            let path = dir.join("globalmount");
            let (record, mounted) = (disk.read_record(&dir)?, content(disk, table, &path)?);
            scan.stages.push(StagedDir {
                owner: owner.clone(),
                name,
                mode: Mode::Filesystem,
                path,
                record,
                mounted,
            });
        }
    }
    for name in disk.names(&devices)? {
        if matches!(name.as_str(), "publish" | "staging") {
            continue;
        }
        let path = root.device_stage(&name);
        let (record, mounted) = (disk.read_record(&root.device_data(&name))?, content(disk, table, &path)?);
        scan.stages.push(StagedDir { owner: name.clone(), name, mode: Mode::Block, path, record, mounted });
    }
    Ok(())
}

fn content(
    disk: &BlockingDisk<'_>,
    table: &MountTable,
    path: &std::path::Path,
) -> Result<Option<Content>, DiskError> {
    let at = disk.kernel.resolve(path)?;
    Ok(table.at(&at).map(|mount| (mount.device, mount.root.clone())))
}

/// The result of a reconstruction.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Volumes that may be mounted, by unique name; all in an uncertain state.
    pub(super) volumes: BTreeMap<String, Volume>,
    /// Target paths of volumes that are gone; nothing is mounted there.
    pub(super) leftovers: Vec<PathBuf>,
    /// Mounts that cannot be identified.
    pub(super) unidentified: Vec<UnidentifiedMount>,
}

/// A mount that cannot be identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnidentifiedMount {
    /// The path.
    pub(super) path: PathBuf,
    /// The pod's UID; `None` for a staging path.
    pub(super) pod: Option<String>,
    /// Why it cannot be identified.
    pub(super) reason: String,
}

impl Scan {
    /// Whether PersistentVolumes are needed to identify something.
    pub(super) fn has_gaps(&self) -> bool {
        let gap = |record: &Option<Result<Data, Unreadable>>| !matches!(record, Some(Ok(_)));
        self.mounts.iter().any(|published| gap(&published.record))
            || self.stages.iter().any(|stage| gap(&stage.record))
    }

    /// Identifies everything. `staged`: also volumes that no pod uses.
    pub(super) fn identify(&self, root: &Root, persistent: &ReadableVolumes, staged: bool) -> Found {
        let mut found = Found::default();
        for published in &self.mounts {
            match self.published(published, persistent) {
                Verdict::Identified(data) => found.add_published(published, &data),
                Verdict::Leftover => found.leftovers.push(published.path.clone()),
                Verdict::Unidentified(reason) => {
                    found.unidentified.push(UnidentifiedMount {
                        path: published.path.clone(),
                        pod: Some(published.pod.clone()),
                        reason,
                    });
                }
            }
        }
        for stage in &self.stages {
            match self.stage(stage, persistent) {
                Verdict::Identified(data) => {
                    let unique = names::unique(&data.driver, &data.handle);
                    if staged || found.volumes.contains_key(&unique) {
                        found.add_staged(root, stage, &data);
                    }
                }
                Verdict::Leftover => found.leftovers.push(stage.path.clone()),
                Verdict::Unidentified(reason) => {
                    found.unidentified.push(UnidentifiedMount { path: stage.path.clone(), pod: None, reason })
                }
            }
        }
        found
    }

    fn published(&self, published: &PublishedDir, persistent: &ReadableVolumes) -> Verdict {
        let problem = match &published.record {
            Some(Ok(data)) => return Verdict::Identified(data.clone()),
            Some(Err(error)) => Some(error),
            None => None,
        };
        // The same file system and root as a staged volume: it can only be that volume.
        let twin = self.stages.iter().find(|stage| {
            stage.mode == published.mode && published.mounted.is_some() && stage.mounted == published.mounted
        });
        if let Some(Some(Ok(data))) = twin.map(|stage| &stage.record) {
            return Verdict::Identified(data.clone());
        }
        let named = persistent.volumes.iter().find(|volume| volume.metadata.name == published.spec);
        match (named.and_then(data_of), &published.mounted, problem) {
            // A record, even a truncated one, means that the driver was called or was about to be.
            (Some(data), Some(_), _) | (Some(data), None, Some(_)) => Verdict::Identified(data),
            // The record is written before the volume is published and removed after it: without one there is nothing.
            (_, None, None) => Verdict::Leftover,
            (None, None, Some(_)) if persistent.all => Verdict::Leftover,
            (None, mounted, problem) => {
                Verdict::Unidentified(reason(mounted.is_some(), problem, persistent.all))
            }
        }
    }

    fn stage(&self, stage: &StagedDir, persistent: &ReadableVolumes) -> Verdict {
        let problem = match &stage.record {
            Some(Ok(data)) => return Verdict::Identified(data.clone()),
            Some(Err(error)) => Some(error),
            None => None,
        };
        let mounts =
            self.mounts.iter().filter_map(|published| published.record.as_ref()?.as_ref().ok().cloned());
        let volumes = persistent.volumes.iter().filter_map(data_of);
        let is_it = |data: &Data| match stage.mode {
            Mode::Filesystem => data.driver == stage.owner && hash(&data.handle) == stage.name,
            Mode::Block => data.spec.as_deref() == Some(&stage.name),
        };
        let known = mounts.chain(volumes).find(is_it);
        match (known, &stage.mounted, problem) {
            (Some(data), Some(_), _) | (Some(data), None, Some(_)) => Verdict::Identified(data),
            (_, None, None) => Verdict::Leftover,
            (None, None, Some(_)) if persistent.all => Verdict::Leftover,
            (None, mounted, problem) => {
                Verdict::Unidentified(reason(mounted.is_some(), problem, persistent.all))
            }
        }
    }
}

enum Verdict {
    Identified(Data),
    Leftover,
    Unidentified(String),
}

fn reason(mounted: bool, problem: Option<&Unreadable>, all_volumes_known: bool) -> String {
    let state = if mounted { "something is mounted" } else { "a volume may be mounted" };
    let record =
        problem.map_or("vol_data.json is missing".to_owned(), |error| format!("vol_data.json: {error}"));
    let way = match all_volumes_known {
        true => "no PersistentVolume matches: unmount it, or restore vol_data.json",
        false => "PersistentVolumes that could identify it cannot be read now",
    };
    format!("{state} and {record}; {way}")
}

/// The record that a PersistentVolume would have.
fn data_of(volume: &PersistentVolume) -> Option<Data> {
    let csi = volume.spec.csi.as_ref().filter(|csi| !csi.volume_handle.is_empty())?;
    Some(Data {
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        spec: Some(volume.metadata.name.clone()),
        lifecycle: Some(VolumeLifecycleMode::Persistent),
        se_linux: None,
    })
}

impl Found {
    fn volume(&mut self, data: &Data, spec: &str, mode: Mode) -> &mut Volume {
        let ephemeral = data.lifecycle == Some(VolumeLifecycleMode::Ephemeral);
        let unique = names::unique(&data.driver, &data.handle);
        let new = || Volume::new(&data.driver, &data.handle, spec, mode, ephemeral);
        self.volumes.entry(unique).or_insert_with(new)
    }

    fn add_published(&mut self, published: &PublishedDir, data: &Data) {
        let volume = self.volume(data, &published.spec, published.mode);
        volume.se_linux = volume.se_linux.take().or_else(|| data.se_linux.clone());
        let mount = Mount {
            progress: Progress::Uncertain,
            found: true,
            published: None,
            spec: published.spec.clone(),
        };
        volume.mounts.insert(published.pod.clone(), mount);
    }

    fn add_staged(&mut self, root: &Root, stage: &StagedDir, data: &Data) {
        // The record of a staged volume lacks the volume's name, which no path needs until the volume is used.
        let spec = data.spec.clone().unwrap_or_else(|| stage.name.clone());
        let volume = self.volume(data, &spec, stage.mode);
        volume.device = Device::Uncertain { found: true };
        volume.se_linux = volume.se_linux.take().or_else(|| data.se_linux.clone());
        if volume.staging(root) != stage.path {
            volume.staged_at = Some(stage.path.clone());
        }
    }
}

#[cfg(test)]
mod tests;
