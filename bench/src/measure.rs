//! The measurements, each for one side.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::environment::{Cost, Environment};
use crate::objects;
use crate::side::{COMMON_ROLES, Contender, Side};

/// Results with the controller manager suspended, so that they are the sidecars' alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alone {
    /// From claims to volumes.
    pub(crate) create: Cost,
    /// From a larger request to a larger volume.
    pub(crate) expand: Cost,
    /// From Released to deleted.
    pub(crate) delete: Cost,
}

impl Alone {
    /// The better of two.
    pub(crate) fn better(self, other: Self) -> Self {
        Self {
            create: self.create.better(other.create),
            expand: self.expand.better(other.expand),
            delete: self.delete.better(other.delete),
        }
    }
}

/// Results together with the controller manager, in volumes per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
    /// From claims to volumes.
    pub(crate) create: f64,
    /// From claims to Bound.
    pub(crate) bind: f64,
    /// From the deletion of claims to the deletion of volumes.
    pub(crate) delete: f64,
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

/// Measures the sidecars alone.
pub(crate) async fn alone(
    environment: &Environment,
    contender: Contender,
    round: usize,
    count: usize,
) -> Alone {
    eprintln!("{contender:?}, {count} volumes, without the controller manager");
    let side = environment.start_leader(contender, &format!("alone-{}-{round}", contender.name())).await;
    let (names, before) = (names("alone-many", count), environment.volumes.len());
    let create = environment
        .cost("create", &side, count, count, objects::create_claims(&environment.api, &names, true), || {
            environment.volumes.len() == before + count
        })
        .await;
    let pairs = environment.pairs("alone-many");
    objects::bind(&environment.api, &pairs).await;
    sleep(Duration::from_secs(2)).await;
    let larger = (2 << 20).to_string();
    let expand = environment
        .cost("expand", &side, count, count, objects::enlarge(&environment.api, &names), || {
            environment.claims.by_index("bytes", &larger).len() == count
        })
        .await;
    let volumes: Vec<String> = pairs.iter().map(|(_, volume)| volume.clone()).collect();
    objects::unprotect(&environment.api, &pairs).await;
    sleep(Duration::from_secs(2)).await;
    let delete = environment
        .cost("delete", &side, count, count, objects::release(&environment.api, &volumes), || {
            environment.volumes.len() == before
        })
        .await;
    environment.end(side);
    Alone { create, expand, delete }
}

/// Measures attach and detach with our attacher. No other role runs, so that all requests are the attacher's.
pub(crate) async fn attach(environment: &Environment, count: usize) -> (Cost, Cost) {
    eprintln!("Attachments");
    objects::seed_volumes(&environment.api, 0..count).await;
    let pairs = environment.pairs("seed");
    for (claim, _) in &pairs {
        environment.driver.add_volume(&objects::handle(claim));
    }
    let volumes: Vec<String> = pairs.iter().map(|(_, volume)| volume.clone()).collect();
    let side = Side::ours("attacher", &environment.cluster, &environment.driver, &["--roles", "attacher"]);
    sleep(Duration::from_secs(3)).await;
    let attach = environment
        .cost("attach", &side, count, count, objects::attach(&environment.api, &volumes), || {
            environment.attachments.by_index("attached", "true").len() == count
        })
        .await;
    let detach = environment
        .cost("detach", &side, count, count, objects::detach(&environment.api, &volumes), || {
            environment.attachments.is_empty()
        })
        .await;
    environment.end(side);
    objects::unprotect(&environment.api, &pairs).await;
    objects::delete_volumes(&environment.api, &volumes).await;
    (attach, detach)
}

/// Measures what users experience: with the controller manager, which requests volumes and binds them.
pub(crate) async fn together(environment: &Environment, contender: Contender, count: usize) -> Together {
    eprintln!("{contender:?}, {count} volumes, with the controller manager");
    let side = environment.start_leader(contender, &format!("together-{}", contender.name())).await;
    let (names, before) = (names("together-many", count), environment.volumes.len());
    let bound = || {
        let bound = environment.claims.by_index("phase", "Bound");
        bound.iter().filter(|claim| claim.metadata.name.starts_with("together-many")).count()
    };
    let started = Instant::now();
    objects::create_claims(&environment.api, &names, false).await;
    environment.wait_until("create", || environment.volumes.len() == before + count).await;
    let create = started.elapsed().as_secs_f64();
    environment.wait_until("bind", || bound() == count).await;
    let bind = started.elapsed().as_secs_f64();
    let started = Instant::now();
    objects::delete_claims(&environment.api, &names).await;
    environment.wait_until("delete", || environment.volumes.len() == before).await;
    let delete = started.elapsed().as_secs_f64();
    let rate = |seconds: f64| count as f64 / seconds;
    let together = Together { create: rate(create), bind: rate(bind), delete: rate(delete) };
    eprintln!("  {together:.1?} per second");
    environment.end(side);
    together
}

/// How a replica is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// SIGTERM.
    Terminated,
    /// kill -9.
    Killed,
}

/// Seconds from the end of the leader to the first volume that the other replica provisions.
pub(crate) async fn failover(environment: &Environment, contender: Contender, end: End, round: usize) -> f64 {
    let word =
        format!("{}-{}-{round}", contender.name(), if end == End::Terminated { "term" } else { "kill" });
    let mut first = environment.start_leader(contender, &format!("{word}-a")).await;
    let second = Side::start(contender, &format!("{word}-b"), &environment.cluster, &environment.driver);
    sleep(Duration::from_secs(4)).await;
    match end {
        End::Terminated => first.terminate(),
        End::Killed => first.kill(),
    }
    let seconds = environment.one_volume(&format!("{word}-c")).await;
    eprintln!("  {contender:?}, {end:?}: first work after {seconds:.2} s");
    first.kill();
    environment.end(second);
    seconds
}

/// Memory in KiB, upstream's and ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) upstream: u64,
    pub(crate) ours: u64,
}

/// How memory grows with the objects in the cluster.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Ours with every role for volumes, idle.
    pub(crate) all_roles: u64,
    /// By number of volumes.
    pub(crate) at: Vec<(usize, Memory)>,
    /// After a restart with the largest number of volumes.
    pub(crate) again: Memory,
    /// Peak during that restart.
    pub(crate) again_peak: Memory,
    /// Processor seconds for processing all volumes.
    pub(crate) cpu: (f64, f64),
}

/// Measures memory with these numbers of volumes, and with unrelated pods in the cluster.
pub(crate) async fn memory(environment: &Environment, pods: usize, volumes: &[usize]) -> Growth {
    eprintln!("Memory: {pods} pods");
    objects::seed_pods(&environment.api, pods).await;
    let all_roles = environment.every_role("provisioner,attacher,resizer").await;
    eprintln!("  every role: {all_roles} KiB");
    let pair = || {
        let upstream = Side::start(Contender::Defaults, "memory", &environment.cluster, &environment.driver);
        // In another namespace, so that both lead: there is no work that they could do twice.
        let args = ["--roles", COMMON_ROLES, "--leader-election-namespace", "kube-system"];
        (upstream, Side::ours("memory", &environment.cluster, &environment.driver, &args))
    };
    let rest = Duration::from_secs(10);
    let (upstream, ours) = pair();
    let (mut at, mut seeded) = (Vec::new(), 0);
    for &many in volumes {
        objects::seed_volumes(&environment.api, seeded..many).await;
        seeded = many;
        sleep(rest).await;
        let memory = Memory { upstream: upstream.usage().rss_kib, ours: ours.usage().rss_kib };
        eprintln!("  {many} volumes: {memory:?}");
        at.push((many, memory));
    }
    let cpu = (upstream.usage().cpu.as_secs_f64(), ours.usage().cpu.as_secs_f64());
    environment.end(upstream);
    environment.end(ours);
    let (upstream, ours) = pair();
    sleep(rest).await;
    let (theirs, own) = (upstream.usage(), ours.usage());
    let again = Memory { upstream: theirs.rss_kib, ours: own.rss_kib };
    let again_peak = Memory { upstream: theirs.peak_kib, ours: own.peak_kib };
    eprintln!("  restarted: {again:?}, at most {again_peak:?}; processor {cpu:?}");
    environment.end(upstream);
    environment.end(ours);
    Growth { all_roles, at, again, again_peak, cpu }
}
