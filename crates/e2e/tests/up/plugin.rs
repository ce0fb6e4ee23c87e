//! Loss and recovery of a driver's registration, and of the Node object.

use std::os::unix::fs::MetadataExt as _;

use serde_json::json;

use crate::machine::{Machine, NODE};
use crate::objects::{KEEPER, claim, claim_of, field, pod};
use crate::scripted::{CLASS, DRIVER, Scripted};

const LOCAL: &str = "local.csi.wharf.dev";

#[test]
fn pod_is_unschedulable_where_driver_is_unregistered() {
    let mut machine = Machine::new();
    let mut scripted = Scripted::start(&mut machine);
    machine.create(&claim_of("first", "1Gi", CLASS));
    machine.create(&pod("first", "first", KEEPER));
    machine.wait_until_running("first");
    scripted.registrar().stop();
    machine.wait_until("the CSINode no longer lists the driver", |machine| {
        let node = machine.get("csinode/node-1").ok_or("the CSINode does not exist")?;
        let (drivers, ids) = (node["spec"]["drivers"].to_string(), machine.node_ids());
        if drivers.contains(DRIVER) || ids.contains(DRIVER) {
            Err(format!("{drivers} {ids}"))
        } else {
            Ok(())
        }
    });
    assert!(machine.node_ids().contains(LOCAL), "other drivers must stay registered");
    machine.create(&claim_of("second", "1Gi", CLASS));
    machine.create(&pod("second", "second", KEEPER));
    machine.wait_for_field("pvc/second", "/status/phase", "Bound");
    let reason = machine.wait_until("the pod reports why it is unschedulable", |machine| {
        let pod = machine.get("pod/second").ok_or("the pod does not exist")?;
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let scheduled = conditions.iter().find(|condition| condition["type"] == "PodScheduled");
        let unschedulable = scheduled.filter(|condition| {
            // The reason must not be the claim, which was unbound at first.
            condition["reason"] == "Unschedulable" && !field(condition, "/message").contains("unbound")
        });
        unschedulable.map(|condition| field(condition, "/message")).ok_or_else(|| format!("{conditions:?}"))
    });
    assert!(reason.contains("CSI driver") || reason.contains(DRIVER), "{reason}");
    assert_eq!(machine.field("pod/second", "/spec/nodeName"), "");
    // A pod with another driver's volume is scheduled, and a running pod keeps its volume.
    machine.create(&claim("other", "32Mi"));
    machine.create(&pod("other", "other", KEEPER));
    machine.wait_until_running("other");
    machine.wait_until_running("first");
    assert_eq!(machine.field("pod/second", "/spec/nodeName"), "");
    scripted.registrar().restart();
    machine.wait_for_driver(DRIVER);
    machine.wait_until_running("second");
    for claim in ["first", "second", "other"] {
        machine.check_data(claim);
    }
    machine.delete_everything();
    scripted.assert_no_volumes_left(&mut machine);
}

/// Deleting the Node also deletes its CSINode. Ours is recreated at once with its drivers, and volumes in use stay
/// attached.
#[test]
fn deleted_node_is_recreated_and_volumes_stay_attached() {
    let mut machine = Machine::new();
    let created = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}});
    let other = field(&machine.create(&created), "/metadata/uid");
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "other", "uid": other}]);
    machine.create(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": "other", "ownerReferences": owner}, "spec": {"drivers": []},
    }));
    machine.delete("node/other");
    machine.wait_until_gone("csinode/other");
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_written("keeper");
    let uid = |machine: &Machine, object: &str| machine.field(object, "/metadata/uid");
    let node = uid(&machine, "node/node-1");
    let attachment = crate::objects::name(&machine.list("va")[0]);
    let attached = uid(&machine, &format!("va/{attachment}"));
    machine.delete(&format!("node/{NODE}"));
    let now = machine.wait_until("the Node is recreated", |machine| {
        let now = uid(machine, "node/node-1");
        if now.is_empty() || now == node { Err(now) } else { Ok(now) }
    });
    machine.wait_until("the CSINode belongs to the new Node", |machine| {
        let object = machine.get("csinode/node-1").ok_or("there is none")?;
        let owner = field(&object, "/metadata/ownerReferences/0/uid");
        if owner == now { Ok(()) } else { Err(format!("{object:#}")) }
    });
    machine.wait_for_driver(LOCAL);
    machine.wait_until_ready();
    machine.wait_until_running("keeper");
    machine.wait_until("the node reports its volumes in use", |machine| {
        let used = machine.field("node/node-1", "/status/volumesInUse");
        if used.contains(LOCAL) { Ok(()) } else { Err(used) }
    });
    machine.wait_for_only_these_mounts(&["keeper"]);
    assert_eq!(uid(&machine, &format!("va/{attachment}")), attached, "the volume must never be detached");
    machine.check_data("data");
    machine.delete_everything();
}

/// The registry directory is emptied, or another registrar takes over the socket and exits.
#[test]
fn replaced_registration_socket_is_restored() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_running("keeper");
    let registry = machine.data().join("kubelet/plugins_registry");
    let sockets =
        || -> Vec<_> { std::fs::read_dir(&registry).unwrap().flatten().map(|entry| entry.path()).collect() };
    for socket in sockets() {
        std::fs::remove_file(socket).unwrap();
    }
    machine.wait_until("the socket is restored", |_| {
        if sockets().is_empty() { Err(String::new()) } else { Ok(()) }
    });
    machine.wait_for_driver(LOCAL);
    let (driver, place) = (machine.data().join("run/local.sock"), registry.display().to_string());
    let driver = driver.display().to_string();
    let mut args =
        vec!["sidecar", "--node", "--csi-address", &driver, "--kubelet-registration-path", &driver];
    args.extend(["--plugin-registration-path", &place, "--http-endpoint", "127.0.0.1:0"]);
    // The modification time is compared too, since an inode number may be reused.
    let which = || -> Vec<_> {
        let seen = sockets().into_iter().filter_map(|socket| std::fs::symlink_metadata(socket).ok());
        seen.map(|socket| (socket.ino(), socket.ctime(), socket.ctime_nsec())).collect()
    };
    let ours = which();
    assert_eq!(ours.len(), 1);
    let mut other = machine.start("wharf", &args, "other.log");
    machine.wait_until("the socket belongs to the other registrar", |_| {
        let now = which();
        if now.len() == 1 && now != ours { Ok(()) } else { Err(format!("{ours:?} {now:?} {}", other.log())) }
    });
    assert!(other.is_running(), "{}", other.log());
    machine.wait_for_driver(LOCAL);
    other.kill();
    machine.create(&claim("late", "32Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.wait_until_running("late");
    machine.wait_for_driver(LOCAL);
    machine.wait_until_running("keeper");
    machine.wait_for_only_these_mounts(&["keeper", "late"]);
    machine.delete_everything();
}
