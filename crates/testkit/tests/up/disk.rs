//! A disk that is full, and a pool that cannot be written to: said so, nothing lost, and all goes on afterwards.

use std::fs;
use std::path::Path;

use wharf_linux::FsType;
use wharf_testkit::{MIB, TestPool};

use crate::inside::Alone;
use crate::machine::Machine;
use crate::objects::{KEEPER, claim, pod};

/// What the kernel says then.
const FULL: &str = "No space left on device";

/// Takes all room of a disk, to the last block.
fn fill(file: &Path) {
    let mut balloon = fs::File::create(file).unwrap();
    let chunk = vec![1; 1 << 20];
    for size in [1 << 20, 4096] {
        while std::io::Write::write_all(&mut balloon, &chunk[..size]).is_ok() {}
    }
    // What is only reserved does not count.
    let _ = balloon.sync_all();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Objects and records are on the disk that is full; the pool is elsewhere.
#[test]
fn the_disk_of_wharf_up_is_full() {
    let pool = TestPool::new(FsType::Xfs, 2048 * MIB);
    let volumes = pool.path().join("pool");
    fs::create_dir(&volumes).unwrap();
    let disk = TestPool::new(FsType::Ext4, 256 * MIB);
    let balloon = disk.path().join("balloon");
    let mut machine = Machine::on(Some(disk), &["--pool", &volumes.display().to_string()]);
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.running("keeper");
    machine.create(&claim("wanted", "32Mi"));
    machine.says("pvc/wanted", "/status/phase", "Bound");
    fill(&balloon);
    // Whatever becomes of requests now: who was told that it is done finds it done.
    let mut told = Vec::new();
    for number in 0..20 {
        let name = format!("late-{number}");
        if machine.try_create(&claim(&name, "32Mi")).is_ok() {
            told.push(name);
        }
    }
    let pod_told = machine.try_create(&pod("wanted", "wanted", KEEPER)).is_ok();
    std::thread::sleep(std::time::Duration::from_secs(2));
    println!("on a full disk {} of 20 claims were made, and the pod: {pod_told}", told.len());
    assert!(machine.log().contains(FULL), "the full disk is not felt:\n{}", machine.log());
    assert_ne!(machine.field("pod/wanted", "/status/phase"), "Running", "it cannot have been written down");
    assert!(machine.get("pod/keeper").is_some(), "what is there can be read");
    if !machine.runs() {
        println!("wharf up has ended on a full disk");
    }
    machine.restart();
    std::thread::sleep(std::time::Duration::from_secs(2));
    fs::remove_file(&balloon).unwrap();
    if !machine.runs() {
        println!("wharf up does not start on a full disk");
        machine.restart();
    }
    machine.ready();
    if !pod_told {
        machine.create(&pod("wanted", "wanted", KEEPER));
    }
    machine.running("wanted");
    machine.running("keeper");
    for claim in &told {
        machine.says(&format!("pvc/{claim}"), "/status/phase", "Bound");
    }
    machine.check_data("data");
    machine.check_data("wanted");
    machine.delete_everything();
    machine.until("the pool is empty", |_| {
        let left = [names(&volumes.join("volumes")), names(&volumes.join("trash"))].concat();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

/// The pool's own disk is full: claims wait and say why.
#[test]
fn the_pool_is_full() {
    let pool = TestPool::new(FsType::Xfs, 512 * MIB);
    let volumes = pool.path().join("pool");
    fs::create_dir(&volumes).unwrap();
    let balloon = pool.path().join("balloon");
    let mut machine = Machine::with(&["--pool", &volumes.display().to_string()]);
    machine.create(&claim("data", "16Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.written("keeper");
    machine.delete("pod/keeper");
    machine.gone("pod/keeper");
    fill(&balloon);
    machine.create(&claim("late", "16Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.until("it is said that there is no room", |machine| {
        let events = machine.try_events("late", "ProvisioningFailed")?;
        let said = events.iter().any(|event| event.contains("ResourceExhausted"));
        if said { Ok(()) } else { Err(format!("{events:?}")) }
    });
    machine.restart();
    machine.ready();
    fs::remove_file(&balloon).unwrap();
    machine.running("late");
    machine.check_data("data");
    machine.delete_everything();
}

/// The pool's disk has met an error and takes no writes: claims wait, it is said why, and pods that run run on. When it is
/// mended all goes on.
#[test]
fn the_pool_is_read_only() {
    let alone = Alone::new();
    let pool = TestPool::new(FsType::Ext4, 512 * MIB);
    let volumes = pool.path().join("pool");
    fs::create_dir(&volumes).unwrap();
    let mut machine = Machine::with(&["--pool", &volumes.display().to_string()]);
    machine.create(&claim("data", "16Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.written("keeper");
    machine.create(&claim("going", "16Mi"));
    machine.create(&pod("going", "going", KEEPER));
    machine.written("going");
    pool.break_ext4();
    machine.create(&claim("late", "16Mi"));
    machine.create(&pod("late", "late", KEEPER));
    machine.delete("pod/going");
    let said = machine.until("it is said that it cannot be written to", |machine| {
        let events = machine.try_events("late", "ProvisioningFailed")?;
        events.first().cloned().ok_or_else(|| "no event".to_owned())
    });
    assert!(said.contains("the pool's file system is read-only"), "{said}");
    machine.running("keeper");
    // It does not begin on a pool that it cannot lock, and says so.
    machine.restart();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while machine.runs() {
        assert!(std::time::Instant::now() < until, "it does not end:\n{}", machine.log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(machine.log().trim_end().ends_with("Read-only file system (os error 30)"), "{}", machine.log());
    machine.reboot(|_| pool.mend_ext4());
    drop(alone);
    machine.running("late");
    machine.gone("pod/going");
    machine.check_data("data");
    machine.check_data("going");
    machine.delete_everything();
}
