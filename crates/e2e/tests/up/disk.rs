//! A full disk and a read-only pool: the error is reported, no data is lost, and everything continues afterwards.

use std::fs;
use std::path::Path;

use serde_json::json;
use wharf_linux::FsType;
use wharf_testkit::{MIB, TestPool, built_program};

use crate::machine::Machine;
use crate::namespaces::ExclusiveAccess;
use crate::objects::{KEEPER, claim, pod};

/// The kernel's error message.
const FULL: &str = "No space left on device";

/// Fills a disk to the last block.
fn fill(file: &Path) {
    let mut filler = fs::File::create(file).unwrap();
    let chunk = vec![1; 1 << 20];
    for size in [1 << 20, 4096] {
        while std::io::Write::write_all(&mut filler, &chunk[..size]).is_ok() {}
    }
    // Delayed allocation has only reserved blocks; sync writes them.
    let _ = filler.sync_all();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The data directory is on the full disk; the pool is on another disk.
#[test]
fn full_data_disk_loses_no_acknowledged_write() {
    let pool = TestPool::new(FsType::Xfs, 2048 * MIB);
    let volumes = pool.path().join("pool");
    fs::create_dir(&volumes).unwrap();
    let disk = TestPool::new(FsType::Ext4, 256 * MIB);
    let filler = disk.path().join("filler");
    let mut machine = Machine::on(Some(disk), &["--pool", &volumes.display().to_string()]);
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_running("keeper");
    machine.create(&claim("wanted", "32Mi"));
    machine.wait_for_field("pvc/wanted", "/status/phase", "Bound");
    fill(&filler);
    // Requests may fail now, but every acknowledged write must survive.
    let mut acknowledged = Vec::new();
    for number in 0..20 {
        let name = format!("late-{number}");
        if machine.try_create(&claim(&name, "32Mi")).is_ok() {
            acknowledged.push(name);
        }
    }
    let pod_acknowledged = machine.try_create(&pod("wanted", "wanted", KEEPER)).is_ok();
    std::thread::sleep(std::time::Duration::from_secs(2));
    println!(
        "on a full disk {} of 20 claims were created; pod created: {pod_acknowledged}",
        acknowledged.len()
    );
    assert!(machine.log().contains(FULL), "the log does not mention the full disk:\n{}", machine.log());
    assert_ne!(machine.field("pod/wanted", "/status/phase"), "Running", "the pod cannot have been stored");
    assert!(machine.get("pod/keeper").is_some(), "existing objects must be readable");
    if !machine.is_running() {
        println!("wharf up exited on the full disk");
    }
    machine.restart();
    std::thread::sleep(std::time::Duration::from_secs(2));
    fs::remove_file(&filler).unwrap();
    if !machine.is_running() {
        println!("wharf up does not start on the full disk");
        machine.restart();
    }
    machine.wait_until_ready();
    if !pod_acknowledged {
        machine.create(&pod("wanted", "wanted", KEEPER));
    }
    machine.wait_until_running("wanted");
    machine.wait_until_running("keeper");
    for claim in &acknowledged {
        machine.wait_for_field(&format!("pvc/{claim}"), "/status/phase", "Bound");
    }
    machine.check_data("data");
    machine.check_data("wanted");
    machine.delete_everything();
    machine.wait_until("the pool is empty", |_| {
        let left = [names(&volumes.join("volumes")), names(&volumes.join("trash"))].concat();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

/// The pool's own disk is full: claims stay pending and report why.
#[test]
fn full_pool_leaves_claims_pending_with_reason() {
    let pool = TestPool::new(FsType::Xfs, 512 * MIB);
    let volumes = pool.path().join("pool");
    fs::create_dir(&volumes).unwrap();
    let filler = pool.path().join("filler");
    let mut machine = Machine::with(&["--pool", &volumes.display().to_string()]);
    machine.create(&claim("data", "16Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_written("keeper");
    machine.delete("pod/keeper");
    machine.wait_until_gone("pod/keeper");
    fill(&filler);
    machine.create(&claim("late", "16Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.wait_until("an event reports that the pool is full", |machine| {
        let events = machine.try_events("late", "ProvisioningFailed")?;
        let reported = events.iter().any(|event| event.contains("ResourceExhausted"));
        if reported { Ok(()) } else { Err(format!("{events:?}")) }
    });
    machine.restart();
    machine.wait_until_ready();
    fs::remove_file(&filler).unwrap();
    machine.wait_until_running("late");
    machine.check_data("data");
    machine.delete_everything();
}

/// The kernel has made the pool's file system read-only after an error: claims stay pending and report why, and running
/// pods continue. After a repair the claims are provisioned.
#[test]
fn read_only_pool_leaves_claims_pending_until_repaired() {
    let exclusive = ExclusiveAccess::new();
    let pool = TestPool::new(FsType::Ext4, 512 * MIB);
    let volumes = pool.path().join("pool");
    fs::create_dir(&volumes).unwrap();
    let mut machine = Machine::with(&["--pool", &volumes.display().to_string()]);
    machine.create(&claim("data", "16Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_written("keeper");
    machine.create(&claim("going", "16Mi"));
    machine.create(&pod("going", "going", KEEPER));
    machine.wait_until_written("going");
    pool.break_ext4();
    machine.create(&claim("late", "16Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.delete("pod/going");
    let event = machine.wait_until("an event reports that the pool is read-only", |machine| {
        let events = machine.try_events("late", "ProvisioningFailed")?;
        events.first().cloned().ok_or_else(|| "no event".to_owned())
    });
    assert!(event.contains("the pool's file system is read-only"), "{event}");
    machine.wait_until_running("keeper");
    // `wharf up` cannot lock a read-only pool: it exits with an error.
    machine.restart();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while machine.is_running() {
        assert!(std::time::Instant::now() < deadline, "wharf up did not exit:\n{}", machine.log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(machine.log().trim_end().ends_with("Read-only file system (os error 30)"), "{}", machine.log());
    machine.reboot(|_| pool.repair_ext4());
    drop(exclusive);
    machine.wait_until_running("late");
    machine.wait_until_gone("pod/going");
    machine.check_data("data");
    machine.check_data("going");
    machine.delete_everything();
}

/// Writes until the volume, or the pool, has no space.
const FILLER: &str = "dd if=/dev/zero of=/data/fill bs=1M conv=fsync || true; sync; echo filled; \
    trap 'exit 0' TERM; sleep 100000 & wait $!";

/// U-1 and U-2: with overcommit a pod fills the pool itself. Everything that frees space works, and the pool can grow.
#[test]
fn pool_filled_by_a_pod_is_emptied_and_grown() {
    let mut machine = Machine::with(&["--pool-size", "700Mi", "--overcommit", "4"]);
    machine.create(&claim("other", "16Mi"));
    machine.create(&pod("keeper", "other", KEEPER));
    machine.wait_until_written("keeper");
    machine.create(&claim("large", "1500Mi"));
    machine.create(&pod("filler", "large", FILLER));
    machine.wait_until("the pool is full", |machine| {
        match machine.container_logs("filler").contains("filled") {
            true => Ok(()),
            false => Err(machine.container_logs("filler")),
        }
    });
    machine.delete("pod/keeper");
    machine.wait_until_gone("pod/keeper");
    machine.delete("pod/filler");
    machine.wait_until_gone("pod/filler");
    machine.delete("pvc/large");
    machine.wait_until_gone("pvc/large");
    machine.wait_until("the volume is deleted", |machine| {
        let left: Vec<_> =
            machine.try_list("pv")?.iter().map(|pv| pv["spec"]["claimRef"]["name"].clone()).collect();
        if left == [json!("other")] { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let grow = |size: &str| {
        let wharf = built_program("wharf").display().to_string();
        let pool = machine.data().join("pool").display().to_string();
        let command = format!("{wharf} local grow --pool {pool} --size {size} 2>&1; echo status $?");
        machine.run(&["sh", "-c", &command])
    };
    let output = grow("1Gi");
    assert!(output.contains("status 0"), "{output}");
    let output = grow("800Mi");
    assert!(output.contains("cannot shrink") && output.contains("status 1"), "{output}");
    machine.create(&pod("keeper", "other", KEEPER));
    machine.wait_until_running("keeper");
    machine.check_data("other");
    let wharf = built_program("wharf").display().to_string();
    let data = machine.data().display().to_string();
    machine.run(&["sh", "-c", &format!("{wharf} down --data-dir {data} --timeout 1m 2>&1")]);
    assert!(!machine.is_running());
}

/// N-H2 and U-2: by default the pool promises no more than it has. A pod that fills its volume, and a disk beneath the
/// pool that is full, are no I/O error in another volume.
#[test]
fn full_disk_beneath_the_pool_harms_no_volume() {
    let disk = TestPool::new(FsType::Ext4, 2048 * MIB);
    let filler = disk.path().join("filler");
    let mut machine = Machine::on(Some(disk), &["--pool-size", "800Mi"]);
    machine.create(&claim("large", "1500Mi"));
    machine.wait_until("an event reports that the claim is too large", |machine| {
        let events = machine.try_events("large", "ProvisioningFailed")?;
        let reported = events.iter().any(|event| event.contains("wharf local grow"));
        if reported { Ok(()) } else { Err(format!("{events:?}")) }
    });
    machine.delete("pvc/large");
    machine.create(&claim("data", "200Mi"));
    machine.create(&claim("filled", "200Mi"));
    machine.create(&pod("filler", "filled", KEEPER));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_written("keeper");
    machine.wait_until_written("filler");
    fill(&filler);
    let in_pod = |name: &str, script: &str| {
        let process = machine.process_of(name);
        machine.run(&["sh", "-c", &format!("cd /proc/{process}/root/data && ({script}) 2>&1; true")])
    };
    let output = in_pod("filler", "dd if=/dev/zero of=fill bs=1M conv=fsync; sync");
    assert!(output.contains(FULL) && !output.contains("Input/output error"), "{output}");
    let output =
        in_pod("keeper", "dd if=/dev/urandom of=late bs=1M count=100 conv=fsync && sha256sum -c sum");
    assert!(output.contains("blob: OK"), "{output}");
    fs::remove_file(&filler).unwrap();
    machine.delete_everything();
}

/// N-H2: scratch space on the node's disk has a limit.
#[test]
fn pod_over_the_limit_of_its_empty_dir_is_evicted() {
    let mut machine = Machine::with(&["--pool-size", "400Mi"]);
    let scratch = |name: &str, bytes: &str| {
        let script = format!("head -c {bytes} /dev/urandom > /scratch/file; sync; sleep 100000");
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "terminationGracePeriodSeconds": 600,
            "containers": [{"name": "c", "image": "i", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "4Mi"}}],
        }})
    };
    machine.create(&scratch("modest", "3000000"));
    machine.create(&scratch("greedy", "6000000"));
    machine.wait_for_field("pod/greedy", "/status/reason", "Evicted");
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"4Mi\". ";
    assert_eq!(machine.field("pod/greedy", "/status/message"), message);
    assert_eq!(machine.field("pod/greedy", "/status/phase"), "Failed");
    let events = machine.try_events("greedy", "Evicted").unwrap();
    assert!(events.iter().any(|event| event.contains(message)), "{events:?}");
    // Its files are removed, although the pod still exists.
    let uid = machine.field("pod/greedy", "/metadata/uid");
    let directory =
        machine.data().join("kubelet/pods").join(uid).join("volumes/kubernetes.io~empty-dir/scratch");
    machine.wait_until("the volume is removed", |_| {
        if directory.exists() { Err("it exists".into()) } else { Ok(()) }
    });
    machine.wait_until_running("modest");
    for pod in ["modest", "greedy"] {
        machine.delete(&format!("pod/{pod}"));
    }
}
