//! Claims are created and deleted while every component that could lose track of them is killed. At the end the
//! backend has exactly the volumes that the API knows, and nothing is stuck. Upstream's provisioner leaks dozens of
//! volumes in this test.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use wharf_testkit::{ChildProcess, ScriptedDriver, SeededRng, TestCluster};

use super::objects::{claim, class};
use super::{API_ONLY, MINUTE};

const DRIVER: &str = "leak.test.wharf.dev";
const CLAIMS: usize = 500;

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn five_hundred_claims_leak_no_volume() {
    let mut rng = SeededRng::from_env("SEED");
    let cluster = TestCluster::start_with(API_ONLY);
    let mut driver = ScriptedDriver::start(&cluster, DRIVER, &[]);
    // Calls are slow, and some fail after their effects.
    driver.set_faults(
        r#"{"CreateVolume": {"code": "DeadlineExceeded", "when": "after", "probability": 0.4, "delay_ms": 100},
            "DeleteVolume": {"code": "Unavailable", "when": "after", "probability": 0.1}}"#,
    );
    let worker_options = [
        "--retry-interval-start=100ms",
        "--retry-interval-max=2s",
        // A killed sidecar leaves its leases to expire.
        "--leader-election-lease-duration=3s",
        "--leader-election-renew-deadline=2s",
        "--leader-election-retry-period=500ms",
    ];
    let mut sidecar = driver.sidecar("sidecar", &worker_options);
    cluster.apply(&class("plain", DRIVER, ""));

    let mut kills = [0_usize; 3];
    let (mut made, mut alive) = (0, Vec::new());
    let started = Instant::now();
    while made < CLAIMS {
        let more = (1 + rng.below(25)).min(CLAIMS - made);
        let names: Vec<String> = (made..made + more).map(|n| format!("claim-{n}")).collect();
        apply(&cluster, &names.iter().map(|name| claim(name, "plain", "1Mi", "")).collect::<String>());
        made += more;
        alive.extend(names);
        std::thread::sleep(Duration::from_millis(rng.below(300) as u64));
        // Kill each component at least once, whatever the seed.
        let victim = [0, 4, 6].get(kills.iter().sum::<usize>()).copied().unwrap_or_else(|| rng.below(10));
        match victim {
            0..4 => sidecar.kill(),
            4..6 => driver.controller.kill(),
            6 => cluster.signal("kube-apiserver", "KILL"),
            _ => {}
        }
        // Delete claims that were just created, while the component that works on them is down, and some that are
        // complete.
        let newest = alive.len() - rng.below(alive.len().min(more) + 1);
        let mut gone = alive.split_off(newest);
        gone.extend((0..rng.below(alive.len() / 4 + 1)).map(|_| alive.swap_remove(rng.below(alive.len()))));
        delete(&cluster, &gone);
        match victim {
            0..4 => {
                kills[0] += 1;
                sidecar.restart();
            }
            4..6 => {
                kills[1] += 1;
                driver.controller.restart();
            }
            6 => kills[2] += 1,
            _ => {}
        }
    }
    println!("{made} claims in {:.0?}; killed: sidecar, driver, server {kills:?} times", started.elapsed());

    let settled = Instant::now();
    cluster.eventually("backend, volumes and bound claims agree", 3 * MINUTE, |cluster| {
        let claims = rows(cluster, "pvc", "{.spec.volumeName} {.status.phase}")?;
        let volumes = rows(cluster, "pv", "{.metadata.name} {.status.phase}")?;
        let bound = |rows: &[String]| -> Option<BTreeSet<String>> {
            rows.iter().map(|row| row.strip_suffix(" Bound").map(str::to_owned)).collect()
        };
        let (claims, volumes) = (bound(&claims)?, bound(&volumes)?);
        let backend: BTreeSet<String> =
            driver.volumes().iter().map(|id| id.trim_start_matches("vol-").to_owned()).collect();
        (claims == volumes && claims == backend && claims.len() == alive.len()).then_some(())
    });
    println!("all agree on {} volumes after {:.1?}", alive.len(), settled.elapsed());

    delete_all(&cluster, &driver, &alive);
    driver.assert_no_violation();
    stop(sidecar);
    no_intent_is_left(&cluster);
}

/// Deletes all claims and waits until nothing is left of them.
pub(super) fn delete_all(cluster: &TestCluster, driver: &ScriptedDriver, claims: &[String]) {
    delete(cluster, claims);
    cluster.eventually("everything is deleted", 3 * MINUTE, |cluster| {
        let left =
            [rows(cluster, "pvc", "{.metadata.name}")?, rows(cluster, "pv", "{.metadata.name}")?].concat();
        (left.is_empty() && driver.volumes().is_empty()).then_some(())
    });
    no_intent_is_left(cluster);
}

/// All leases except those of the roles are intents.
pub(super) fn no_intent_is_left(cluster: &TestCluster) {
    cluster.eventually("no intent is left", Duration::from_secs(30), |cluster| {
        let leases = rows(cluster, "lease", "{.metadata.name}")?;
        let role = |name: &str| {
            name.starts_with("external-attacher-leader-")
                || name.starts_with("external-resizer-")
                || name.starts_with("external-snapshotter-leader-")
                || name == DRIVER.replace('.', "-")
                || name == super::swap::DRIVER.replace('.', "-")
        };
        let intents: Vec<&String> = leases.iter().filter(|name| !role(name)).collect();
        if !intents.is_empty() {
            println!("intents: {intents:?}");
        }
        intents.is_empty().then_some(())
    });
}

/// A line for each object in the namespace `default`; `None` while the API server is down.
pub(super) fn rows(cluster: &TestCluster, kind: &str, fields: &str) -> Option<Vec<String>> {
    let path = format!("jsonpath={{range .items[*]}}{}{{'\\n'}}{{end}}", fields.replace("} {", "}{' '}{"));
    let output = cluster.try_kubectl(&["get", kind, "--output", &path]).ok()?;
    Some(output.lines().map(str::to_owned).collect())
}

/// Retries while the API server is down.
fn apply(cluster: &TestCluster, yaml: &str) {
    cluster.eventually("the API server accepts the claims", MINUTE, |cluster| cluster.try_apply(yaml).ok());
}

pub(super) fn delete(cluster: &TestCluster, claims: &[String]) {
    if claims.is_empty() {
        return;
    }
    let mut args = vec!["delete", "pvc", "--wait=false", "--ignore-not-found"];
    args.extend(claims.iter().map(String::as_str));
    cluster.eventually("the server deletes the claims", MINUTE, |cluster| cluster.try_kubectl(&args).ok());
}

fn stop(mut sidecar: ChildProcess) {
    assert!(sidecar.is_running());
    sidecar.stop();
}
