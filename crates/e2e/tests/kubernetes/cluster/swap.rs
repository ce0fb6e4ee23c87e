//! Upstream's provisioner and resizer are replaced by ours during a burst of claims, and back again: leases keep
//! them from working at the same time, and each continues the other's work.

use std::time::{Duration, Instant};

use wharf_testkit::{ChildProcess, ScriptedDriver, TestCluster, upstream_program};

use super::no_leak::{delete, delete_all, rows};
use super::objects::{claim, class};
use super::{API_ONLY, MINUTE};

pub(super) const DRIVER: &str = "swap.test.wharf.dev";
const SWAPS: usize = 10;

/// By default, upstream's leases stay for 15 s after each exit.
const LEASES: [&str; 4] = [
    "--leader-election",
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
];

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn swapping_with_upstream_keeps_claims_progressing() {
    let cluster = TestCluster::start_with(API_ONLY);
    let options = ["--delay", "30", "--node-capabilities", "STAGE_UNSTAGE_VOLUME"];
    let driver = ScriptedDriver::start(&cluster, DRIVER, &options);
    cluster.apply(&class("plain", DRIVER, ""));

    let started = Instant::now();
    let mut running = upstreams(&cluster, &driver);
    let (mut made, mut alive) = (0, Vec::<String>::new());
    for swap in 0..=SWAPS {
        // Claims are in all states when the next one takes over.
        let names: Vec<String> = (made..made + 15).map(|n| format!("claim-{n}")).collect();
        made += names.len();
        cluster.apply(&names.iter().map(|name| claim(name, "plain", "1Mi", "")).collect::<String>());
        let gone: Vec<String> = alive.drain(..alive.len().min(5)).collect();
        for name in alive.iter().take(5) {
            let bigger =
                format!(r#"{{"spec": {{"resources": {{"requests": {{"storage": "{}Mi"}}}}}}}}"#, swap + 2);
            // A claim that is not bound cannot be expanded.
            let _ = cluster.try_kubectl(&["patch", "pvc", name, "--patch", &bigger]);
        }
        delete(&cluster, &gone);
        alive.extend(names);
        std::thread::sleep(Duration::from_millis(500));
        if swap < SWAPS {
            let next = if swap % 2 == 0 { ours(&driver) } else { upstreams(&cluster, &driver) };
            // Both run at the same time for a moment, but only one of them works.
            std::thread::sleep(Duration::from_millis(500));
            for mut old in std::mem::replace(&mut running, next) {
                if swap % 4 < 2 { old.terminate() } else { old.kill() }
            }
            // Long enough for a lease takeover, too short to finish the work.
            std::thread::sleep(Duration::from_secs(4));
        }
    }
    println!("{made} claims and {SWAPS} swaps in {:.0?}", started.elapsed());

    cluster.eventually("all claims are bound and expanded", 3 * MINUTE, |cluster| {
        let claims = rows(
            cluster,
            "pvc",
            "{.status.phase} {.spec.resources.requests.storage} {.status.capacity.storage}",
        )?;
        let done = claims.iter().all(|row| {
            let parts: Vec<&str> = row.split(' ').collect();
            parts.len() == 3 && parts[0] == "Bound" && parts[1] == parts[2]
        });
        let volumes = rows(cluster, "pv", "{.metadata.name}")?;
        let agree = volumes.len() == alive.len() && driver.volumes().len() == alive.len();
        (done && claims.len() == alive.len() && agree).then_some(())
    });
    delete_all(&cluster, &driver, &alive);
    driver.assert_no_violation();
}

fn ours(driver: &ScriptedDriver) -> Vec<ChildProcess> {
    let roles = ["--roles", "provisioner,resizer", "--retry-interval-max", "2s"];
    vec![driver.sidecar("ours", &[&roles[..], &LEASES[..]].concat())]
}

fn upstreams(cluster: &TestCluster, driver: &ScriptedDriver) -> Vec<ChildProcess> {
    let start = |program: &str| {
        let address = driver.socket().display().to_string();
        let kubeconfig = cluster.kubeconfig().display().to_string();
        let common = [
            "--csi-address",
            &address,
            "--kubeconfig",
            &kubeconfig,
            "--leader-election-namespace=default",
            "--retry-interval-max=2s",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
        ];
        let log = cluster.directory().join(format!("log/upstream-{program}.log"));
        ChildProcess::start(&upstream_program(program), &[&common[..], &LEASES[..]].concat(), &log)
    };
    vec![start("csi-provisioner"), start("csi-resizer")]
}
