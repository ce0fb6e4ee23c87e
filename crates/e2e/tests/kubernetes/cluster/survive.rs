//! Outages that one sidecar process survives: it never exits on its own, and continues as soon as it can.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use wharf_testkit::{ChildProcess, ScriptedDriver, TestCluster, free_address, http_get};

use super::objects::{claim, class};
use super::{API_ONLY, MINUTE};

const DRIVER: &str = "survive.test.wharf.dev";
const BOUND: &str = "jsonpath={.status.phase}=Bound";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn sidecar_survives_driver_api_server_and_secret_outages() {
    let cluster = TestCluster::start_with(API_ONLY);
    let old = ["--require-secrets", "password=old"];
    let mut driver = ScriptedDriver::start(&cluster, DRIVER, &old);
    let address = free_address();
    let mut sidecar = driver.sidecar("sidecar", &["--http-endpoint", &address]);
    let pid = sidecar.pid();
    let secrets = ["provisioner", "controller-expand"].map(|of| {
        format!(
            "csi.storage.k8s.io/{of}-secret-name: pass, csi.storage.k8s.io/{of}-secret-namespace: default"
        )
    });
    cluster.kubectl(&["create", "secret", "generic", "pass", "--from-literal=password=old"]);
    cluster.apply(&class("secret", DRIVER, &format!("parameters: {{{}}}", secrets.join(", "))));
    let next = |name: &str, within: Duration| {
        let started = Instant::now();
        cluster.apply(&claim(name, "secret", "1Mi", ""));
        cluster.wait_for(&format!("pvc/{name}"), BOUND, within);
        println!("{name}: bound after {:.1?}", started.elapsed());
    };
    next("first", MINUTE);

    driver.controller.kill();
    cluster.apply(&claim("driver-away", "secret", "1Mi", ""));
    std::thread::sleep(Duration::from_secs(3));
    driver.controller.restart();
    cluster.wait_for("pvc/driver-away", BOUND, Duration::from_secs(30));

    cluster.signal("kube-apiserver", "KILL");
    cluster.eventually("the API server is back", MINUTE, |cluster| {
        cluster.try_kubectl(&["get", "--raw", "/readyz"]).ok()
    });
    next("server-restarted", MINUTE);

    // Frozen, the API server accepts connections but sends no responses: the worst kind of outage.
    cluster.signal("kube-apiserver", "STOP");
    std::thread::sleep(Duration::from_secs(5));
    cluster.signal("kube-apiserver", "CONT");
    next("server-frozen", MINUTE);

    // The backend's password changes before the Secret does.
    driver.replace_controller(&["--require-secrets", "password=new"]);
    cluster.apply(&claim("rotated", "secret", "1Mi", ""));
    cluster.eventually("the old password is refused", MINUTE, |_| {
        driver.calls().iter().any(|call| call.code == "Unauthenticated").then_some(())
    });
    let new = r#"{"stringData": {"password": "new"}}"#;
    cluster.kubectl(&["patch", "secret", "pass", "--patch", new]);
    cluster.wait_for("pvc/rotated", BOUND, MINUTE);

    let ready = http_get(&address, "/readyz");
    assert!(ready.is_ok(), "{ready:?}");
    let log = [sidecar.log(), http_get(&address, "/debug/attempts").unwrap()].concat();
    assert!(!log.contains("password=") && !log.contains("\"old\""), "a secret is in the log:\n{log}");
    assert_eq!((sidecar.is_running(), sidecar.pid()), (true, pid));
    driver.assert_no_violation();
    sidecar.stop();
}

/// A frozen replica loses its leases; when it continues, it starts no work until it holds them again.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn frozen_replica_loses_leases_and_waits() {
    let cluster = TestCluster::start_with(API_ONLY);
    let driver = ScriptedDriver::start(&cluster, DRIVER, &["--delay", "20"]);
    let replica = |who: &str| driver.sidecar(who, &[]);
    let lease = format!("lease/{}", DRIVER.replace('.', "-"));
    let holder = |cluster: &TestCluster| cluster.field(&lease, ".spec.holderIdentity");
    let holds = |who: &str, within: Duration| {
        let started = Instant::now();
        cluster.eventually(&format!("{who} holds the lease"), within, |cluster| {
            holder(cluster).contains(who).then_some(())
        });
        println!("{who} holds {lease} after {:.1?}", started.elapsed());
    };
    let mut first = replica("replica-1");
    holds("replica-1", MINUTE);
    let mut second = replica("replica-2");
    cluster.apply(&class("plain", DRIVER, ""));
    let burst = |name: &str| {
        cluster
            .apply(&(0..30).map(|n| claim(&format!("{name}-{n}"), "plain", "1Mi", "")).collect::<String>());
    };
    let bound = |name: &str| {
        for n in 0..30 {
            cluster.wait_for(&format!("pvc/{name}-{n}"), BOUND, MINUTE);
        }
    };
    burst("frozen");
    first.signal(Signal::STOP);
    holds("replica-2", Duration::from_secs(40));
    bound("frozen");
    first.signal(Signal::CONT);
    burst("thawed");
    bound("thawed");
    assert!(first.is_running(), "a replica that loses a lease must keep running");

    // On SIGTERM it releases its leases at once.
    burst("handed-over");
    let started = Instant::now();
    second.stop();
    holds("replica-1", Duration::from_secs(10));
    println!("handed over in {:.1?}", started.elapsed());
    bound("handed-over");
    assert_eq!(driver.volumes().len(), 90);
    driver.assert_no_violation();
    end(&mut first);
}

fn end(sidecar: &mut ChildProcess) {
    assert!(sidecar.is_running());
    sidecar.stop();
}
