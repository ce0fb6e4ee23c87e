//! The machine itself is started anew: no process, no mount and no device is left, and what is on disk is.

use serde_json::json;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, pod};

/// A pod that is started again by itself goes on with its data; one that is not has failed, and says so; what was to go
/// goes; what was being made is made.
#[test]
fn pods_and_volumes_after_a_reboot() {
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
        machine.written(pod);
    }
    machine.delete("pod/going");
    machine.create(&claim("late", "32Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.reboot(|_| {});
    machine.running("late");
    machine.says("pod/once", "/status/phase", "Failed");
    machine.until("the pod is started again", |machine| {
        let pod = machine.get("pod/ever").ok_or("it is not there")?;
        let status = &pod["status"]["containerStatuses"][0];
        let again = status["restartCount"].as_u64() >= Some(1) && status["state"].get("running").is_some();
        if again { Ok(()) } else { Err(format!("{:#}", pod["status"])) }
    });
    machine.gone("pod/going");
    for claim in ["ever", "once", "going", "late"] {
        machine.check_data(claim);
    }
    machine.nothing_else_is_mounted(&["ever", "late"]);
    machine.delete_everything();
}

/// The power fails while records are written that need not be durable: some are empty then.
#[test]
fn torn_records_of_containers_after_a_power_cut() {
    for torn in ["running.json", "order.json"] {
        let mut machine = Machine::new();
        machine.create(&claim("data", "32Mi"));
        let mut keeper = pod("keeper", "data", KEEPER);
        keeper["spec"]["restartPolicy"] = "Always".into();
        machine.create(&keeper);
        machine.written("keeper");
        machine.reboot(|machine| {
            let containers = machine.data().join("containers");
            let records = std::fs::read_dir(&containers).unwrap().flatten();
            let torn = records.map(|record| record.path().join(torn)).filter(|file| file.exists());
            let count = torn.inspect(|file| std::fs::write(file, b"").unwrap()).count();
            assert_eq!(count, 1, "one container");
        });
        machine.until("the pod is started again", |machine| {
            let pod = machine.get("pod/keeper").ok_or("it is not there")?;
            let status = &pod["status"]["containerStatuses"][0];
            let again =
                status["restartCount"].as_u64() >= Some(1) && status["state"].get("running").is_some();
            if again { Ok(()) } else { Err(format!("{torn}: {:#}", pod["status"])) }
        });
        machine.check_data("data");
        machine.delete_everything();
    }
}

/// What init containers prepare may be in memory: after a reboot they run again, before the others do.
#[test]
fn init_containers_run_again_after_a_reboot() {
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
    machine.written("keeper");
    // Not by an agent that comes anew.
    machine.restart();
    machine.ready();
    machine.running("keeper");
    assert_eq!(machine.field("pod/keeper", "/status/initContainerStatuses/0/restartCount"), "0");
    machine.reboot(|_| {});
    machine.says("pod/keeper", "/status/containerStatuses/0/restartCount", "1");
    machine.running("keeper");
    assert_eq!(machine.field("pod/keeper", "/status/initContainerStatuses/0/restartCount"), "1");
    assert_eq!(machine.field("pod/keeper", "/status/containerStatuses/0/restartCount"), "1");
    machine.check_data("data");
    machine.delete_everything();
}
