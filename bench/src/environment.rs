//! The environment of a measurement: a cluster, the driver, and watches on the objects.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use wharf_cluster::{Cluster, ConnectOptions, Store, WatchOptions};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, VolumeAttachment};
use wharf_testkit::{ClusterOptions, ScriptedDriver, TestCluster};

use crate::objects::{self, DRIVER};
use crate::side::{Contender, Side};

/// The driver capabilities that both upstream's and our sidecars use.
pub(crate) const CAPABILITIES: &str =
    "--capabilities=CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME";
/// Timeout of any step.
const LIMIT: Duration = Duration::from_secs(1800);
/// Wait after the last object, while events are still being written.
const SETTLE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(5);

/// The cluster and its objects. It has no nodes, so that nothing else uses the machine's processors.
pub(crate) struct Environment {
    pub(crate) driver: ScriptedDriver,
    pub(crate) cluster: TestCluster,
    pub(crate) api: Cluster,
    pub(crate) volumes: Store<PersistentVolume>,
    pub(crate) claims: Store<PersistentVolumeClaim>,
    pub(crate) attachments: Store<VolumeAttachment>,
}

/// The cost of a piece of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Number of objects.
    pub(crate) count: usize,
    /// From the first request to the last completed object.
    pub(crate) seconds: f64,
    /// Processor time of the side's processes, in seconds.
    pub(crate) cpu: f64,
    /// Total requests of the side to the API server.
    pub(crate) requests: f64,
}

impl Cost {
    /// The faster of two.
    pub(crate) fn better(self, other: Self) -> Self {
        if other.seconds < self.seconds { other } else { self }
    }

    /// Objects per second.
    pub(crate) fn rate(&self) -> f64 {
        self.count as f64 / self.seconds
    }

    /// Requests per object.
    pub(crate) fn requests_each(&self) -> f64 {
        self.requests / self.count as f64
    }

    /// Processor milliseconds per object.
    pub(crate) fn cpu_ms_each(&self) -> f64 {
        1000.0 * self.cpu / self.count as f64
    }
}

impl Environment {
    /// Starts a cluster with a `tuned` or default controller manager, and a driver with these capabilities.
    pub(crate) async fn start(tuned: bool, capabilities: &str) -> Self {
        let cluster =
            TestCluster::start_with(ClusterOptions { nodes: &[], tuned, ..ClusterOptions::default() });
        let driver = ScriptedDriver::start(&cluster, DRIVER, &[capabilities, "--node-capabilities="]);
        cluster.apply(&objects::base_objects());
        let options = ConnectOptions { kubeconfig: Some(cluster.kubeconfig()), ..ConnectOptions::default() };
        let api = Cluster::connect(&options).await.expect("the cluster's credentials");
        let volumes = api.store::<PersistentVolume>(WatchOptions::default());
        let claims = api.store::<PersistentVolumeClaim>(WatchOptions::default());
        let attachments = api.store::<VolumeAttachment>(WatchOptions::default());
        claims.add_index("phase", |claim| vec![claim.status.phase.to_string()]);
        claims.add_index("bytes", |claim| {
            claim.status.capacity.storage.iter().map(|size| size.bytes().to_string()).collect()
        });
        attachments.add_index("attached", |attachment| vec![attachment.status.attached.to_string()]);
        volumes.wait_synced().await;
        claims.wait_synced().await;
        attachments.wait_synced().await;
        Self { driver, cluster, api, volumes, claims, attachments }
    }

    /// Stops a side and deletes its leases, so that the next side does not have to wait for them.
    pub(crate) fn end(&self, mut side: Side) {
        assert!(side.runs(), "a process of {DRIVER} exited unexpectedly");
        side.kill();
        self.delete_leases();
    }

    pub(crate) fn delete_leases(&self) {
        for namespace in ["default", "kube-system"] {
            self.cluster.kubectl(&["delete", "leases", "--all", "--namespace", namespace]);
        }
    }

    /// Suspends or resumes the controller manager.
    pub(crate) fn controller_manager(&self, runs: bool) {
        self.cluster.signal("kube-controller-manager", if runs { "CONT" } else { "STOP" });
    }

    /// Starts a replica and waits until it has provisioned its first volume.
    pub(crate) async fn start_leader(&self, contender: Contender, name: &str) -> Side {
        let side = Side::start(contender, name, &self.cluster, &self.driver);
        self.one_volume(&format!("{name}-first")).await;
        side
    }

    /// Creates a claim and returns the seconds until its volume exists.
    pub(crate) async fn one_volume(&self, name: &str) -> f64 {
        let (before, started) = (self.volumes.len(), Instant::now());
        objects::create_claims(&self.api, &[name.to_owned()], true).await;
        self.wait_until(name, || self.volumes.len() > before).await;
        started.elapsed().as_secs_f64()
    }

    /// Idle memory of one process with these roles and the node roles.
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

    /// Claims and the volumes provisioned for them.
    pub(crate) fn pairs(&self, prefix: &str) -> Vec<(String, String)> {
        let named = self.volumes.all().into_iter().filter_map(|volume| {
            let claim = volume.spec.claim_ref.as_ref()?.name.clone();
            claim.starts_with(prefix).then(|| (claim, volume.metadata.name.clone()))
        });
        named.collect()
    }

    /// Waits until `condition` is true.
    pub(crate) async fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < LIMIT, "timeout after {LIMIT:?}: {what}");
            sleep(TICK).await;
        }
    }

    /// Measures a piece of work. `own` is the number of requests that trigger it, which are not the side's.
    pub(crate) async fn cost(
        &self,
        what: &str,
        side: &Side,
        count: usize,
        own: usize,
        ask: impl Future<Output = ()>,
        done: impl Fn() -> bool,
    ) -> Cost {
        let (requests, cpu, started) = (self.requests(), side.usage().cpu, Instant::now());
        ask.await;
        self.wait_until(what, done).await;
        let seconds = started.elapsed().as_secs_f64();
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

    /// The API server's request counts for resources that sidecars write. Watches and lists are excluded, because they
    /// do not grow with the work.
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
