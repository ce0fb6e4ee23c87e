//! How often a process watches a kind, as the API server counts it. The process under test is the only client that
//! watches.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wharf_testkit::{ApiClient, ChildProcess, EmbeddedServer, built_program};

use crate::scripted::Scripted;

/// Watches that are opened one after the other, for example as roles start, are all open after this time.
const SETTLE: Duration = Duration::from_secs(2);

/// Controller capabilities for which a sidecar runs all roles.
const CAPABILITIES: &str = "CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,LIST_VOLUMES,LIST_VOLUMES_PUBLISHED_NODES,\
                            GET_CAPACITY,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,CLONE_VOLUME,EXPAND_VOLUME,\
                            MODIFY_VOLUME,VOLUME_CONDITION";

/// The open watches of a resource.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Watches {
    /// Of all objects, or of those in a namespace or with a label or field.
    many: u32,
    /// Of one object by its name.
    single: u32,
}

/// The open watches by resource, from the API server's metrics.
fn watches(metrics: &str) -> BTreeMap<String, Watches> {
    let mut found = BTreeMap::<String, Watches>::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_longrunning_requests{")) {
        let label = |name: &str| {
            let rest = line.split_once(&format!("{name}=\"")).map(|(_, rest)| rest);
            rest.and_then(|rest| rest.split_once('"')).unwrap().0
        };
        assert_eq!(label("verb"), "WATCH", "{line}");
        let count: u32 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        let entry = found.entry(format!("{}.{}", label("resource"), label(",group"))).or_default();
        match label("scope") {
            "resource" => entry.single += count,
            _ => entry.many += count,
        }
    }
    found
}

/// The resources that are watched more than once. Leases are watched by name, each by the role that needs it: a watch
/// of all leases in the namespace would deliver every renewal of every other program.
fn watched_repeatedly(watches: &BTreeMap<String, Watches>) -> Vec<String> {
    let repeated = |(resource, watches): &(&String, &Watches)| match resource.as_str() {
        "leases.coordination.k8s.io" => watches.many > 0,
        _ => watches.many + watches.single > 1,
    };
    watches.iter().filter(repeated).map(|(resource, watches)| format!("{resource}: {watches:?}")).collect()
}

/// Waits until all of these are watched and no more watches are opened, then checks that none is watched twice.
fn assert_watched_once(metrics: impl Fn() -> Result<String, String>, expected: &[&str]) {
    let until = Instant::now() + Duration::from_secs(60);
    let mut last = BTreeMap::new();
    loop {
        let now = metrics().map(|text| watches(&text)).unwrap_or_default();
        let missing: Vec<_> = expected.iter().filter(|resource| !now.contains_key(**resource)).collect();
        if missing.is_empty() && now == last {
            break;
        }
        assert!(Instant::now() < until, "not watched: {missing:?}\n{now:#?}");
        last = now;
        std::thread::sleep(SETTLE);
    }
    let repeated = watched_repeatedly(&last);
    assert!(repeated.is_empty(), "watched more than once: {repeated:#?}\n{last:#?}");
    println!("{} watches: {last:?}", last.values().map(|of| of.many + of.single).sum::<u32>());
}

/// `wharf up` with two drivers: API server, controllers, scheduler, two sidecars and node agent in one process.
#[test]
fn up_watches_each_kind_once() {
    let (machine, _scripted) = Scripted::served();
    let expected = [
        "configmaps.",
        "csidrivers.storage.k8s.io",
        "csinodes.storage.k8s.io",
        "csistoragecapacities.storage.k8s.io",
        "nodes.",
        "persistentvolumeclaims.",
        "persistentvolumes.",
        "pods.",
        "secrets.",
        "storageclasses.storage.k8s.io",
        "volumeattachments.storage.k8s.io",
        "volumesnapshotcontents.snapshot.storage.k8s.io",
        "volumesnapshots.snapshot.storage.k8s.io",
    ];
    assert_watched_once(|| machine.api_metrics(), &expected);
}

/// `wharf sidecar` with all roles, capacities and the node watcher, for a driver with topology.
#[test]
fn sidecar_with_all_roles_watches_each_kind_once() {
    let server = EmbeddedServer::start();
    let dir = server.directory();
    let text = |name: &str| dir.join(name).display().to_string();
    let (socket, state, calls) = (text("csi.sock"), text("state"), text("calls"));
    let (endpoint, kubeconfig) = (format!("unix://{socket}"), server.kubeconfig().display().to_string());
    let args = [
        ["--endpoint", &endpoint],
        ["--state", &state],
        ["--log", &calls],
        ["--node-id", "n1"],
        ["--topology-key", "test.wharf.dev/zone"],
        ["--capabilities", CAPABILITIES],
    ];
    let _driver =
        ChildProcess::start(&built_program("scripted-driver"), &args.concat(), &dir.join("driver.log"));
    let roles = "provisioner,attacher,resizer,snapshotter,health-monitor,snapshot-controller";
    let mut args = vec!["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig, "--roles", roles];
    args.extend(["--namespace", "default", "--http-endpoint", "127.0.0.1:0", "--enable-capacity"]);
    args.extend(["--capacity-ownerref-level", "-1", "--enable-node-watcher"]);
    let _sidecar = ChildProcess::start(&built_program("wharf"), &args, &dir.join("sidecar.log"));
    let client = ApiClient::connect(server.kubeconfig()).unwrap();
    let expected = [
        "csinodes.storage.k8s.io",
        "csistoragecapacities.storage.k8s.io",
        "leases.coordination.k8s.io",
        "nodes.",
        "persistentvolumeclaims.",
        "persistentvolumes.",
        "pods.",
        "storageclasses.storage.k8s.io",
        "volumeattachments.storage.k8s.io",
        "volumeattributesclasses.storage.k8s.io",
        "volumesnapshotcontents.snapshot.storage.k8s.io",
        "volumesnapshots.snapshot.storage.k8s.io",
    ];
    assert_watched_once(|| client.text("/metrics"), &expected);
}

#[test]
fn repeated_watches_are_found() {
    let line = |group: &str, resource: &str, scope: &str, count: u32| {
        format!(
            "apiserver_longrunning_requests{{component=\"apiserver\",group=\"{group}\",resource=\"{resource}\",\
             scope=\"{scope}\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}} {count}\n"
        )
    };
    let lease = |scope, count| line("coordination.k8s.io", "leases", scope, count);
    for (metrics, repeated) in [
        (line("", "pods", "cluster", 1) + &line("", "nodes", "cluster", 1), 0),
        (line("", "pods", "cluster", 2), 1),
        (line("", "nodes", "cluster", 1) + &line("", "nodes", "resource", 1), 1),
        (line("", "pods", "cluster", 1) + &line("", "pods", "namespace", 1), 1),
        (lease("resource", 5), 0),
        (lease("namespace", 1), 1),
    ] {
        assert_eq!(watched_repeatedly(&watches(&metrics)).len(), repeated, "{metrics}");
    }
}
