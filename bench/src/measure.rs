//! The measurements, each for one side.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::ground::{Cost, Ground};
use crate::objects;
use crate::side::{SAME_ROLES, Side, Who};

/// What a side does while the controller manager stands still: then the figures are the sidecars' alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alone {
    /// From claims to volumes.
    pub(crate) create: Cost,
    /// From a larger request to a larger volume.
    pub(crate) expand: Cost,
    /// From released to gone.
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

/// What it does together with the controller manager, in volumes a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
    /// From claims to volumes.
    pub(crate) create: f64,
    /// From claims to bound.
    pub(crate) bind: f64,
    /// From the deletion of claims to volumes gone.
    pub(crate) delete: f64,
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

/// The sidecars' part.
pub(crate) async fn alone(ground: &Ground, who: Who, round: usize, count: usize) -> Alone {
    eprintln!("{who:?}, {count} volumes, without the controller manager");
    let side = ground.lead(who, &format!("alone-{}-{round}", who.word())).await;
    let (names, before) = (names("alone-many", count), ground.volumes.len());
    let create = ground
        .cost("create", &side, count, count, objects::create_claims(&ground.api, &names, true), || {
            ground.volumes.len() == before + count
        })
        .await;
    let pairs = ground.pairs("alone-many");
    objects::bind(&ground.api, &pairs).await;
    sleep(Duration::from_secs(2)).await;
    let larger = (2 << 20).to_string();
    let expand = ground
        .cost("expand", &side, count, count, objects::enlarge(&ground.api, &names), || {
            ground.claims.by_index("bytes", &larger).len() == count
        })
        .await;
    let volumes: Vec<String> = pairs.iter().map(|(_, volume)| volume.clone()).collect();
    objects::unprotect(&ground.api, &pairs).await;
    sleep(Duration::from_secs(2)).await;
    let delete = ground
        .cost("delete", &side, count, count, objects::release(&ground.api, &volumes), || {
            ground.volumes.len() == before
        })
        .await;
    ground.end(side);
    Alone { create, expand, delete }
}

/// Attach and detach, by ours. No other role runs, so that all requests are the attacher's.
pub(crate) async fn attach(ground: &Ground, count: usize) -> (Cost, Cost) {
    eprintln!("Attachments");
    objects::seed_volumes(&ground.api, 0..count).await;
    let pairs = ground.pairs("seed");
    for (claim, _) in &pairs {
        ground.driver.add_volume(&objects::handle(claim));
    }
    let volumes: Vec<String> = pairs.iter().map(|(_, volume)| volume.clone()).collect();
    let side = Side::ours("attacher", &ground.cluster, &ground.driver, &["--roles", "attacher"]);
    sleep(Duration::from_secs(3)).await;
    let attach = ground
        .cost("attach", &side, count, count, objects::attach(&ground.api, &volumes), || {
            ground.attachments.by_index("attached", "true").len() == count
        })
        .await;
    let detach = ground
        .cost("detach", &side, count, count, objects::detach(&ground.api, &volumes), || {
            ground.attachments.is_empty()
        })
        .await;
    ground.end(side);
    objects::unprotect(&ground.api, &pairs).await;
    objects::delete_volumes(&ground.api, &volumes).await;
    (attach, detach)
}

/// What users see: with the controller manager, which asks for volumes and binds them.
pub(crate) async fn together(ground: &Ground, who: Who, count: usize) -> Together {
    eprintln!("{who:?}, {count} volumes, with the controller manager");
    let side = ground.lead(who, &format!("together-{}", who.word())).await;
    let (names, before) = (names("together-many", count), ground.volumes.len());
    let bound = || {
        let bound = ground.claims.by_index("phase", "Bound");
        bound.iter().filter(|claim| claim.metadata.name.starts_with("together-many")).count()
    };
    let began = Instant::now();
    objects::create_claims(&ground.api, &names, false).await;
    ground.until("create", || ground.volumes.len() == before + count).await;
    let create = began.elapsed().as_secs_f64();
    ground.until("bind", || bound() == count).await;
    let bind = began.elapsed().as_secs_f64();
    let began = Instant::now();
    objects::delete_claims(&ground.api, &names).await;
    ground.until("delete", || ground.volumes.len() == before).await;
    let delete = began.elapsed().as_secs_f64();
    let rate = |seconds: f64| count as f64 / seconds;
    let together = Together { create: rate(create), bind: rate(bind), delete: rate(delete) };
    eprintln!("  {together:.1?} in a second");
    ground.end(side);
    together
}

/// How a replica ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// SIGTERM.
    Asked,
    /// kill -9.
    Killed,
}

/// Seconds from the end of the replica that leads to the first volume that the other one makes.
pub(crate) async fn hand_over(ground: &Ground, who: Who, end: End, round: usize) -> f64 {
    let word = format!("{}-{}-{round}", who.word(), if end == End::Asked { "term" } else { "kill" });
    let mut first = ground.lead(who, &format!("{word}-a")).await;
    let second = Side::start(who, &format!("{word}-b"), &ground.cluster, &ground.driver);
    sleep(Duration::from_secs(4)).await;
    match end {
        End::Asked => first.terminate(),
        End::Killed => first.kill(),
    }
    let seconds = ground.one_volume(&format!("{word}-c")).await;
    eprintln!("  {who:?}, {end:?}: first work after {seconds:.2} s");
    first.kill();
    ground.end(second);
    seconds
}

/// Memory in KiB, upstream's and ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) upstream: u64,
    pub(crate) ours: u64,
}

/// How memory grows with what is in the cluster.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Ours with every role for volumes, at rest.
    pub(crate) all_roles: u64,
    /// With so many volumes.
    pub(crate) at: Vec<(usize, Memory)>,
    /// Started anew with the last of these.
    pub(crate) again: Memory,
    /// The most that they needed for it.
    pub(crate) again_peak: Memory,
    /// Processor seconds for taking note of all of it.
    pub(crate) cpu: (f64, f64),
}

/// Memory with so many volumes, beside unrelated pods.
pub(crate) async fn memory(ground: &Ground, pods: usize, volumes: &[usize]) -> Growth {
    eprintln!("Memory: {pods} pods");
    objects::seed_pods(&ground.api, pods).await;
    let all_roles = ground.every_role("provisioner,attacher,resizer").await;
    eprintln!("  every role: {all_roles} KiB");
    let pair = || {
        let upstream = Side::start(Who::Defaults, "memory", &ground.cluster, &ground.driver);
        // Elsewhere, so that both lead: here is no work that they could do twice.
        let args = ["--roles", SAME_ROLES, "--leader-election-namespace", "kube-system"];
        (upstream, Side::ours("memory", &ground.cluster, &ground.driver, &args))
    };
    let rest = Duration::from_secs(10);
    let (upstream, ours) = pair();
    let (mut at, mut seeded) = (Vec::new(), 0);
    for &many in volumes {
        objects::seed_volumes(&ground.api, seeded..many).await;
        seeded = many;
        sleep(rest).await;
        let memory = Memory { upstream: upstream.usage().rss_kib, ours: ours.usage().rss_kib };
        eprintln!("  {many} volumes: {memory:?}");
        at.push((many, memory));
    }
    let cpu = (upstream.usage().cpu.as_secs_f64(), ours.usage().cpu.as_secs_f64());
    ground.end(upstream);
    ground.end(ours);
    let (upstream, ours) = pair();
    sleep(rest).await;
    let (theirs, own) = (upstream.usage(), ours.usage());
    let again = Memory { upstream: theirs.rss_kib, ours: own.rss_kib };
    let again_peak = Memory { upstream: theirs.peak_kib, ours: own.peak_kib };
    eprintln!("  started anew: {again:?}, at most {again_peak:?}; processor {cpu:?}");
    ground.end(upstream);
    ground.end(ours);
    Growth { all_roles, at, again, again_peak, cpu }
}
