//! Snapshots: what upstream's csi-snapshotter and snapshot-controller do in two processes, and ours in one. The controller
//! manager stands still, since it has no part in it.

mod objects;
mod report;

use std::process::Command;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use wharf_cluster::{Store, WatchOptions};
use wharf_model::{VolumeSnapshot, VolumeSnapshotContent};
use wharf_testkit::built;

use crate::ground::{Cost, Ground};
use crate::measure::Memory;
use crate::objects::{handle, seed_volumes};
use crate::side::{SNAPSHOT_ROLES, Side, Who};

pub(crate) use report::section;

/// For every role that there is.
const CAPABILITIES: &str = "--capabilities=CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME,\
    CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,LIST_VOLUMES,VOLUME_CONDITION";
const EVERY_ROLE: &str = "provisioner,attacher,resizer,snapshotter,health-monitor,snapshot-controller";
/// How long memory needs to come to rest.
const REST: Duration = Duration::from_secs(30);

/// How much of everything.
pub(crate) struct Size {
    /// Taken and deleted.
    pub(crate) many: usize,
    /// There when one more is taken.
    pub(crate) existing: usize,
    /// There when memory is looked at.
    pub(crate) objects: usize,
}

/// Taken, and deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) take: Cost,
    pub(crate) delete: Cost,
}

/// Seconds until one more is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneMore {
    /// The side has just been started.
    pub(crate) started: f64,
    /// It has had nothing to do for a while.
    pub(crate) at_rest: f64,
}

/// All that was measured.
pub(crate) struct Found {
    pub(crate) size: Size,
    /// At its defaults, tuned, ours.
    pub(crate) work: [Work; 3],
    pub(crate) one_more: [OneMore; 3],
    /// Without any, and with many.
    pub(crate) memory: [Memory; 2],
    pub(crate) every_role: u64,
}

/// The cluster, and eyes on its snapshots.
struct Bench {
    ground: Ground,
    snapshots: Store<VolumeSnapshot>,
    contents: Store<VolumeSnapshotContent>,
}

pub(crate) async fn run(size: Size) -> Found {
    let bench = Bench::start(size.many).await;
    let every_role = bench.every_role().await;
    let empty = bench.memory().await;
    let defaults = bench.work(Who::Defaults, 0, size.many).await;
    // Twice and by turns, since others may work on the machine.
    let tuned = bench.work(Who::Tuned, 0, size.many).await;
    let ours = bench.work(Who::Ours, 0, size.many).await;
    let tuned = tuned.better(bench.work(Who::Tuned, 1, size.many).await);
    let ours = ours.better(bench.work(Who::Ours, 1, size.many).await);

    eprintln!("{} snapshots", size.existing);
    objects::seed(&bench.ground.api, 0..size.existing, size.many).await;
    let one_more = [
        bench.one_more(Who::Defaults).await,
        bench.one_more(Who::Tuned).await,
        bench.one_more(Who::Ours).await,
    ];
    eprintln!("{} snapshots", size.objects);
    objects::seed(&bench.ground.api, size.existing..size.objects, size.many).await;
    let full = bench.memory().await;
    Found { size, work: [defaults, tuned, ours], one_more, memory: [empty, full], every_role }
}

fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
}

impl Work {
    fn better(self, other: Self) -> Self {
        Self { take: self.take.better(other.take), delete: self.delete.better(other.delete) }
    }
}

impl Bench {
    /// With so many claims to take snapshots of.
    async fn start(claims: usize) -> Self {
        let ground = Ground::start(true, CAPABILITIES).await;
        let installed = Command::new(built("wharf"))
            .args(["install", "crds", "--kubeconfig"])
            .arg(ground.cluster.kubeconfig())
            .output();
        assert!(installed.expect("wharf install crds").status.success());
        ground.cluster.apply(&objects::class());
        ground.controller_manager(false);
        seed_volumes(&ground.api, 0..claims).await;
        for number in 0..claims {
            ground.driver.add_volume(&handle(&format!("seed-{number}")));
        }
        let snapshots = ground.api.store::<VolumeSnapshot>(WatchOptions::default());
        snapshots.index("ready", |snapshot| vec![is_ready(snapshot).to_string()]);
        let contents = ground.api.store::<VolumeSnapshotContent>(WatchOptions::default());
        snapshots.synced().await;
        contents.synced().await;
        Self { ground, snapshots, contents }
    }

    /// Takes a snapshot, and gives the seconds until it was ready; then deletes it.
    async fn one(&self, name: &str) -> f64 {
        let (contents, began) = (self.contents.len(), Instant::now());
        let (key, one) = (objects::key(name), [(name.to_owned(), "seed-0".to_owned())]);
        objects::take(&self.ground.api, &one).await;
        self.ground.until(name, || self.snapshots.get(&key).is_some_and(|it| is_ready(&it))).await;
        let seconds = began.elapsed().as_secs_f64();
        objects::delete(&self.ground.api, &one).await;
        let gone = || self.snapshots.get(&key).is_none() && self.contents.len() == contents;
        self.ground.until(name, gone).await;
        seconds
    }

    /// Many taken, then all of them deleted.
    async fn work(&self, who: Who, round: usize, count: usize) -> Work {
        eprintln!("{who:?}, {count} snapshots");
        let side = self.side(who, &format!("snapshots-{}-{round}", who.word()));
        self.one(&format!("first-{}-{round}", who.word())).await;
        let all: Vec<(String, String)> =
            (0..count).map(|number| (format!("many-{number}"), format!("seed-{number}"))).collect();
        let api = &self.ground.api;
        let take = self
            .ground
            .cost("take", &side, count, count, objects::take(api, &all), || {
                self.snapshots.by_index("ready", "true").len() == count
            })
            .await;
        let delete = self
            .ground
            .cost("delete", &side, count, count, objects::delete(api, &all), || {
                self.snapshots.is_empty() && self.contents.is_empty()
            })
            .await;
        self.ground.end(side);
        Work { take, delete }
    }

    async fn one_more(&self, who: Who) -> OneMore {
        let side = self.side(who, &format!("one-more-{}", who.word()));
        let started = self.one(&format!("started-{}", who.word())).await;
        sleep(REST).await;
        let at_rest = self.one(&format!("rested-{}", who.word())).await;
        eprintln!("  {who:?}: one more after {started:.2} s when just started, {at_rest:.2} s at rest");
        self.ground.end(side);
        OneMore { started, at_rest }
    }

    /// Of both, started with what there is.
    async fn memory(&self) -> Memory {
        let upstream = self.side(Who::Defaults, "memory-upstream");
        // Elsewhere, so that both lead: here is no work that they could do twice.
        let args = ["--roles", SNAPSHOT_ROLES, "--leader-election-namespace", "kube-system"];
        let ours = Side::ours("memory-ours", &self.ground.cluster, &self.ground.driver, &args);
        sleep(REST).await;
        let memory = Memory { upstream: upstream.usage().rss_kib, ours: ours.usage().rss_kib };
        eprintln!("  with {} snapshots: {memory:?}", self.snapshots.len());
        self.ground.end(upstream);
        self.ground.end(ours);
        memory
    }

    /// All roles for a cluster and a node in one process, at rest.
    async fn every_role(&self) -> u64 {
        let memory = self.ground.every_role(EVERY_ROLE).await;
        eprintln!("  every role: {memory} KiB");
        memory
    }

    fn side(&self, who: Who, name: &str) -> Side {
        Side::snapshots(who, name, &self.ground.cluster, &self.ground.driver)
    }
}
