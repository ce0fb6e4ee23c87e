//! What is measured.

use std::time::{Duration, Instant};

use serde_json::json;
use wharf_model::{
    CSINode, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment,
};
use wharf_testkit::TestCluster;

use crate::load::{self, Load};
use crate::report::{Better, Report};
use crate::sides::{Bench, Running, Side};

/// The roles that upstream's packages have.
const BOTH: &str = "provisioner,resizer";

/// How one side did with claims.
struct Claims {
    created: f64,
    bound: f64,
    deleted: f64,
    cpu_ms: f64,
    requests: f64,
}

/// Claims until their volumes are there, until they are bound, until all is deleted.
pub(crate) async fn claims(cluster: &TestCluster, report: &mut Report, setting: &str, count: usize) {
    let bench = Bench::new(cluster, "claims.bench.wharf.dev");
    let load = Load::connect(cluster).await;
    load.create::<StorageClass>(vec![load::class(bench.driver.name())]).await;
    let mut results = Vec::new();
    for side in [Side::Wharf, Side::UpstreamTuned, Side::UpstreamDefaults] {
        let running = side.start(&bench, BOTH, &format!("claims-{}", results.len()));
        warm_up(&bench, &load).await;
        results.push(one_side(&bench, &load, &running, count).await);
        eprintln!("{}, {setting}: done", side.name());
        running.end();
        // A lease that its holder did not release is in the next one's way.
        cluster.kubectl(&["delete", "leases", "--all"]);
    }
    let [ours, tuned, defaults] = &results[..] else { return };
    for (name, theirs) in [("defaults", defaults), ("tuned", tuned)] {
        let what = |what: &str| format!("{count} claims, {setting}: {what}; upstream {name}");
        let row = |report: &mut Report, text: &str, of: fn(&Claims) -> f64, better| {
            report.row(&what(text), of(ours), Some(of(theirs)), better);
        };
        row(report, "volumes created a second", |claims| claims.created, Better::More);
        row(report, "claims bound a second", |claims| claims.bound, Better::More);
        row(report, "volumes deleted a second", |claims| claims.deleted, Better::More);
        row(report, "CPU of a claim's whole life (ms)", |claims| claims.cpu_ms, Better::Less);
        row(report, "API requests of a claim's whole life", |claims| claims.requests, Better::Less);
    }
}

async fn one_side(bench: &Bench<'_>, load: &Load, running: &Running, count: usize) -> Claims {
    let (cpu, requests) = (running.cpu(), bench.requests());
    let names = (0..count).map(|n| load::claim(&format!("claim-{n}"), bench.driver.name())).collect();
    let began = Instant::now();
    let all = async {
        load.create::<PersistentVolumeClaim>(names).await;
    };
    let (created, bound, ()) = tokio::join!(
        load.until::<PersistentVolume>(count, |_| true),
        load.until::<PersistentVolumeClaim>(count, load::is_bound),
        all
    );
    let deleting = Instant::now();
    let ((), deleted) = tokio::join!(load.delete_all::<PersistentVolumeClaim>(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        load.until_none::<PersistentVolume>().await
    });
    let rate = |duration: Duration| count as f64 / duration.as_secs_f64();
    let each = |all: f64| all / count as f64;
    Claims {
        created: rate(created - began),
        bound: rate(bound - began),
        deleted: rate(deleted - deleting),
        cpu_ms: each((running.cpu() - cpu).as_secs_f64() * 1000.0),
        requests: each(bench.requests() - requests),
    }
}

/// One claim there and back: the side works, and holds its leases.
async fn warm_up(bench: &Bench<'_>, load: &Load) {
    load.create::<PersistentVolumeClaim>(vec![load::claim("warm-up", bench.driver.name())]).await;
    load.until::<PersistentVolumeClaim>(1, load::is_bound).await;
    load.delete_all::<PersistentVolumeClaim>().await;
    load.until_none::<PersistentVolume>().await;
    load.until_none::<PersistentVolumeClaim>().await;
}

/// Of two replicas the one that works ends; how long until the other one has made a volume.
pub(crate) async fn hand_over(cluster: &TestCluster, report: &mut Report) {
    let bench = Bench::new(cluster, "hand-over.bench.wharf.dev");
    let load = Load::connect(cluster).await;
    load.create::<StorageClass>(vec![load::class(bench.driver.name())]).await;
    let mut seconds = Vec::new();
    for side in [Side::Wharf, Side::UpstreamDefaults] {
        for kill in [true, false] {
            let first = side.start(&bench, BOTH, &format!("first-{}", seconds.len()));
            warm_up(&bench, &load).await;
            let second = side.start(&bench, BOTH, &format!("second-{}", seconds.len()));
            tokio::time::sleep(Duration::from_secs(8)).await;
            let began = Instant::now();
            if kill {
                first.kill()
            } else {
                first.end()
            }
            load.create::<PersistentVolumeClaim>(vec![load::claim("next", bench.driver.name())]).await;
            let done = load.until::<PersistentVolume>(1, |_| true).await;
            seconds.push((done - began).as_secs_f64());
            load.until::<PersistentVolumeClaim>(1, load::is_bound).await;
            load.delete_all::<PersistentVolumeClaim>().await;
            load.until_none::<PersistentVolume>().await;
            second.end();
            cluster.kubectl(&["delete", "leases", "--all"]);
        }
    }
    let what = |end: &str| format!("first volume of the other replica after {end} (s)");
    report.row(&what("kill -9"), seconds[0], Some(seconds[2]), Better::Less);
    report.row(&what("SIGTERM"), seconds[1], Some(seconds[3]), Better::Less);
}

/// Attachments there and back. Upstream's attacher is not among the packages; at its defaults of 5 requests a second
/// it can do 1.7 attachments and 2.5 detachments.
pub(crate) async fn attachments(cluster: &TestCluster, report: &mut Report, count: usize) {
    let bench = Bench::new(cluster, "attach.bench.wharf.dev");
    let load = Load::connect(cluster).await;
    let driver = bench.driver.name().to_owned();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-x"}});
    load.create::<Node>(vec![node]).await;
    let csi_node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "node-x"},
        "spec": {"drivers": [{"name": driver, "nodeID": "node-x", "topologyKeys": []}]},
    });
    load.create::<CSINode>(vec![csi_node]).await;
    let names: Vec<String> = (0..count).map(|n| format!("volume-{n}")).collect();
    for name in &names {
        bench.driver.add_volume(name);
    }
    let volumes = names.iter().map(|name| load::volume_and_claim(name, &driver).0).collect();
    load.create::<PersistentVolume>(volumes).await;
    let running = Side::Wharf.start(&bench, "attacher", "attacher");
    tokio::time::sleep(Duration::from_secs(2)).await;

    let (cpu, requests, began) = (running.cpu(), bench.requests(), Instant::now());
    let objects = names.iter().map(|name| load::attachment(name, &driver, "node-x")).collect();
    let ((), attached) = tokio::join!(
        load.create::<VolumeAttachment>(objects),
        load.until::<VolumeAttachment>(count, |attachment| attachment.status.attached)
    );
    let deleting = Instant::now();
    let ((), detached) = tokio::join!(load.delete_all::<VolumeAttachment>(), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        load.until_none::<VolumeAttachment>().await
    });
    let rate = |duration: Duration| count as f64 / duration.as_secs_f64();
    let what = |text: &str| format!("{count} attachments: {text}");
    report.row(
        &what("attached a second; upstream's limit"),
        rate(attached - began),
        Some(5.0 / 3.0),
        Better::More,
    );
    report.row(
        &what("detached a second; upstream's limit"),
        rate(detached - deleting),
        Some(2.5),
        Better::More,
    );
    let cpu = (running.cpu() - cpu).as_secs_f64() * 1000.0 / count as f64;
    report.row(&what("CPU there and back (ms)"), cpu, None, Better::Less);
    let requests = (bench.requests() - requests) / count as f64;
    report.row(&what("API requests there and back"), requests, Some(5.0), Better::Less);
    running.end();
}

/// Memory with so many volumes, and pods of others.
pub(crate) async fn memory(cluster: &TestCluster, report: &mut Report, volumes: usize, pods: usize) {
    let bench = Bench::new(cluster, "memory.bench.wharf.dev");
    let load = Load::connect(cluster).await;
    // Nobody is to bind what is seeded.
    cluster.signal("kube-controller-manager", "STOP");
    load.create::<StorageClass>(vec![load::class(bench.driver.name())]).await;
    let none = settled(Side::Wharf.start(&bench, "provisioner,attacher,resizer", "idle")).await;
    report.row("provisioner, attacher and resizer idle, nothing there: RSS (MiB)", none, None, Better::Less);
    load.create::<Pod>((0..pods).map(|n| load::pod(&format!("pod-{n}"))).collect()).await;
    let mut seeded = 0;
    for level in [0, volumes / 10, volumes] {
        let names =
            (seeded..level).map(|n| load::volume_and_claim(&format!("seeded-{n}"), bench.driver.name()));
        let (objects, claims): (Vec<_>, Vec<_>) = names.unzip();
        load.create::<PersistentVolumeClaim>(claims).await;
        load.create::<PersistentVolume>(objects).await;
        seeded = level;
        let ours = settled(Side::Wharf.start(&bench, BOTH, "memory-ours")).await;
        let theirs = settled(Side::UpstreamDefaults.start(&bench, BOTH, "memory-theirs")).await;
        cluster.kubectl(&["delete", "leases", "--all"]);
        let what = format!("provisioner and resizer, {level} volumes, {pods} pods of others: RSS (MiB)");
        report.row(&what, ours, Some(theirs), Better::Less);
    }
    cluster.signal("kube-controller-manager", "CONT");
}

/// The memory once everything is read: when it has not grown for five seconds.
async fn settled(running: Running) -> f64 {
    let (mut last, mut since) = (0.0_f64, Instant::now());
    let until = Instant::now() + Duration::from_secs(60);
    while since.elapsed() < Duration::from_secs(5) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = running.rss_mib();
        if now > last * 1.01 {
            (last, since) = (now, Instant::now());
        }
    }
    let memory = running.rss_mib();
    running.end();
    memory
}
