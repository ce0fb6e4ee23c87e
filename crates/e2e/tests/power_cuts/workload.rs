//! Random calls to a driver, recorded in a model before they start and after they were acknowledged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use wharf_csi::v1::NodeExpandVolumeRequest;
use wharf_linux::{Filesystems as _, FsType, Linux};
use wharf_testkit::{DriverOptions, MIB, Orchestrator, SeededRng};

use crate::content;
use crate::model::{Bounds, Model, Phase, Snapshot, Volume};

const MOST_VOLUMES: usize = 4;
const MOST_SNAPSHOTS: usize = 3;

pub(crate) struct Workload {
    co: Orchestrator,
    rng: SeededRng,
    model: Arc<Mutex<Model>>,
    /// Target paths of the mounted volumes.
    targets: BTreeMap<String, PathBuf>,
    /// Whether the pool can take snapshots of mounted volumes.
    reflink: bool,
    names: u64,
}

impl Workload {
    pub(crate) fn start(
        pool: &Path,
        work: &Path,
        reflink: bool,
        rng: SeededRng,
        model: Arc<Mutex<Model>>,
    ) -> Self {
        let co = Orchestrator::start(Path::new(crate::DRIVER), pool, work, &DriverOptions::default());
        Self { co, rng, model, targets: BTreeMap::new(), reflink, names: 0 }
    }

    /// Makes random calls until `stop`, and counts them in `steps`.
    pub(crate) async fn run(mut self, stop: &AtomicBool, steps: &AtomicUsize) {
        while !stop.load(Ordering::Relaxed) {
            self.step().await;
            steps.fetch_add(1, Ordering::Relaxed);
        }
        for name in self.targets.keys().cloned().collect::<Vec<_>>() {
            self.unmount(&name).await;
        }
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    fn new_name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}", self.names)
    }

    fn pick(&mut self, names: Vec<String>) -> Option<String> {
        (!names.is_empty()).then(|| names[self.rng.below(names.len())].clone())
    }

    async fn step(&mut self) {
        let model = self.model().clone();
        let (volumes, snapshots) = (model.live_volumes(), model.live_snapshots());
        let Some(volume) = self.pick(volumes.clone()) else { return self.create(None).await };
        let snapshot = self.pick(snapshots.clone());
        match (self.rng.below(12), snapshot) {
            (0, _) if volumes.len() < MOST_VOLUMES => self.create(None).await,
            (1, Some(snapshot)) if volumes.len() < MOST_VOLUMES => self.create(Some(&snapshot)).await,
            (2, _) if volumes.len() < MOST_VOLUMES => {
                self.prepare_copy(&volume).await;
                self.create(Some(&volume)).await;
            }
            (3 | 4, _) if snapshots.len() < MOST_SNAPSHOTS => self.snapshot(&volume).await,
            (5, Some(snapshot)) => self.delete_snapshot(&snapshot).await,
            (6, _) => self.delete(&volume).await,
            (7, _) => self.expand(&volume).await,
            (8, _) => self.unmount(&volume).await,
            _ => self.write(&volume).await,
        }
    }

    async fn create(&mut self, from: Option<&str>) {
        let name = self.new_name("volume");
        let (volume, source) = {
            let model = self.model();
            let source = from.map(|from| model.id_of(from).unwrap());
            let of_source = from.map(|from| match model.snapshots.get(from) {
                Some(snapshot) => (snapshot.fs, snapshot.size, snapshot.content),
                None => {
                    let volume = &model.volumes[from];
                    (volume.fs, volume.size.started, volume.content)
                }
            });
            drop(model);
            let (fs, size, content) = of_source.unwrap_or_else(|| {
                let (fs, size) = [("ext4", 32 * MIB), ("ext4", 48 * MIB), ("", 8 * MIB)][self.rng.below(3)];
                (fs, size, Bounds::default())
            });
            let volume = Volume {
                phase: Phase::Creating,
                fs,
                thick: self.rng.below(3) == 0,
                created_size: size,
                size: Bounds::exactly(size),
                content,
                from: from.map(str::to_owned),
                id: None,
            };
            (volume, source)
        };
        self.model().volumes.insert(name.clone(), volume.clone());
        let id = create(&mut self.co, &name, &volume, source.as_deref()).await;
        let mut model = self.model();
        model.volume(&name).id = Some(id);
        model.volume(&name).phase = Phase::Live;
    }

    /// Without reflinks only volumes that are not in use can be copied.
    async fn prepare_copy(&mut self, volume: &str) {
        if !self.reflink {
            self.unmount(volume).await;
        }
    }

    async fn snapshot(&mut self, volume: &str) {
        self.prepare_copy(volume).await;
        let name = self.new_name("snapshot");
        let id = {
            let mut model = self.model();
            let of = model.volumes[volume].clone();
            let snapshot = Snapshot {
                phase: Phase::Creating,
                of: volume.to_owned(),
                fs: of.fs,
                size: of.size.started,
                content: of.content,
                id: None,
            };
            model.snapshots.insert(name.clone(), snapshot);
            of.id.unwrap()
        };
        let id = self.co.snapshot(&name, &id).await;
        let mut model = self.model();
        model.snapshot(&name).id = Some(id);
        model.snapshot(&name).phase = Phase::Live;
    }

    async fn delete_snapshot(&mut self, name: &str) {
        self.model().snapshot(name).phase = Phase::Deleting;
        let id = self.model().id_of(name).unwrap();
        self.co.delete_snapshot(&id).await;
        self.model().snapshot(name).phase = Phase::Deleted;
    }

    async fn delete(&mut self, name: &str) {
        self.unmount(name).await;
        self.model().volume(name).phase = Phase::Deleting;
        let id = self.model().id_of(name).unwrap();
        self.co.delete(&id).await;
        self.model().volume(name).phase = Phase::Deleted;
    }

    async fn mount(&mut self, name: &str) -> PathBuf {
        if let Some(target) = self.targets.get(name) {
            return target.clone();
        }
        let (id, fs) =
            self.model().volumes.get(name).map(|volume| (volume.id.clone().unwrap(), volume.fs)).unwrap();
        self.co.stage(&id, fs).await;
        let target = self.co.publish(&id, fs, "pod").await;
        self.targets.insert(name.to_owned(), target.clone());
        target
    }

    async fn unmount(&mut self, name: &str) {
        if self.targets.remove(name).is_some() {
            let id = self.model().id_of(name).unwrap();
            self.co.unpublish(&id, "pod").await;
            self.co.unstage(&id).await;
        }
    }

    async fn write(&mut self, name: &str) {
        let target = self.mount(name).await;
        let fs = self.model().volumes[name].fs;
        let count = content::read(&target, fs) + 1;
        self.model().volume(name).content.started = count;
        content::write(&target, fs, count);
        self.model().volume(name).content.acknowledged = count;
    }

    /// Expands a volume; mounted file systems that the kernel cannot grow in use are unmounted first.
    async fn expand(&mut self, name: &str) {
        let volume = self.model().volumes[name].clone();
        let size = volume.size.started + 16 * MIB;
        if volume.fs == "ext4" && Linux::new().can_grow_online(FsType::Ext4).is_err() {
            self.unmount(name).await;
        }
        let id = volume.id.unwrap();
        self.model().volume(name).size.started = size;
        self.co.expand(&id, size).await;
        if self.targets.contains_key(name) {
            let request: NodeExpandVolumeRequest = self.co.node_expand_request(&id, volume.fs, size);
            self.co
                .retry_until_ok("node expand", request, async |c, r| c.node().node_expand_volume(r).await)
                .await;
        }
        self.model().volume(name).size.acknowledged = size;
    }
}

/// CreateVolume as recorded in the model.
pub(crate) async fn create(
    co: &mut Orchestrator,
    name: &str,
    volume: &Volume,
    source: Option<&str>,
) -> String {
    let parameters: &[(&str, &str)] = if volume.thick { &[("type", "thick")] } else { &[] };
    co.create_with(name, volume.created_size, volume.fs, source, parameters).await
}
