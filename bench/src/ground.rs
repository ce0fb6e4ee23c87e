//! What a measurement stands on: a cluster, the driver, and eyes on the objects.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use wharf_cluster::{Cluster, ConnectOptions, Store, WatchOptions};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, VolumeAttachment};
use wharf_testkit::{ClusterOptions, ScriptedDriver, TestCluster};

use crate::objects::{self, DRIVER};
use crate::side::{Side, Who};

/// What upstream's provisioner and resizer, and ours, call for; nothing that only ours would use.
pub(crate) const CAPABILITIES: &str =
    "--capabilities=CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME";
/// Nothing takes as long, on any machine on which one would wait for it.
const LIMIT: Duration = Duration::from_secs(1800);
/// After the last object: events are still being written.
const SETTLE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(5);

/// The cluster and what is in it. It has no nodes: there is nobody else on the machine's processors.
pub(crate) struct Ground {
    pub(crate) driver: ScriptedDriver,
    pub(crate) cluster: TestCluster,
    pub(crate) api: Cluster,
    pub(crate) volumes: Store<PersistentVolume>,
    pub(crate) claims: Store<PersistentVolumeClaim>,
    pub(crate) attachments: Store<VolumeAttachment>,
}

/// What a piece of work has cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// How many objects it was.
    pub(crate) count: usize,
    /// From the first request for it to the last one done.
    pub(crate) seconds: f64,
    /// Processor time of the side's processes.
    pub(crate) cpu: f64,
    /// Requests of theirs to the API server, in all.
    pub(crate) requests: f64,
}

impl Cost {
    /// The quicker of two.
    pub(crate) fn better(self, other: Self) -> Self {
        if other.seconds < self.seconds { other } else { self }
    }

    /// Objects in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.count as f64 / self.seconds
    }

    /// Requests for one object.
    pub(crate) fn requests_each(&self) -> f64 {
        self.requests / self.count as f64
    }

    /// Milliseconds of processor for one object.
    pub(crate) fn cpu_ms_each(&self) -> f64 {
        1000.0 * self.cpu / self.count as f64
    }
}

impl Ground {
    /// Starts a cluster; `tuned` is its controller manager, and the driver can do what these options say.
    pub(crate) async fn start(tuned: bool, capabilities: &str) -> Self {
        let cluster =
            TestCluster::start_with(ClusterOptions { nodes: &[], tuned, ..ClusterOptions::default() });
        let driver = ScriptedDriver::start(&cluster, DRIVER, &[capabilities, "--node-capabilities="]);
        cluster.apply(&objects::ground());
        let options = ConnectOptions { kubeconfig: Some(cluster.kubeconfig()), ..ConnectOptions::default() };
        let api = Cluster::connect(&options).await.expect("the cluster's credentials");
        let volumes = api.store::<PersistentVolume>(WatchOptions::default());
        let claims = api.store::<PersistentVolumeClaim>(WatchOptions::default());
        let attachments = api.store::<VolumeAttachment>(WatchOptions::default());
        claims.index("phase", |claim| vec![claim.status.phase.to_string()]);
        claims.index("bytes", |claim| {
            claim.status.capacity.storage.iter().map(|size| size.bytes().to_string()).collect()
        });
        attachments.index("attached", |attachment| vec![attachment.status.attached.to_string()]);
        volumes.synced().await;
        claims.synced().await;
        attachments.synced().await;
        Self { driver, cluster, api, volumes, claims, attachments }
    }

    /// Ends a side and forgets its leases, so that the next one need not wait for them.
    pub(crate) fn end(&self, mut side: Side) {
        assert!(side.runs(), "a process of {DRIVER} has ended by itself");
        side.kill();
        self.forget_leases();
    }

    pub(crate) fn forget_leases(&self) {
        for namespace in ["default", "kube-system"] {
            self.cluster.kubectl(&["delete", "leases", "--all", "--namespace", namespace]);
        }
    }

    /// Lets the controller manager stand still, or go on.
    pub(crate) fn controller_manager(&self, runs: bool) {
        self.cluster.signal("kube-controller-manager", if runs { "CONT" } else { "STOP" });
    }

    /// Starts a replica and waits until it has made its first volume.
    pub(crate) async fn lead(&self, who: Who, name: &str) -> Side {
        let side = Side::start(who, name, &self.cluster, &self.driver);
        self.one_volume(&format!("{name}-first")).await;
        side
    }

    /// Makes a claim, waits for its volume, and returns after how many seconds that was there.
    pub(crate) async fn one_volume(&self, name: &str) -> f64 {
        let (before, began) = (self.volumes.len(), Instant::now());
        objects::create_claims(&self.api, &[name.to_owned()], true).await;
        self.until(name, || self.volumes.len() > before).await;
        began.elapsed().as_secs_f64()
    }

    /// The memory of these roles, and of those of a node, in one process at rest.
    pub(crate) async fn every_role(&self, roles: &str) -> u64 {
        let registry = self.cluster.directory().join("plugins_registry");
        std::fs::create_dir_all(&registry).expect("a directory");
        let (registry, socket) = (registry.display().to_string(), self.driver.socket().display().to_string());
        let mut args = vec!["--roles", roles, "--node"];
        args.extend(["--kubelet-registration-path", &socket, "--plugin-registration-path", &registry]);
        let side = Side::ours("every-role", &self.cluster, &self.driver, &args);
        sleep(Duration::from_secs(8)).await;
        let memory = side.usage().rss_kib;
        self.end(side);
        memory
    }

    /// Claims and the volumes made for them.
    pub(crate) fn pairs(&self, prefix: &str) -> Vec<(String, String)> {
        let named = self.volumes.all().into_iter().filter_map(|volume| {
            let claim = volume.spec.claim_ref.as_ref()?.name.clone();
            claim.starts_with(prefix).then(|| (claim, volume.metadata.name.clone()))
        });
        named.collect()
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, so: impl Fn() -> bool) {
        let began = Instant::now();
        while !so() {
            assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
            sleep(TICK).await;
        }
    }

    /// Lets a side do a piece of work. `own` are the requests that asking for it takes; they are not the side's.
    pub(crate) async fn cost(
        &self,
        what: &str,
        side: &Side,
        count: usize,
        own: usize,
        ask: impl Future<Output = ()>,
        done: impl Fn() -> bool,
    ) -> Cost {
        let (requests, cpu, began) = (self.requests(), side.usage().cpu, Instant::now());
        ask.await;
        self.until(what, done).await;
        let seconds = began.elapsed().as_secs_f64();
        sleep(SETTLE).await;
        let cpu = (side.usage().cpu - cpu).as_secs_f64();
        let requests = self.requests_since(&requests) - own as f64;
        let cost = Cost { count, seconds, cpu, requests };
        eprintln!(
            "  {what}: {seconds:.2} s, {:.1}/s, {:.2} ms of processor and {:.2} requests each",
            cost.rate(),
            cost.cpu_ms_each(),
            cost.requests_each()
        );
        cost
    }

    /// The requests that the API server has answered, about what sidecars write; watches and lists are left out, since
    /// these do not grow with the work.
    fn requests(&self) -> BTreeMap<String, f64> {
        let resources = [
            "persistentvolumes",
            "persistentvolumeclaims",
            "volumeattachments",
            "volumesnapshots",
            "volumesnapshotcontents",
            "events",
            "leases",
            "secrets",
        ];
        let text = self.cluster.kubectl(&["get", "--raw", "/metrics"]);
        let mut sums = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let label = |name: &str| {
                let rest = line.split_once(&format!("{name}=\""))?.1;
                rest.split_once('"').map(|(value, _)| value)
            };
            let (Some(resource), Some(verb)) = (label("resource"), label("verb")) else { continue };
            if !resources.contains(&resource) || matches!(verb, "WATCH" | "LIST") {
                continue;
            }
            let count: f64 = line.rsplit(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
            *sums.entry(format!("{verb} {resource}")).or_default() += count;
        }
        sums
    }

    fn requests_since(&self, before: &BTreeMap<String, f64>) -> f64 {
        let now = self.requests();
        let more = now.iter().map(|(what, count)| (what, count - before.get(what).unwrap_or(&0.0)));
        let more: Vec<_> = more.filter(|(_, count)| *count > 0.0).collect();
        let words: Vec<_> = more.iter().map(|(what, count)| format!("{what} {count}")).collect();
        eprintln!("    {}", words.join(", "));
        more.iter().map(|(_, count)| count).sum()
    }
}
