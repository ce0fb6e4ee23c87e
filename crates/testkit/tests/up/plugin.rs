//! A driver's registration goes and comes, and the Node with it.

use std::os::unix::fs::MetadataExt as _;

use serde_json::json;

use crate::machine::{Machine, NODE};
use crate::objects::{KEEPER, claim, claim_of, field, pod};
use crate::scripted::{CLASS, DRIVER, Scripted};

const LOCAL: &str = "local.csi.wharf.dev";

#[test]
fn no_pod_lands_where_its_driver_is_gone() {
    let mut machine = Machine::new();
    let mut scripted = Scripted::start(&mut machine);
    machine.create(&claim_of("first", "1Gi", CLASS));
    machine.create(&pod("first", "first", KEEPER));
    machine.running("first");
    scripted.registrar().stop();
    machine.until("the node has it no more", |machine| {
        let node = machine.get("csinode/node-1").ok_or("there is no CSINode")?;
        let (drivers, ids) = (node["spec"]["drivers"].to_string(), machine.node_ids());
        if drivers.contains(DRIVER) || ids.contains(DRIVER) {
            Err(format!("{drivers} {ids}"))
        } else {
            Ok(())
        }
    });
    assert!(machine.node_ids().contains(LOCAL), "others stay");
    machine.create(&claim_of("second", "1Gi", CLASS));
    machine.create(&pod("second", "second", KEEPER));
    machine.says("pvc/second", "/status/phase", "Bound");
    let why = machine.until("it is said why the pod waits", |machine| {
        let pod = machine.get("pod/second").ok_or("it is not there")?;
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let scheduled = conditions.iter().find(|condition| condition["type"] == "PodScheduled");
        let unschedulable = scheduled.filter(|condition| {
            // Not for its claim, which was not bound at first.
            condition["reason"] == "Unschedulable" && !field(condition, "/message").contains("unbound")
        });
        unschedulable.map(|condition| field(condition, "/message")).ok_or_else(|| format!("{conditions:?}"))
    });
    assert!(why.contains("CSI driver") || why.contains(DRIVER), "{why}");
    assert_eq!(machine.field("pod/second", "/spec/nodeName"), "");
    // A pod of another driver's volume does land, and who has its volume keeps it.
    machine.create(&claim("other", "32Mi"));
    machine.create(&pod("other", "other", KEEPER));
    machine.running("other");
    machine.running("first");
    assert_eq!(machine.field("pod/second", "/spec/nodeName"), "");
    scripted.registrar().restart();
    machine.has_driver(DRIVER);
    machine.running("second");
    for claim in ["first", "second", "other"] {
        machine.check_data(claim);
    }
    machine.delete_everything();
    scripted.is_as_before(&mut machine);
}

/// The Node goes, and its CSINode with it, unless it comes back at once. Ours does, with its drivers, and volumes in use
/// stay attached.
#[test]
fn a_node_that_is_deleted() {
    let mut machine = Machine::new();
    let made = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}});
    let other = field(&machine.create(&made), "/metadata/uid");
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "other", "uid": other}]);
    machine.create(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": "other", "ownerReferences": owner}, "spec": {"drivers": []},
    }));
    machine.delete("node/other");
    machine.gone("csinode/other");
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.written("keeper");
    let uid = |machine: &Machine, object: &str| machine.field(object, "/metadata/uid");
    let node = uid(&machine, "node/node-1");
    let attachment = crate::objects::name(&machine.list("va")[0]);
    let attached = uid(&machine, &format!("va/{attachment}"));
    machine.delete(&format!("node/{NODE}"));
    let now = machine.until("the Node is there again", |machine| {
        let now = uid(machine, "node/node-1");
        if now.is_empty() || now == node { Err(now) } else { Ok(now) }
    });
    machine.until("the CSINode is the new Node's", |machine| {
        let object = machine.get("csinode/node-1").ok_or("there is none")?;
        let owner = field(&object, "/metadata/ownerReferences/0/uid");
        if owner == now { Ok(()) } else { Err(format!("{object:#}")) }
    });
    machine.has_driver(LOCAL);
    machine.ready();
    machine.running("keeper");
    machine.until("the node says what it uses", |machine| {
        let used = machine.field("node/node-1", "/status/volumesInUse");
        if used.contains(LOCAL) { Ok(()) } else { Err(used) }
    });
    machine.nothing_else_is_mounted(&["keeper"]);
    assert_eq!(uid(&machine, &format!("va/{attachment}")), attached, "it was never detached");
    machine.check_data("data");
    machine.delete_everything();
}

/// Somebody cleans the registry directory, or another registrar takes the place of ours and dies.
#[test]
fn a_registry_socket_is_replaced() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.running("keeper");
    let registry = machine.data().join("kubelet/plugins_registry");
    let sockets =
        || -> Vec<_> { std::fs::read_dir(&registry).unwrap().flatten().map(|entry| entry.path()).collect() };
    for socket in sockets() {
        std::fs::remove_file(socket).unwrap();
    }
    machine.until("the socket is there again", |_| {
        if sockets().is_empty() { Err(String::new()) } else { Ok(()) }
    });
    machine.has_driver(LOCAL);
    let (driver, place) = (machine.data().join("run/local.sock"), registry.display().to_string());
    let driver = driver.display().to_string();
    let mut args =
        vec!["sidecar", "--node", "--csi-address", &driver, "--kubelet-registration-path", &driver];
    args.extend(["--plugin-registration-path", &place, "--http-endpoint", "127.0.0.1:0"]);
    // With the time, since the number of one that is gone may be given again.
    let which = || -> Vec<_> {
        let seen = sockets().into_iter().filter_map(|socket| std::fs::symlink_metadata(socket).ok());
        seen.map(|socket| (socket.ino(), socket.ctime(), socket.ctime_nsec())).collect()
    };
    let ours = which();
    assert_eq!(ours.len(), 1);
    let mut other = machine.start("wharf", &args, "other.log");
    machine.until("the socket is the other's", |_| {
        let now = which();
        if now.len() == 1 && now != ours { Ok(()) } else { Err(format!("{ours:?} {now:?} {}", other.log())) }
    });
    assert!(other.runs(), "{}", other.log());
    machine.has_driver(LOCAL);
    other.kill();
    machine.create(&claim("late", "32Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.running("late");
    machine.has_driver(LOCAL);
    machine.running("keeper");
    machine.nothing_else_is_mounted(&["keeper", "late"]);
    machine.delete_everything();
}
