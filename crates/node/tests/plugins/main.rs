//! The plugin manager and the Node object on the embedded API, with drivers and plugins on real sockets.

#![allow(clippy::unwrap_used)] // test helpers may panic

mod harness;
mod machine;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use harness::{Agent, DRIVER, Driver, NODE, Registrar, RunningDriver, until};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::User;
use wharf_cluster::{Patch, Preconditions, StoreEvent, WatchOptions};
use wharf_csi::v1::node_service_capability::rpc;
use wharf_model::Node;
use wharf_model::{CSINode, Key, Kind as _};
use wharf_node::plugins::NodeCapabilities;
use wharf_sidecar::process::{self, Sidecar};
use wharf_sidecar::registrar;

/// Runs our own registrar for a driver's socket.
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

/// kubernetes.md 1.6 "Register", "Order", "Socket removed", 1.7 "Node patch": with our own registrar; removing the
/// socket removes the entries, and re-creating it restores them.
#[tokio::test]
async fn driver_is_registered_deregistered_and_registered_again() {
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
    let capabilities = NodeCapabilities { stage_unstage: true, stats: true, ..NodeCapabilities::default() };
    assert_eq!((plugin.capabilities, plugin.max_volumes), (capabilities, 5));
    assert_eq!((plugin.node_id.as_str(), plugin.vendor_version.as_str()), ("id-of-a", "7"));
    assert_eq!(plugin.endpoint.path(), socket);

    let mut changed = agent.plugins.subscribe();
    changed.mark_unchanged();
    stop.cancel();
    task.await.unwrap();
    agent.deregistered(DRIVER).await;
    assert!(changed.has_changed().unwrap());
    let node = agent.node().await.unwrap();
    assert_eq!(node["metadata"]["labels"]["topology.example.com/rack"], "r1", "labels stay");

    driver.behavior().max_volumes = 9;
    let (stop, task) = sidecar(&agent, &socket);
    assert_eq!(agent.registered(DRIVER).await["allocatable"], json!({"count": 9}));
    stop.cancel();
    task.await.unwrap();
}

/// Issue: retry after a failed handler. Kubelet waits for a new socket; we do not.
#[tokio::test]
async fn failed_registration_is_retried_without_a_new_socket() {
    let agent = Agent::running(|_| {}).await;
    let (unready, failing) = (Driver::new("silent.example.com"), Driver::new(DRIVER));
    failing.behavior().error = Some("the cloud is away".into());
    let socket = |name: &str| agent.dir.path().join(name);
    let _drivers = [unready.serve(&socket("silent.sock")), failing.serve(&socket("failing.sock"))];
    let first = Registrar::new("silent.example.com", &socket("silent.sock"));
    first.get_info_fails.store(true, Ordering::Relaxed);
    let second = Registrar::new(DRIVER, &socket("failing.sock"));
    let registry = agent.registry();
    let _plugins = [first.serve(&registry.join("silent.sock")), second.serve(&registry.join("failing.sock"))];

    let error = second.refused().await;
    assert!(error.starts_with("RegisterPlugin error -- plugin registration failed with err: "), "{error}");
    assert!(error.contains("the cloud is away"), "{error}");
    assert!(agent.entry(DRIVER).await.is_none() && agent.plugins.get(DRIVER).is_none());
    until("a retry", || async { (failing.behavior().node_info_calls > 1).then_some(()) }).await;
    assert!(first.notifications().is_empty(), "a plugin without GetInfo gets no notification");

    failing.behavior().error = None;
    first.get_info_fails.store(false, Ordering::Relaxed);
    second.accepted().await;
    first.accepted().await;
    agent.registered(DRIVER).await;
    agent.registered("silent.example.com").await;
    assert!(second.notifications().last().unwrap().plugin_registered);
}

/// kubernetes.md 1.6 "No retry", if so configured.
#[tokio::test]
async fn without_retry_a_new_socket_is_needed() {
    let agent = Agent::running(|settings| settings.retry = false).await;
    let driver = Driver::new(DRIVER);
    driver.behavior().error = Some("no".into());
    let RunningDriver { registrar, path, plugin, serving: _serving, .. } = agent.start_driver(&driver);
    registrar.refused().await;
    driver.behavior().error = None;
    sleep(Duration::from_millis(400)).await;
    assert_eq!(driver.behavior().node_info_calls, 1);
    drop(plugin);
    let _plugin = registrar.serve(&path);
    registrar.accepted().await;
}

/// kubernetes.md 1.6 "Registry", "GetInfo": existing first, subdirectories, an empty endpoint is the registration
/// socket.
#[tokio::test]
async fn existing_sockets_and_subdirectories_are_found() {
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

    // A socket that appears later, in a new directory.
    let later = Driver::new("later.example.com");
    let mut second = Registrar::new("later.example.com", Path::new("/"));
    second.info.endpoint.clear();
    let second_plugin = second.serve_with(&agent.registry().join("c/reg.sock"), &later);
    second.accepted().await;
    assert!(hidden.notifications().is_empty());

    drop(second_plugin);
    agent.deregistered("later.example.com").await;
    assert!(agent.entry(DRIVER).await.is_some());
}

/// Whether the driver's entry was missing at any time while its socket was re-created.
async fn gap_in_the_entry(handover: bool) -> bool {
    let agent = Agent::running(|settings| settings.handover = handover).await;
    let RunningDriver { driver, socket, path, plugin: before, serving: _serving, .. } =
        agent.running_driver().await;

    let store = agent.admin.store::<CSINode>(WatchOptions::default());
    store.wait_synced().await;
    let mut changes = store.subscribe();
    std::fs::remove_file(&path).unwrap();
    let after = Registrar::new(DRIVER, &socket);
    driver.behavior().capabilities.push(rpc::Type::ExpandVolume);
    let _after = after.serve(&path);
    drop(before);
    after.accepted().await;
    agent.registered(DRIVER).await;
    assert!(agent.plugins.get(DRIVER).unwrap().capabilities.expand, "queried again");
    let mut gap = false;
    while let Ok(Some(notice)) = timeout(Duration::from_millis(200), changes.next()).await {
        if let StoreEvent::Change(change) = notice {
            gap |= change.new.is_none_or(|csi_node| csi_node.driver(DRIVER).is_none());
        }
    }
    gap
}

/// kubernetes.md 1.6 "New socket". Ours hands over without a gap; kubelet's behaviour is configurable.
#[tokio::test]
async fn recreated_socket_hands_over_without_a_gap() {
    assert!(!gap_in_the_entry(true).await, "handed over");
    assert!(gap_in_the_entry(false).await, "unregister first");
}

/// A dead socket that replaces a live one deregisters the driver; the next live one registers it again.
#[tokio::test]
async fn dead_socket_deregisters_the_driver_until_it_is_replaced() {
    let agent = Agent::running(|_| {}).await;
    let RunningDriver { registrar, path, plugin: before, serving: _serving, .. } =
        agent.running_driver().await;
    drop(before);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    agent.deregistered(DRIVER).await;
    std::fs::remove_file(&path).unwrap();
    let _after = registrar.serve(&path);
    agent.registered(DRIVER).await;
}

/// kubernetes.md 1.7 "Label conflict": a hard error, until the label is fixed.
#[tokio::test]
async fn topology_label_collision_fails_registration_until_resolved() {
    let mut agent = Agent::new().await;
    agent.run_machine(|_| {});
    until("the Node", || agent.node()).await;
    let label =
        |value: Value| Patch::Merge(json!({"metadata": {"labels": {"topology.example.com/rack": value}}}));
    let key = Key::cluster(NODE);
    agent.admin.patch(&Node::API, &key, None, label(json!("r2"))).await.unwrap();
    agent.run_plugins(|settings| settings.retry_start = Duration::from_secs(600));
    let running_driver = agent.start_driver(&Driver::new(DRIVER));
    let registrar = &running_driver.registrar;
    let error = registrar.refused().await;
    let reason = r#"detected topology value collision: driver reported "topology.example.com/rack":"r1" but existing label is "topology.example.com/rack":"r2""#;
    assert!(error.contains(reason), "{error}");
    assert!(agent.node_ids().await.is_none() && agent.entry(DRIVER).await.is_none());

    agent.admin.patch(&Node::API, &key, None, label(Value::Null)).await.unwrap();
    registrar.accepted().await;
    agent.registered(DRIVER).await;
}

/// kubernetes.md 1.6 "Same name". A refused socket registers when the name is released.
#[tokio::test]
async fn highest_version_owns_the_name_until_released() {
    let agent = Agent::running(|settings| settings.retry_start = Duration::from_secs(600)).await;
    let socket = |name: &str| agent.dir.path().join(name);
    let drivers = [Driver::new(DRIVER), Driver::new(DRIVER), Driver::new(DRIVER)];
    drivers[1].behavior().max_volumes = 6;
    drivers[2].behavior().max_volumes = 7;
    let _drivers: Vec<_> = drivers
        .iter()
        .zip(["0.sock", "1.sock", "2.sock"])
        .map(|(driver, at)| driver.serve(&socket(at)))
        .collect();
    let registrars = ["0.sock", "1.sock", "2.sock"].map(|at| Registrar::new(DRIVER, &socket(at)));
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
    assert_eq!(agent.plugins.get(DRIVER).unwrap().max_volumes, 7, "the first socket no longer owns the name");
    assert_eq!(agent.entry(DRIVER).await.unwrap()["allocatable"], json!({"count": 7}));

    drop(third);
    registrars[1].accepted().await;
    assert_eq!(agent.registered(DRIVER).await["allocatable"], json!({"count": 6}));
}

/// kubernetes.md 1.6 "Order", "GetInfo", "Versions": a refused plugin gets the reason.
#[tokio::test]
async fn invalid_plugins_are_refused_with_a_reason() {
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
        ("name", change(|plugin| plugin.info.name = "no/name".into()), "is not a valid CSI driver name"),
        (
            "endpoint",
            change(|plugin| plugin.info.endpoint = "tcp://127.0.0.1:1".into()),
            "is not a unix socket",
        ),
        (
            "another",
            change(|_| {}),
            r#"reports the name "other.example.com", but was registered as "a.example.com""#,
        ),
    ] {
        let _plugin = registrar.serve(&agent.registry().join(format!("{name}.sock")));
        let error = registrar.refused().await;
        assert!(error.contains(reason), "{name}: {error}");
    }
    assert!(agent.plugins.list().is_empty());
}

/// kubernetes.md 1.7 "Limit refresh": on request; and all node info when the driver restarts.
#[tokio::test]
async fn changed_node_info_updates_csi_node() {
    let agent = Agent::running(|_| {}).await;
    let RunningDriver { driver, registrar, socket, serving: first, plugin: _plugin, .. } =
        agent.running_driver().await;

    driver.behavior().max_volumes = 3;
    agent.plugins.refresh(DRIVER);
    until("the new limit", || async {
        (agent.entry(DRIVER).await?["allocatable"]["count"] == 3).then_some(())
    })
    .await;
    assert_eq!(agent.plugins.get(DRIVER).unwrap().max_volumes, 3);
    let node_info_calls = driver.behavior().node_info_calls;

    drop(first);
    let mut changed = agent.plugins.subscribe();
    changed.mark_unchanged();
    {
        let mut behavior = driver.behavior();
        behavior.node_id = "id-of-b".into();
        behavior.capabilities.push(rpc::Type::VolumeMountGroup);
    }
    let _second = driver.serve(&socket);
    timeout(Duration::from_secs(30), changed.changed()).await.unwrap().unwrap();
    assert!(agent.plugins.get(DRIVER).unwrap().capabilities.volume_mount_group);
    until("the new id", || async { (agent.entry(DRIVER).await?["nodeID"] == "id-of-b").then_some(()) }).await;
    until("the new id on the Node", || async {
        (agent.node_ids().await?[DRIVER] == "id-of-b").then_some(())
    })
    .await;
    assert!(driver.behavior().node_info_calls > node_info_calls);
    assert_eq!(registrar.notifications().len(), 1, "its registration socket did not change");
}

/// Node deleted, CSINode garbage-collected; when the Node is created again, so are the entries.
#[tokio::test]
async fn deleted_and_recreated_node_gets_its_entries_back() {
    let mut agent = Agent::with(User::admin()).await;
    agent.run(|_| {});
    let _plugged = agent.running_driver().await;
    let before = agent.node().await.unwrap()["metadata"]["uid"].clone();
    agent.admin.delete(&Node::API, &Key::cluster(NODE), Preconditions::default()).await.unwrap();
    until("the CSINode to be deleted", || async { agent.csi_node().await.is_none().then_some(()) }).await;
    assert!(agent.node().await.is_none());

    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    let after = agent.admin.create(&Node::API, None, &body).await.unwrap()["metadata"]["uid"].clone();
    assert_ne!(before, after);
    agent.registered(DRIVER).await;
    assert_eq!(agent.csi_node().await.unwrap()["metadata"]["ownerReferences"][0]["uid"], after);
}

/// Removed entries are restored, where that can be observed: by an agent that may watch its CSINode, or has a client
/// that may.
#[tokio::test]
async fn removed_entries_are_restored() {
    for privileged_client in [false, true] {
        let mut agent = match privileged_client {
            true => Agent::new().await,
            false => Agent::with(User::admin()).await,
        };
        agent.privileged_client = privileged_client.then(|| agent.admin.clone());
        agent.run(|_| {});
        let _plugged = agent.running_driver().await;
        let entry = agent.registered(DRIVER).await;
        let key = Key::cluster(NODE);
        let none = Patch::Merge(json!({"spec": {"drivers": null}}));
        agent.admin.patch(&CSINode::API, &key, None, none).await.unwrap();
        assert_eq!(agent.registered(DRIVER).await, entry);
        let none =
            Patch::Merge(json!({"metadata": {"annotations": {"csi.volume.kubernetes.io/nodeid": null}}}));
        agent.admin.patch(&Node::API, &key, None, none).await.unwrap();
        until("the annotation", || agent.node_ids()).await;
        agent.admin.delete(&CSINode::API, &key, Preconditions::default()).await.unwrap();
        assert_eq!(agent.registered(DRIVER).await, entry, "the CSINode is created again with its entry");
    }
}

/// No state is persisted, and none is needed: existing entries are left as they are.
#[tokio::test]
async fn restart_does_not_rewrite_existing_entries() {
    let mut agent = Agent::running(|_| {}).await;
    let running_driver = agent.running_driver().await;
    let before = agent.csi_node().await.unwrap();
    agent.crash().await;
    agent.run(|_| {});
    agent.registered(DRIVER).await;
    until("another successful registration", || async {
        (running_driver.registrar.notifications().len() == 2).then_some(())
    })
    .await;
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

/// If the API server is unavailable, pending removals and writes are completed later.
#[tokio::test]
async fn failed_writes_are_completed_later() {
    let agent = Agent::running(|_| {}).await;
    until("the CSINode", || agent.csi_node()).await;
    agent.csi_node_writes_fail.store(true, Ordering::Relaxed);
    let RunningDriver { registrar, plugin, serving: _serving, .. } = agent.start_driver(&Driver::new(DRIVER));
    let error = registrar.refused().await;
    assert!(error.contains("error updating CSINode object with CSI driver node info"), "{error}");
    assert!(agent.plugins.get(DRIVER).is_none());
    agent.csi_node_writes_fail.store(false, Ordering::Relaxed);
    registrar.accepted().await;
    agent.registered(DRIVER).await;

    agent.csi_node_writes_fail.store(true, Ordering::Relaxed);
    drop(plugin);
    until("the plugin to be deregistered", || async { agent.plugins.get(DRIVER).is_none().then_some(()) })
        .await;
    sleep(Duration::from_millis(200)).await;
    assert!(agent.entry(DRIVER).await.is_some());
    agent.csi_node_writes_fail.store(false, Ordering::Relaxed);
    agent.deregistered(DRIVER).await;
}

/// A plugin may register before the Node exists.
#[tokio::test]
async fn driver_registers_once_the_node_exists() {
    let mut agent = Agent::new().await;
    agent.run_plugins(|settings| settings.retry_start = Duration::from_secs(600));
    let running_driver = agent.start_driver(&Driver::new(DRIVER));
    let error = running_driver.registrar.refused().await;
    assert!(error.ends_with("Node node-a does not exist: it has to be registered first"), "{error}");
    agent.run_machine(|_| {});
    running_driver.registrar.accepted().await;
    agent.registered(DRIVER).await;
}

/// Volumes of one driver must not be passed to another driver that took over its socket.
#[tokio::test]
async fn another_driver_at_the_endpoint_deregisters_the_first() {
    let agent = Agent::running(|_| {}).await;
    let RunningDriver { registrar, socket, serving: first, plugin: _plugin, .. } =
        agent.running_driver().await;
    drop(first);
    let second = Driver::new("b.example.com").serve(&socket);
    agent.deregistered(DRIVER).await;
    registrar.refused().await;
    drop(second);
    let _third = Driver::new(DRIVER).serve(&socket);
    agent.registered(DRIVER).await;
}

/// A failed registration reverts its writes, which must not trigger a retry.
#[tokio::test]
async fn failed_registration_does_not_trigger_its_own_retry() {
    let agent = Agent::running(|settings| settings.retry_start = Duration::from_secs(600)).await;
    until("the CSINode", || agent.csi_node()).await;
    let driver = Driver::new(DRIVER);
    // The Node accepts it, the CSINode does not.
    driver.behavior().node_id = "i".repeat(300);
    let running_driver = agent.start_driver(&driver);
    let error = running_driver.registrar.refused().await;
    assert!(error.contains("must be 256 characters or less"), "{error}");
    sleep(Duration::from_millis(500)).await;
    assert!(agent.node_ids().await.is_none());
    // At most one more, for the new label on the Node.
    assert!(driver.behavior().node_info_calls <= 2, "queried {} times", driver.behavior().node_info_calls);
}
