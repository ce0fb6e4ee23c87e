//! Snapshots: upstream's csi-snapshotter and snapshot-controller in two processes against ours in one. The controller
//! manager is suspended, because it is not involved.

mod objects;
mod report;

use std::process::Command;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use wharf_cluster::{Store, WatchOptions};
use wharf_model::{VolumeSnapshot, VolumeSnapshotContent};
use wharf_testkit::built_program;

use crate::environment::{Cost, Environment};
use crate::measure::Memory;
use crate::objects::{handle, seed_volumes};
use crate::side::{Contender, SNAPSHOT_ROLES, Side};

pub(crate) use report::section;

/// Capabilities for all roles.
const CAPABILITIES: &str = "--capabilities=CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME,\
    CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,LIST_VOLUMES,VOLUME_CONDITION";
const EVERY_ROLE: &str = "provisioner,attacher,resizer,snapshotter,health-monitor,snapshot-controller";
/// How long memory needs to settle.
const REST: Duration = Duration::from_secs(30);

/// The sizes of the measurements.
pub(crate) struct Size {
    /// Snapshots created and deleted.
    pub(crate) many: usize,
    /// Existing snapshots when one more is created.
    pub(crate) existing: usize,
    /// Existing snapshots when memory is measured.
    pub(crate) objects: usize,
}

/// Taken, and deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) take: Cost,
    pub(crate) delete: Cost,
}

/// Seconds until one more snapshot is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneMore {
    /// Just after the side was started.
    pub(crate) started: f64,
    /// After the side was idle for a while.
    pub(crate) at_rest: f64,
}

/// All results.
pub(crate) struct Results {
    pub(crate) size: Size,
    /// At its defaults, tuned, ours.
    pub(crate) work: [Work; 3],
    pub(crate) one_more: [OneMore; 3],
    /// Without any, and with many.
    pub(crate) memory: [Memory; 2],
    pub(crate) every_role: u64,
}

/// The cluster, with a watch on its snapshots.
struct Bench {
    environment: Environment,
    snapshots: Store<VolumeSnapshot>,
    contents: Store<VolumeSnapshotContent>,
}

pub(crate) async fn run(size: Size) -> Results {
    let bench = Bench::start(size.many).await;
    let every_role = bench.every_role().await;
    let empty = bench.memory().await;
    let defaults = bench.work(Contender::Defaults, 0, size.many).await;
    // Twice and alternating, because other processes may use the machine.
    let tuned = bench.work(Contender::Tuned, 0, size.many).await;
    let ours = bench.work(Contender::Ours, 0, size.many).await;
    let tuned = tuned.better(bench.work(Contender::Tuned, 1, size.many).await);
    let ours = ours.better(bench.work(Contender::Ours, 1, size.many).await);

    eprintln!("{} snapshots", size.existing);
    objects::seed(&bench.environment.api, 0..size.existing, size.many).await;
    let one_more = [
        bench.one_more(Contender::Defaults).await,
        bench.one_more(Contender::Tuned).await,
        bench.one_more(Contender::Ours).await,
    ];
    eprintln!("{} snapshots", size.objects);
    objects::seed(&bench.environment.api, size.existing..size.objects, size.many).await;
    let full = bench.memory().await;
    Results { size, work: [defaults, tuned, ours], one_more, memory: [empty, full], every_role }
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
    /// Starts a cluster with this many claims to snapshot.
    async fn start(claims: usize) -> Self {
        let environment = Environment::start(true, CAPABILITIES).await;
        let installed = Command::new(built_program("wharf"))
            .args(["install", "crds", "--kubeconfig"])
            .arg(environment.cluster.kubeconfig())
            .output();
        assert!(installed.expect("wharf install crds").status.success());
        environment.cluster.apply(&objects::class());
        environment.controller_manager(false);
        seed_volumes(&environment.api, 0..claims).await;
        for number in 0..claims {
            environment.driver.add_volume(&handle(&format!("seed-{number}")));
        }
        let snapshots = environment.api.store::<VolumeSnapshot>(WatchOptions::default());
        snapshots.add_index("ready", |snapshot| vec![is_ready(snapshot).to_string()]);
        let contents = environment.api.store::<VolumeSnapshotContent>(WatchOptions::default());
        snapshots.wait_synced().await;
        contents.wait_synced().await;
        Self { environment, snapshots, contents }
    }

    /// Creates a snapshot, returns the seconds until it was ready, and deletes it.
    async fn one(&self, name: &str) -> f64 {
        let (contents, start) = (self.contents.len(), Instant::now());
        let (key, one) = (objects::key(name), [(name.to_owned(), "seed-0".to_owned())]);
        objects::take(&self.environment.api, &one).await;
        self.environment.wait_until(name, || self.snapshots.get(&key).is_some_and(|it| is_ready(&it))).await;
        let seconds = start.elapsed().as_secs_f64();
        objects::delete(&self.environment.api, &one).await;
        let gone = || self.snapshots.get(&key).is_none() && self.contents.len() == contents;
        self.environment.wait_until(name, gone).await;
        seconds
    }

    /// Creates many snapshots, then deletes all of them.
    async fn work(&self, contender: Contender, round: usize, count: usize) -> Work {
        eprintln!("{contender:?}, {count} snapshots");
        let side = self.side(contender, &format!("snapshots-{}-{round}", contender.name()));
        self.one(&format!("first-{}-{round}", contender.name())).await;
        let all: Vec<(String, String)> =
            (0..count).map(|number| (format!("many-{number}"), format!("seed-{number}"))).collect();
        let api = &self.environment.api;
        let take = self
            .environment
            .cost("take", &side, count, count, objects::take(api, &all), || {
                self.snapshots.by_index("ready", "true").len() == count
            })
            .await;
        let delete = self
            .environment
            .cost("delete", &side, count, count, objects::delete(api, &all), || {
                self.snapshots.is_empty() && self.contents.is_empty()
            })
            .await;
        self.environment.end(side);
        Work { take, delete }
    }

    async fn one_more(&self, contender: Contender) -> OneMore {
        let side = self.side(contender, &format!("one-more-{}", contender.name()));
        let started = self.one(&format!("started-{}", contender.name())).await;
        sleep(REST).await;
        let at_rest = self.one(&format!("rested-{}", contender.name())).await;
        eprintln!("  {contender:?}: one more after {started:.2} s when just started, {at_rest:.2} s at rest");
        self.environment.end(side);
        OneMore { started, at_rest }
    }

    /// Memory of both sides, started with the existing snapshots.
    async fn memory(&self) -> Memory {
        let upstream = self.side(Contender::Defaults, "memory-upstream");
        // In another namespace, so that both lead: there is no work that they could do twice.
        let args = ["--roles", SNAPSHOT_ROLES, "--leader-election-namespace", "kube-system"];
        let ours = Side::ours("memory-ours", &self.environment.cluster, &self.environment.driver, &args);
        sleep(REST).await;
        let memory = Memory { upstream: upstream.usage().rss_kib, ours: ours.usage().rss_kib };
        eprintln!("  with {} snapshots: {memory:?}", self.snapshots.len());
        self.environment.end(upstream);
        self.environment.end(ours);
        memory
    }

    /// Idle memory of one process with all cluster and node roles.
    async fn every_role(&self) -> u64 {
        let memory = self.environment.every_role(EVERY_ROLE).await;
        eprintln!("  every role: {memory} KiB");
        memory
    }

    fn side(&self, contender: Contender, name: &str) -> Side {
        Side::snapshots(contender, name, &self.environment.cluster, &self.environment.driver)
    }
}
