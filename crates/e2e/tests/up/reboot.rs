//! Reboots: processes, mounts and devices are gone, and the disk keeps its content.

use serde_json::json;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, pod};

/// After a reboot, a pod with restartPolicy Always runs again with its data, a pod with restartPolicy Never has failed,
/// and pending deletions and creations complete.
#[test]
fn reboot_restarts_pods_with_their_data() {
    let mut machine = Machine::new();
    machine.create(&claim("always", "32Mi"));
    machine.create(&claim_of("never", "300Mi", "local-xfs"));
    machine.create(&claim("deleting", "32Mi"));
    let mut always = pod("always", "always", KEEPER);
    always["spec"]["restartPolicy"] = "Always".into();
    machine.create(&always);
    machine.create(&pod("never", "never", KEEPER));
    machine.create(&pod("deleting", "deleting", KEEPER));
    for pod in ["always", "never", "deleting"] {
        machine.wait_until_written(pod);
    }
    machine.delete("pod/deleting");
    machine.create(&claim("pending", "32Mi"));
    machine.create(&pod("pending", "pending", KEEPER));
    machine.reboot(|_| {});
    machine.wait_until_running("pending");
    machine.wait_for_field("pod/never", "/status/phase", "Failed");
    machine.wait_until("the pod is restarted", |machine| {
        let pod = machine.get("pod/always").ok_or("the pod does not exist")?;
        let status = &pod["status"]["containerStatuses"][0];
        let restarted =
            status["restartCount"].as_u64() >= Some(1) && status["state"].get("running").is_some();
        if restarted { Ok(()) } else { Err(format!("{:#}", pod["status"])) }
    });
    machine.wait_until_gone("pod/deleting");
    for claim in ["always", "never", "deleting", "pending"] {
        machine.check_data(claim);
    }
    machine.wait_for_only_these_mounts(&["always", "pending"]);
    machine.delete_everything();
}

/// Some container records are written without fsync: after a power cut they may be empty.
#[test]
fn empty_container_records_after_power_cut_are_tolerated() {
    for file_name in ["running.json", "order.json"] {
        let mut machine = Machine::new();
        machine.create(&claim("data", "32Mi"));
        let mut keeper = pod("keeper", "data", KEEPER);
        keeper["spec"]["restartPolicy"] = "Always".into();
        machine.create(&keeper);
        machine.wait_until_written("keeper");
        machine.reboot(|machine| {
            let containers = machine.data().join("containers");
            let records = std::fs::read_dir(&containers).unwrap().flatten();
            let files = records.map(|record| record.path().join(file_name)).filter(|file| file.exists());
            let count = files.inspect(|file| std::fs::write(file, b"").unwrap()).count();
            assert_eq!(count, 1, "there must be one container record");
        });
        machine.wait_until("the pod is restarted", |machine| {
            let pod = machine.get("pod/keeper").ok_or("the pod does not exist")?;
            let status = &pod["status"]["containerStatuses"][0];
            let restarted =
                status["restartCount"].as_u64() >= Some(1) && status["state"].get("running").is_some();
            if restarted { Ok(()) } else { Err(format!("{file_name}: {:#}", pod["status"])) }
        });
        machine.check_data("data");
        machine.delete_everything();
    }
}

/// Init containers may have written their results to memory, so they run again after a reboot.
#[test]
fn init_containers_rerun_after_reboot() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    let mut keeper = pod("keeper", "data", &format!("test -e /memory/ready || exit 1; {KEEPER}"));
    let memory = json!({"name": "memory", "mountPath": "/memory"});
    let spec = &mut keeper["spec"];
    spec["restartPolicy"] = "Always".into();
    spec["volumes"].as_array_mut().unwrap().push(json!({"name": "memory", "emptyDir": {"medium": "Memory"}}));
    spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(memory.clone());
    spec["initContainers"] = json!([{
        "name": "init", "image": "none", "command": ["touch", "/memory/ready"], "volumeMounts": [memory],
    }]);
    machine.create(&keeper);
    machine.wait_until_written("keeper");
    // A restart of the agent alone does not rerun them.
    machine.restart();
    machine.wait_until_ready();
    machine.wait_until_running("keeper");
    assert_eq!(machine.field("pod/keeper", "/status/initContainerStatuses/0/restartCount"), "0");
    machine.reboot(|_| {});
    machine.wait_for_field("pod/keeper", "/status/containerStatuses/0/restartCount", "1");
    machine.wait_until_running("keeper");
    assert_eq!(machine.field("pod/keeper", "/status/initContainerStatuses/0/restartCount"), "1");
    assert_eq!(machine.field("pod/keeper", "/status/containerStatuses/0/restartCount"), "1");
    machine.check_data("data");
    machine.delete_everything();
}
