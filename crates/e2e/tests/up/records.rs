//! `vol_data.json` is missing or torn after an outage of `wharf up`: volumes of remaining pods are found again, and
//! those of deleted pods are still unmounted.

use std::path::{Path, PathBuf};

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, pod};

/// How a record is damaged.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Missing,
    Torn,
    Empty,
}

impl Damage {
    fn apply(self, record: &Path) {
        match self {
            Self::Missing => std::fs::remove_file(record).unwrap(),
            Self::Torn => {
                let bytes = std::fs::read(record).unwrap();
                std::fs::write(record, &bytes[..bytes.len() / 2]).unwrap();
            }
            Self::Empty => std::fs::write(record, b"").unwrap(),
        }
    }
}

#[test]
fn missing_or_torn_records_are_recovered() {
    let mut machine = Machine::new();
    machine.create(&claim("stays", "32Mi"));
    machine.create(&claim_of("goes", "300Mi", "local-xfs"));
    machine.create(&pod("stays", "stays", KEEPER));
    machine.wait_until_running("stays");
    for (damage, stage, share) in [
        (Damage::Missing, false, true),
        (Damage::Torn, false, true),
        (Damage::Missing, true, false),
        (Damage::Empty, true, false),
        (Damage::Torn, true, true),
        (Damage::Missing, true, true),
    ] {
        println!("{damage:?}, stage record: {stage}, pod record: {share}");
        machine.create(&pod("goes", "goes", KEEPER));
        machine.wait_until_running("goes");
        machine.kill();
        let kubelet = machine.data().join("kubelet");
        let of_pod = |record: &PathBuf| record.starts_with(kubelet.join("pods"));
        let damaged: Vec<PathBuf> = records(&kubelet)
            .into_iter()
            .filter(|record| if of_pod(record) { share } else { stage })
            .collect();
        assert_eq!(damaged.len(), 2 * (usize::from(stage) + usize::from(share)), "{damaged:?}");
        damaged.iter().for_each(|record| damage.apply(record));
        machine.restart();
        machine.delete("pod/goes");
        machine.wait_until_gone("pod/goes");
        machine.wait_until_running("stays");
        machine.wait_for_only_these_mounts(&["stays"]);
    }
    machine.check_data("stays");
    machine.check_data("goes");
    machine.delete_everything();
}

/// All records below a directory.
fn records(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(records(&path));
        } else if path.file_name().is_some_and(|name| name == "vol_data.json") {
            found.push(path);
        }
    }
    found
}
