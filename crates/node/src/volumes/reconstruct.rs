//! What an earlier life has left on this node: found on disk and in the mount table, also volumes that are staged though
//! no pod has them.
//!
//! Promise: what may be there is taken for being there. A record that is missing or torn is made up for by other
//! evidence: a staged volume's record for the same mount, a handle whose hash is in the path, a PersistentVolume. What
//! is mounted and cannot be told is left as it is, and said so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use wharf_linux::MountTable;
use wharf_model::csidriver::LifecycleMode;
use wharf_model::{PersistentVolume, Time};

use super::data::{Data, Unreadable};
use super::disk::{DiskError, Here};
use super::names;
use super::world::{Device, Mode, Mount, Progress, Volume};
use crate::paths::{Root, hash};

/// What is mounted somewhere: file system and which part of it.
type Content = ((u32, u32), PathBuf);

/// PersistentVolumes that could be read.
#[derive(Debug, Default)]
pub(super) struct Readable {
    /// These.
    pub(super) volumes: Vec<PersistentVolume>,
    /// There are no others. A node's own rights reach those of its pods, which proves nothing of the rest.
    pub(super) all: bool,
}

/// All that is on disk.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Pods that have a directory.
    pub(super) pods: Vec<String>,
    /// What may be published.
    shares: Vec<Share>,
    /// What may be staged.
    stages: Vec<Stage>,
}

/// A pod's share of a volume, by its directory.
#[derive(Debug, Clone)]
struct Share {
    pod: String,
    spec: String,
    mode: Mode,
    path: PathBuf,
    record: Option<Result<Data, Unreadable>>,
    mounted: Option<Content>,
}

/// A staged volume, by its directory.
#[derive(Debug, Clone)]
struct Stage {
    /// The name of the directory above: for files the driver's, for devices the PersistentVolume's.
    owner: String,
    /// The name of its own directory: for files the handle's hash.
    name: String,
    mode: Mode,
    path: PathBuf,
    record: Option<Result<Data, Unreadable>>,
    mounted: Option<Content>,
}

/// Looks at all of it.
pub(super) fn scan(here: &Here<'_>) -> Result<Scan, DiskError> {
    let root = here.root;
    // A root that is not there is a new node's.
    here.kernel.create_target_dir(root.path())?;
    let table = here.kernel.mount_table()?;
    let mut scan = Scan { pods: here.names(&root.pods())?, ..Scan::default() };
    for pod in &scan.pods {
        let csi = root.publish(pod, "");
        for spec in here.names(&csi)? {
            let dir = root.publish(pod, &spec);
            let path = dir.join("mount");
            let (record, mounted) = (here.read(&dir)?, content(here, &table, &path)?);
            scan.shares.push(Share { pod: pod.clone(), spec, mode: Mode::Filesystem, path, record, mounted });
        }
    }
    for (spec, pod) in device_shares(here, &scan.pods)? {
        let path = root.device_publish(&spec, &pod);
        let (record, mounted) = (here.read(&root.device_data(&spec))?, content(here, &table, &path)?);
        scan.shares.push(Share { pod, spec, mode: Mode::Block, path, record, mounted });
    }
    scan_stages(here, &table, &mut scan)?;
    Ok(scan)
}

/// Volumes and the pods that may have their devices. The link in a pod's directory outlives the device if we die between.
fn device_shares(here: &Here<'_>, pods: &[String]) -> Result<BTreeSet<(String, String)>, DiskError> {
    let mut shares = BTreeSet::new();
    for pod in pods {
        let linked = here.names(&here.device_link("", pod))?;
        shares.extend(linked.into_iter().map(|spec| (spec, pod.clone())));
    }
    let published = here.root.devices().join("publish");
    for spec in here.names(&published)? {
        let pods = here.names(&published.join(&spec))?;
        shares.extend(pods.into_iter().map(|pod| (spec.clone(), pod)));
    }
    Ok(shares)
}

fn scan_stages(here: &Here<'_>, table: &MountTable, scan: &mut Scan) -> Result<(), DiskError> {
    let root = here.root;
    let devices = root.devices();
    let devices_name = devices.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for owner in here.names(&root.csi())? {
        if owner == devices_name {
            continue;
        }
        let drivers = root.csi().join(&owner);
        for name in here.names(&drivers)? {
            let dir = drivers.join(&name);
            let path = dir.join("globalmount");
            let (record, mounted) = (here.read(&dir)?, content(here, table, &path)?);
            scan.stages.push(Stage {
                owner: owner.clone(),
                name,
                mode: Mode::Filesystem,
                path,
                record,
                mounted,
            });
        }
    }
    for name in here.names(&devices)? {
        if matches!(name.as_str(), "publish" | "staging") {
            continue;
        }
        let path = root.device_stage(&name);
        let (record, mounted) = (here.read(&root.device_data(&name))?, content(here, table, &path)?);
        scan.stages.push(Stage { owner: name.clone(), name, mode: Mode::Block, path, record, mounted });
    }
    Ok(())
}

fn content(
    here: &Here<'_>,
    table: &MountTable,
    path: &std::path::Path,
) -> Result<Option<Content>, DiskError> {
    let at = here.kernel.resolve(path)?;
    Ok(table.at(&at).map(|mount| (mount.device, mount.root.clone())))
}

/// What follows from it.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Volumes that may be here, by unique name; all of it uncertain.
    pub(super) volumes: BTreeMap<String, Volume>,
    /// Directories of volumes that are gone: the targets in them, of whom nothing is mounted.
    pub(super) leftovers: Vec<PathBuf>,
    /// What is mounted and cannot be told: where, of which pod, and why.
    pub(super) stuck: Vec<Stuck>,
}

/// Something that is mounted and cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stuck {
    /// Where.
    pub(super) path: PathBuf,
    /// Of which pod; `None`: staged.
    pub(super) pod: Option<String>,
    /// Why.
    pub(super) why: String,
}

impl Scan {
    /// Whether PersistentVolumes would help to tell what something is.
    pub(super) fn has_gaps(&self) -> bool {
        let gap = |record: &Option<Result<Data, Unreadable>>| !matches!(record, Some(Ok(_)));
        self.shares.iter().any(|share| gap(&share.record))
            || self.stages.iter().any(|stage| gap(&stage.record))
    }

    /// Decides what everything is. `staged`: also volumes that no pod has.
    pub(super) fn judge(&self, root: &Root, persistent: &Readable, staged: bool) -> Found {
        let mut found = Found::default();
        for share in &self.shares {
            match self.share(share, persistent) {
                Verdict::Is(data) => found.add_share(share, &data),
                Verdict::Leftover => found.leftovers.push(share.path.clone()),
                Verdict::Stuck(why) => {
                    found.stuck.push(Stuck { path: share.path.clone(), pod: Some(share.pod.clone()), why });
                }
            }
        }
        for stage in &self.stages {
            match self.stage(stage, persistent) {
                Verdict::Is(data) => {
                    let unique = names::unique(&data.driver, &data.handle);
                    if staged || found.volumes.contains_key(&unique) {
                        found.add_stage(root, stage, &data);
                    }
                }
                Verdict::Leftover => found.leftovers.push(stage.path.clone()),
                Verdict::Stuck(why) => found.stuck.push(Stuck { path: stage.path.clone(), pod: None, why }),
            }
        }
        found
    }

    fn share(&self, share: &Share, persistent: &Readable) -> Verdict {
        let problem = match &share.record {
            Some(Ok(data)) => return Verdict::Is(data.clone()),
            Some(Err(error)) => Some(error),
            None => None,
        };
        // The same mount is known by its stage: nothing else can be of that file system and root.
        let twin = self.stages.iter().find(|stage| {
            stage.mode == share.mode && share.mounted.is_some() && stage.mounted == share.mounted
        });
        if let Some(Some(Ok(data))) = twin.map(|stage| &stage.record) {
            return Verdict::Is(data.clone());
        }
        let named = persistent.volumes.iter().find(|volume| volume.metadata.name == share.spec);
        match (named.and_then(data_of), &share.mounted, problem) {
            // Whoever left a record, whole or not, had the driver asked, or was about to.
            (Some(data), Some(_), _) | (Some(data), None, Some(_)) => Verdict::Is(data),
            // The record goes after the volume, and is made before it: without one nothing is there.
            (_, None, None) => Verdict::Leftover,
            (None, None, Some(_)) if persistent.all => Verdict::Leftover,
            (None, mounted, problem) => Verdict::Stuck(reason(mounted.is_some(), problem, persistent.all)),
        }
    }

    fn stage(&self, stage: &Stage, persistent: &Readable) -> Verdict {
        let problem = match &stage.record {
            Some(Ok(data)) => return Verdict::Is(data.clone()),
            Some(Err(error)) => Some(error),
            None => None,
        };
        let shares = self.shares.iter().filter_map(|share| share.record.as_ref()?.as_ref().ok().cloned());
        let volumes = persistent.volumes.iter().filter_map(data_of);
        let is_it = |data: &Data| match stage.mode {
            Mode::Filesystem => data.driver == stage.owner && hash(&data.handle) == stage.name,
            Mode::Block => data.spec.as_deref() == Some(&stage.name),
        };
        let known = shares.chain(volumes).find(is_it);
        match (known, &stage.mounted, problem) {
            (Some(data), Some(_), _) | (Some(data), None, Some(_)) => Verdict::Is(data),
            (_, None, None) => Verdict::Leftover,
            (None, None, Some(_)) if persistent.all => Verdict::Leftover,
            (None, mounted, problem) => Verdict::Stuck(reason(mounted.is_some(), problem, persistent.all)),
        }
    }
}

enum Verdict {
    Is(Data),
    Leftover,
    Stuck(String),
}

fn reason(mounted: bool, problem: Option<&Unreadable>, asked: bool) -> String {
    let state = if mounted { "something is mounted here" } else { "a volume may be here" };
    let record =
        problem.map_or("there is no vol_data.json".to_owned(), |error| format!("vol_data.json: {error}"));
    let way = match asked {
        true => "no PersistentVolume fits: ask the driver to unpublish it, or write vol_data.json anew",
        false => "a PersistentVolume may tell that cannot be read now",
    };
    format!("{state} and {record}; {way}")
}

/// What the record of a PersistentVolume would say.
fn data_of(volume: &PersistentVolume) -> Option<Data> {
    let csi = volume.spec.csi.as_ref().filter(|csi| !csi.volume_handle.is_empty())?;
    Some(Data {
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        spec: Some(volume.metadata.name.clone()),
        lifecycle: Some(LifecycleMode::Persistent),
        se_linux: None,
    })
}

impl Found {
    fn volume(&mut self, data: &Data, spec: &str, mode: Mode) -> &mut Volume {
        let ephemeral = data.lifecycle == Some(LifecycleMode::Ephemeral);
        let unique = names::unique(&data.driver, &data.handle);
        let new = || Volume::new(&data.driver, &data.handle, spec, mode, ephemeral);
        self.volumes.entry(unique).or_insert_with(new)
    }

    fn add_share(&mut self, share: &Share, data: &Data) {
        let volume = self.volume(data, &share.spec, share.mode);
        volume.se_linux = volume.se_linux.take().or_else(|| data.se_linux.clone());
        let mount = Mount {
            progress: Progress::Uncertain,
            found: true,
            published: Time(0),
            spec: share.spec.clone(),
        };
        volume.mounts.insert(share.pod.clone(), mount);
    }

    fn add_stage(&mut self, root: &Root, stage: &Stage, data: &Data) {
        // A staged volume's record does not have the volume's name; it is in no path of ours before it is wanted.
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
