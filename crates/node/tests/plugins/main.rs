//! The plugin manager and the Node object on the embedded API, with drivers and plugins on real sockets.

#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the answer

mod harness;
mod machine;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use harness::{Agent, DRIVER, Driver, NODE, Plugged, Registrar, until};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::User;
use wharf_cluster::{Notice, Patch, Preconditions, WatchOptions};
use wharf_csi::v1::node_service_capability::rpc;
use wharf_model::whole::Node;
use wharf_model::{CSINode, Key, Kind as _};
use wharf_node::plugins::NodeCapabilities;
use wharf_sidecar::process::{self, Sidecar};
use wharf_sidecar::registrar;

/// Our own registrar for a driver's socket.
fn sidecar(agent: &Agent, driver: &Path) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let stop = CancellationToken::new();
    let sidecar = Sidecar {
        driver: Some(driver.to_str().unwrap().parse().unwrap()),
        registrar: Some(registrar::Config {
            plugin_registration_path: agent.registry(),
            kubelet_registration_path: driver.to_str().unwrap().into(),
            timeout: Duration::from_secs(5),
        }),
        probe_timeout: None,
        controller: None,
        listen: Vec::new(),
    };
    let stopped = stop.clone();
    let run = async move { process::run(sidecar, stopped.cancelled_owned()).await.unwrap() };
    (stop, tokio::spawn(run))
}

/// kubernetes.md 1.6 "Register", "Order", "Removed", 1.7 "Node patch": with our own registrar, the socket goes, the
/// entries go; it comes back, and they do.
#[tokio::test]
async fn a_driver_comes_goes_and_comes_back() {
    let agent = Agent::running(|_| {}).await;
    let socket = agent.dir.path().join("plugins/a/csi.sock");
    let driver = Driver::new(DRIVER);
    let _driver = driver.serve(&socket);
    until("the registry directory", || async { agent.registry().is_dir().then_some(()) }).await;
    let (stop, task) = sidecar(&agent, &socket);
    let entry = agent.registered(DRIVER).await;
    let expected = json!({
        "name": DRIVER, "nodeID": "id-of-a", "topologyKeys": ["topology.example.com/rack"],
        "allocatable": {"count": 5},
    });
    assert_eq!(entry, expected);
    let node = agent.node().await.unwrap();
    assert_eq!(node["metadata"]["labels"]["topology.example.com/rack"], "r1");
    let csi_node = agent.csi_node().await.unwrap();
    let owner = &csi_node["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &node["metadata"]["uid"]));
    let migrated =
        csi_node["metadata"]["annotations"]["storage.alpha.kubernetes.io/migrated-plugins"].as_str();
    assert!(migrated.unwrap().starts_with("kubernetes.io/aws-ebs,kubernetes.io/azure-disk,"));

    let plugin = agent.plugins.get(DRIVER).unwrap();
    let can = NodeCapabilities { stage_unstage: true, stats: true, ..NodeCapabilities::default() };
    assert_eq!((plugin.capabilities, plugin.max_volumes), (can, 5));
    assert_eq!((plugin.node_id.as_str(), plugin.vendor_version.as_str()), ("id-of-a", "7"));
    assert_eq!(plugin.endpoint.path(), socket);

    let mut changed = agent.plugins.changed();
    changed.mark_unchanged();
    stop.cancel();
    task.await.unwrap();
    agent.deregistered(DRIVER).await;
    assert!(changed.has_changed().unwrap());
    let node = agent.node().await.unwrap();
    assert_eq!(node["metadata"]["labels"]["topology.example.com/rack"], "r1", "labels stay");

    driver.says().max_volumes = 9;
    let (stop, task) = sidecar(&agent, &socket);
    assert_eq!(agent.registered(DRIVER).await["allocatable"], json!({"count": 9}));
    stop.cancel();
    task.await.unwrap();
}

/// Issue: retry after a failed handler. Kubelet waits for a new socket; we do not.
#[tokio::test]
async fn what_fails_first_works_later_without_a_new_socket() {
    let agent = Agent::running(|_| {}).await;
    let (silent, failing) = (Driver::new("silent.example.com"), Driver::new(DRIVER));
    failing.says().fails = Some("the cloud is away".into());
    let place = |name: &str| agent.dir.path().join(name);
    let _drivers = [silent.serve(&place("silent.sock")), failing.serve(&place("failing.sock"))];
    let first = Registrar::new("silent.example.com", &place("silent.sock"));
    first.silent.store(true, Ordering::Relaxed);
    let second = Registrar::new(DRIVER, &place("failing.sock"));
    let registry = agent.registry();
    let _plugins = [first.serve(&registry.join("silent.sock")), second.serve(&registry.join("failing.sock"))];

    let error = second.refused().await;
    assert!(error.starts_with("RegisterPlugin error -- plugin registration failed with err: "), "{error}");
    assert!(error.contains("the cloud is away"), "{error}");
    assert!(agent.entry(DRIVER).await.is_none() && agent.plugins.get(DRIVER).is_none());
    until("another try", || async { (failing.says().asked > 1).then_some(()) }).await;
    assert!(first.heard().is_empty(), "one that does not say who it is hears nothing");

    failing.says().fails = None;
    first.silent.store(false, Ordering::Relaxed);
    second.accepted().await;
    first.accepted().await;
    agent.registered(DRIVER).await;
    agent.registered("silent.example.com").await;
    assert!(second.heard().last().unwrap().plugin_registered);
}

/// kubernetes.md 1.6 "No retry", where that is asked for.
#[tokio::test]
async fn without_retry_a_new_socket_is_needed() {
    let agent = Agent::running(|settings| settings.retry = false).await;
    let driver = Driver::new(DRIVER);
    driver.says().fails = Some("no".into());
    let Plugged { registrar, path, plugin, serving: _serving, .. } = agent.plug(&driver);
    registrar.refused().await;
    driver.says().fails = None;
    sleep(Duration::from_millis(400)).await;
    assert_eq!(driver.says().asked, 1);
    drop(plugin);
    let _plugin = registrar.serve(&path);
    registrar.accepted().await;
}

/// kubernetes.md 1.6 "Registry", "GetInfo": existing first, subdirectories, an empty endpoint is the registration
/// socket.
#[tokio::test]
async fn sockets_that_are_there_first_and_beneath() {
    let mut agent = Agent::new().await;
    let driver = Driver::new(DRIVER);
    let mut registrar = Registrar::new(DRIVER, Path::new("/"));
    registrar.info.endpoint.clear();
    let path = agent.registry().join("a/b/reg.sock");
    let _plugin = registrar.serve_with(&path, &driver);
    let hidden = Registrar::new("hidden.example.com", &path);
    let _hidden = hidden.serve(&agent.registry().join(".hidden.sock"));
    std::fs::write(agent.registry().join("file"), "").unwrap();
    agent.run_machine(|_| {});
    agent.run_plugins(|_| {});
    registrar.accepted().await;
    agent.registered(DRIVER).await;
    assert_eq!(agent.plugins.get(DRIVER).unwrap().endpoint.path(), path);

    // One that comes while we run, in a directory that comes with it.
    let later = Driver::new("later.example.com");
    let mut second = Registrar::new("later.example.com", Path::new("/"));
    second.info.endpoint.clear();
    let second_plugin = second.serve_with(&agent.registry().join("c/reg.sock"), &later);
    second.accepted().await;
    assert!(hidden.heard().is_empty());

    drop(second_plugin);
    agent.deregistered("later.example.com").await;
    assert!(agent.entry(DRIVER).await.is_some());
}

/// Whether the driver's entry went while its socket was made anew.
async fn gap_in_the_entry(handover: bool) -> bool {
    let agent = Agent::running(|settings| settings.handover = handover).await;
    let Plugged { driver, socket, path, plugin: before, serving: _serving, .. } = agent.plugged().await;

    let store = agent.admin.store::<CSINode>(WatchOptions::default());
    store.synced().await;
    let mut changes = store.changes();
    std::fs::remove_file(&path).unwrap();
    let after = Registrar::new(DRIVER, &socket);
    driver.says().can.push(rpc::Type::ExpandVolume);
    let _after = after.serve(&path);
    drop(before);
    after.accepted().await;
    agent.registered(DRIVER).await;
    assert!(agent.plugins.get(DRIVER).unwrap().capabilities.expand, "asked anew");
    let mut gap = false;
    while let Ok(Some(notice)) = timeout(Duration::from_millis(200), changes.next()).await {
        if let Notice::Change(change) = notice {
            gap |= change.new.is_none_or(|csi_node| csi_node.driver(DRIVER).is_none());
        }
    }
    gap
}

/// kubernetes.md 1.6 "New socket". Ours hands over; kubelet's way is there to choose.
#[tokio::test]
async fn a_socket_made_anew_registers_anew() {
    assert!(!gap_in_the_entry(true).await, "handed over");
    assert!(gap_in_the_entry(false).await, "unregister first");
}

/// A socket that takes the place of another and is dead: the driver goes, and comes with the next.
#[tokio::test]
async fn a_dead_socket_takes_nobodys_place_for_long() {
    let agent = Agent::running(|_| {}).await;
    let Plugged { registrar, path, plugin: before, serving: _serving, .. } = agent.plugged().await;
    drop(before);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    agent.deregistered(DRIVER).await;
    std::fs::remove_file(&path).unwrap();
    let _after = registrar.serve(&path);
    agent.registered(DRIVER).await;
}

/// kubernetes.md 1.7 "Collision": a hard error, until somebody settles it.
#[tokio::test]
async fn a_node_that_is_said_to_be_elsewhere() {
    let mut agent = Agent::new().await;
    agent.run_machine(|_| {});
    until("the Node", || agent.node()).await;
    let label =
        |value: Value| Patch::Merge(json!({"metadata": {"labels": {"topology.example.com/rack": value}}}));
    let key = Key::cluster(NODE);
    agent.admin.patch(&Node::API, &key, None, label(json!("r2"))).await.unwrap();
    agent.run_plugins(|settings| settings.retry_start = Duration::from_secs(600));
    let plugged = agent.plug(&Driver::new(DRIVER));
    let registrar = &plugged.registrar;
    let error = registrar.refused().await;
    let reason = r#"detected topology value collision: driver reported "topology.example.com/rack":"r1" but existing label is "topology.example.com/rack":"r2""#;
    assert!(error.contains(reason), "{error}");
    assert!(agent.node_ids().await.is_none() && agent.entry(DRIVER).await.is_none());

    agent.admin.patch(&Node::API, &key, None, label(Value::Null)).await.unwrap();
    registrar.accepted().await;
    agent.registered(DRIVER).await;
}

/// kubernetes.md 1.6 "Same name". Who was refused comes when the name is free.
#[tokio::test]
async fn two_sockets_of_one_name() {
    let agent = Agent::running(|settings| settings.retry_start = Duration::from_secs(600)).await;
    let place = |name: &str| agent.dir.path().join(name);
    let drivers = [Driver::new(DRIVER), Driver::new(DRIVER), Driver::new(DRIVER)];
    drivers[1].says().max_volumes = 6;
    drivers[2].says().max_volumes = 7;
    let _drivers: Vec<_> = drivers
        .iter()
        .zip(["0.sock", "1.sock", "2.sock"])
        .map(|(driver, at)| driver.serve(&place(at)))
        .collect();
    let registrars = ["0.sock", "1.sock", "2.sock"].map(|at| Registrar::new(DRIVER, &place(at)));
    let mut higher = registrars[2].clone();
    higher.info.supported_versions.push("1.1.0".into());

    let first = registrars[0].serve(&agent.registry().join("0.sock"));
    registrars[0].accepted().await;
    let _second = registrars[1].serve(&agent.registry().join("1.sock"));
    let error = registrars[1].refused().await;
    assert!(error.contains("Another driver with the same name is already registered"), "{error}");

    let third = higher.serve(&agent.registry().join("2.sock"));
    higher.accepted().await;
    assert_eq!(agent.plugins.get(DRIVER).unwrap().max_volumes, 7);
    drop(first);
    sleep(Duration::from_millis(400)).await;
    assert_eq!(agent.plugins.get(DRIVER).unwrap().max_volumes, 7, "the name is not the first one's any more");
    assert_eq!(agent.entry(DRIVER).await.unwrap()["allocatable"], json!({"count": 7}));

    drop(third);
    registrars[1].accepted().await;
    assert_eq!(agent.registered(DRIVER).await["allocatable"], json!({"count": 6}));
}

/// kubernetes.md 1.6 "Order", "GetInfo", "Versions": who is refused is told why.
#[tokio::test]
async fn what_is_no_driver_is_told_so() {
    let agent = Agent::running(|_| {}).await;
    let driver = Driver::new("other.example.com");
    let socket = agent.dir.path().join("csi.sock");
    let _driver = driver.serve(&socket);
    let change = |change: fn(&mut Registrar)| {
        let mut registrar = Registrar::new(DRIVER, &socket);
        change(&mut registrar);
        registrar
    };
    for (name, registrar, reason) in [
        (
            "device",
            change(|plugin| plugin.info.r#type = "DevicePlugin".into()),
            "no handler registered for plugin type: DevicePlugin",
        ),
        (
            "version",
            change(|plugin| plugin.info.supported_versions = vec!["0.3.0".into()]),
            r#"None of the versions specified ["0.3.0"] are supported"#,
        ),
        ("name", change(|plugin| plugin.info.name = "no/name".into()), "is not the name of a CSI driver"),
        (
            "endpoint",
            change(|plugin| plugin.info.endpoint = "tcp://127.0.0.1:1".into()),
            "is not a unix socket",
        ),
        (
            "another",
            change(|_| {}),
            r#"calls itself "other.example.com", and was registered as "a.example.com""#,
        ),
    ] {
        let _plugin = registrar.serve(&agent.registry().join(format!("{name}.sock")));
        let error = registrar.refused().await;
        assert!(error.contains(reason), "{name}: {error}");
    }
    assert!(agent.plugins.all().is_empty());
}

/// kubernetes.md 1.7 "Limits refreshed": by wish; and all that a driver says when it restarts.
#[tokio::test]
async fn a_driver_changes_its_mind() {
    let agent = Agent::running(|_| {}).await;
    let Plugged { driver, registrar, socket, serving: first, plugin: _plugin, .. } = agent.plugged().await;

    driver.says().max_volumes = 3;
    agent.plugins.refresh(DRIVER);
    until("the new limit", || async {
        (agent.entry(DRIVER).await?["allocatable"]["count"] == 3).then_some(())
    })
    .await;
    assert_eq!(agent.plugins.get(DRIVER).unwrap().max_volumes, 3);
    let asked = driver.says().asked;

    drop(first);
    let mut changed = agent.plugins.changed();
    changed.mark_unchanged();
    {
        let mut says = driver.says();
        says.node_id = "id-of-b".into();
        says.can.push(rpc::Type::VolumeMountGroup);
    }
    let _second = driver.serve(&socket);
    timeout(Duration::from_secs(30), changed.changed()).await.unwrap().unwrap();
    assert!(agent.plugins.get(DRIVER).unwrap().capabilities.volume_mount_group);
    until("the new id", || async { (agent.entry(DRIVER).await?["nodeID"] == "id-of-b").then_some(()) }).await;
    until("the new id on the Node", || async {
        (agent.node_ids().await?[DRIVER] == "id-of-b").then_some(())
    })
    .await;
    assert!(driver.says().asked > asked);
    assert_eq!(registrar.heard().len(), 1, "its socket was the same all the time");
}

/// Issue: Node deleted, CSINode collected; and where the Node comes again, so do the entries.
#[tokio::test]
async fn the_node_goes_and_the_csi_node_with_it() {
    let mut agent = Agent::with(User::admin()).await;
    agent.run(|_| {});
    let _plugged = agent.plugged().await;
    let before = agent.node().await.unwrap()["metadata"]["uid"].clone();
    agent.admin.delete(&Node::API, &Key::cluster(NODE), Preconditions::default()).await.unwrap();
    until("the CSINode to go", || async { agent.csi_node().await.is_none().then_some(()) }).await;
    assert!(agent.node().await.is_none());

    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    let after = agent.admin.create(&Node::API, None, &body).await.unwrap()["metadata"]["uid"].clone();
    assert_ne!(before, after);
    agent.registered(DRIVER).await;
    assert_eq!(agent.csi_node().await.unwrap()["metadata"]["ownerReferences"][0]["uid"], after);
}

/// What somebody else takes away is put back, where that can be seen.
#[tokio::test]
async fn entries_are_kept_right() {
    let mut agent = Agent::with(User::admin()).await;
    agent.run(|_| {});
    let _plugged = agent.plugged().await;
    let entry = agent.registered(DRIVER).await;
    let key = Key::cluster(NODE);
    let none = Patch::Merge(json!({"spec": {"drivers": null}}));
    agent.admin.patch(&CSINode::API, &key, None, none).await.unwrap();
    assert_eq!(agent.registered(DRIVER).await, entry);
    let none = Patch::Merge(json!({"metadata": {"annotations": {"csi.volume.kubernetes.io/nodeid": null}}}));
    agent.admin.patch(&Node::API, &key, None, none).await.unwrap();
    until("the annotation", || agent.node_ids()).await;
}

/// Nothing is remembered, and nothing need be: what is written is written.
#[tokio::test]
async fn a_restart_writes_nothing_that_is_there() {
    let mut agent = Agent::running(|_| {}).await;
    let plugged = agent.plugged().await;
    let before = agent.csi_node().await.unwrap();
    agent.crash().await;
    agent.run(|_| {});
    agent.registered(DRIVER).await;
    until("another yes", || async { (plugged.registrar.heard().len() == 2).then_some(()) }).await;
    assert_eq!(agent.csi_node().await.unwrap(), before);

    let mut registry = prometheus_client::registry::Registry::default();
    agent.plugins.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in
        ["wharf_plugin_registrations_total{outcome=\"registered\"} 1\n", "wharf_plugins_registered 1\n"]
    {
        assert!(text.contains(line), "{text}");
    }
}

/// A server that does not answer: nothing is forgotten that was to be removed, or to be written.
#[tokio::test]
async fn what_the_server_did_not_take_is_written_later() {
    let agent = Agent::running(|_| {}).await;
    until("the CSINode", || agent.csi_node()).await;
    agent.broken.store(true, Ordering::Relaxed);
    let Plugged { registrar, plugin, serving: _serving, .. } = agent.plug(&Driver::new(DRIVER));
    let error = registrar.refused().await;
    assert!(error.contains("error updating CSINode object with CSI driver node info"), "{error}");
    assert!(agent.plugins.get(DRIVER).is_none());
    agent.broken.store(false, Ordering::Relaxed);
    registrar.accepted().await;
    agent.registered(DRIVER).await;

    agent.broken.store(true, Ordering::Relaxed);
    drop(plugin);
    until("the plugin to go", || async { agent.plugins.get(DRIVER).is_none().then_some(()) }).await;
    sleep(Duration::from_millis(200)).await;
    assert!(agent.entry(DRIVER).await.is_some());
    agent.broken.store(false, Ordering::Relaxed);
    agent.deregistered(DRIVER).await;
}

/// A plugin may be there before the Node is.
#[tokio::test]
async fn a_driver_that_comes_before_its_node() {
    let mut agent = Agent::new().await;
    agent.run_plugins(|settings| settings.retry_start = Duration::from_secs(600));
    let plugged = agent.plug(&Driver::new(DRIVER));
    let error = plugged.registrar.refused().await;
    assert!(error.ends_with("Node node-a is not there: it has to be registered first"), "{error}");
    agent.run_machine(|_| {});
    plugged.registrar.accepted().await;
    agent.registered(DRIVER).await;
}

/// Volumes of one driver must not be handed to another that has come to its place.
#[tokio::test]
async fn another_driver_behind_the_same_socket() {
    let agent = Agent::running(|_| {}).await;
    let Plugged { registrar, socket, serving: first, plugin: _plugin, .. } = agent.plugged().await;
    drop(first);
    let second = Driver::new("b.example.com").serve(&socket);
    agent.deregistered(DRIVER).await;
    registrar.refused().await;
    drop(second);
    let _third = Driver::new(DRIVER).serve(&socket);
    agent.registered(DRIVER).await;
}

/// A registration that fails takes back what it wrote, and that is no news to try again for.
#[tokio::test]
async fn a_failure_does_not_wake_itself() {
    let agent = Agent::running(|settings| settings.retry_start = Duration::from_secs(600)).await;
    until("the CSINode", || agent.csi_node()).await;
    let driver = Driver::new(DRIVER);
    // The Node takes it, the CSINode does not.
    driver.says().node_id = "i".repeat(300);
    let plugged = agent.plug(&driver);
    let error = plugged.registrar.refused().await;
    assert!(error.contains("must be 256 characters or less"), "{error}");
    sleep(Duration::from_millis(500)).await;
    assert!(agent.node_ids().await.is_none());
    // Once more at most, for the label that was new on the Node.
    assert!(driver.says().asked <= 2, "asked {} times", driver.says().asked);
}
