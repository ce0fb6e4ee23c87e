//! Reboots: no process, mount or device is left, but the disk keeps its content.

use serde_json::json;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, pod};

/// A pod with restarts enabled continues with its data; one without has failed and reports it; pending deletions
/// and creations complete.
#[test]
fn reboot_restarts_pods_with_their_data() {
    let mut machine = Machine::new();
    machine.create(&claim("ever", "32Mi"));
    machine.create(&claim_of("once", "300Mi", "local-xfs"));
    machine.create(&claim("going", "32Mi"));
    let mut ever = pod("ever", "ever", KEEPER);
    ever["spec"]["restartPolicy"] = "Always".into();
    machine.create(&ever);
    machine.create(&pod("once", "once", KEEPER));
    machine.create(&pod("going", "going", KEEPER));
    for pod in ["ever", "once", "going"] {
        machine.wait_until_written(pod);
    }
    machine.delete("pod/going");
    machine.create(&claim("late", "32Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.reboot(|_| {});
    machine.wait_until_running("late");
    machine.wait_for_field("pod/once", "/status/phase", "Failed");
    machine.wait_until("the pod is restarted", |machine| {
        let pod = machine.get("pod/ever").ok_or("the pod does not exist")?;
        let status = &pod["status"]["containerStatuses"][0];
        let again = status["restartCount"].as_u64() >= Some(1) && status["state"].get("running").is_some();
        if again { Ok(()) } else { Err(format!("{:#}", pod["status"])) }
    });
    machine.wait_until_gone("pod/going");
    for claim in ["ever", "once", "going", "late"] {
        machine.check_data(claim);
    }
    machine.wait_for_only_these_mounts(&["ever", "late"]);
    machine.delete_everything();
}

/// A power cut while records without durability guarantees are written: some of them are empty afterwards.
#[test]
fn torn_container_records_after_power_cut_are_tolerated() {
    for torn in ["running.json", "order.json"] {
        let mut machine = Machine::new();
        machine.create(&claim("data", "32Mi"));
        let mut keeper = pod("keeper", "data", KEEPER);
        keeper["spec"]["restartPolicy"] = "Always".into();
        machine.create(&keeper);
        machine.wait_until_written("keeper");
        machine.reboot(|machine| {
            let containers = machine.data().join("containers");
            let records = std::fs::read_dir(&containers).unwrap().flatten();
            let torn = records.map(|record| record.path().join(torn)).filter(|file| file.exists());
            let count = torn.inspect(|file| std::fs::write(file, b"").unwrap()).count();
            assert_eq!(count, 1, "there must be one container record");
        });
        machine.wait_until("the pod is restarted", |machine| {
            let pod = machine.get("pod/keeper").ok_or("the pod does not exist")?;
            let status = &pod["status"]["containerStatuses"][0];
            let again =
                status["restartCount"].as_u64() >= Some(1) && status["state"].get("running").is_some();
            if again { Ok(()) } else { Err(format!("{torn}: {:#}", pod["status"])) }
        });
        machine.check_data("data");
        machine.delete_everything();
    }
}

/// The results of init containers may be in memory: after a reboot they run again before the others.
#[test]
fn init_containers_rerun_after_reboot() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    let mut keeper = pod("keeper", "data", &format!("test -e /memory/made || exit 1; {KEEPER}"));
    let memory = json!({"name": "memory", "mountPath": "/memory"});
    let spec = &mut keeper["spec"];
    spec["restartPolicy"] = "Always".into();
    spec["volumes"].as_array_mut().unwrap().push(json!({"name": "memory", "emptyDir": {"medium": "Memory"}}));
    spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(memory.clone());
    spec["initContainers"] = json!([{
        "name": "maker", "image": "none", "command": ["touch", "/memory/made"], "volumeMounts": [memory],
    }]);
    machine.create(&keeper);
    machine.wait_until_written("keeper");
    // A mere restart of the agent does not rerun them.
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
