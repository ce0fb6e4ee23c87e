//! `vol_data.json` missing or torn while `wharf up` is away: volumes of pods that stay are found again, and those of pods
//! that go are unmounted all the same.

use std::path::{Path, PathBuf};

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, pod};

/// What is done to a record.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Missing,
    Torn,
    Empty,
}

impl Harm {
    fn harm(self, record: &Path) {
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
fn records_are_made_up_for() {
    let mut machine = Machine::new();
    machine.create(&claim("stays", "32Mi"));
    machine.create(&claim_of("goes", "300Mi", "local-xfs"));
    machine.create(&pod("stays", "stays", KEEPER));
    machine.running("stays");
    for (harm, stage, share) in [
        (Harm::Missing, false, true),
        (Harm::Torn, false, true),
        (Harm::Missing, true, false),
        (Harm::Empty, true, false),
        (Harm::Torn, true, true),
        (Harm::Missing, true, true),
    ] {
        println!("{harm:?}, of the stage: {stage}, of the share: {share}");
        machine.create(&pod("goes", "goes", KEEPER));
        machine.running("goes");
        machine.kill();
        let kubelet = machine.data().join("kubelet");
        let of_pod = |record: &PathBuf| record.starts_with(kubelet.join("pods"));
        let harmed: Vec<PathBuf> = records(&kubelet)
            .into_iter()
            .filter(|record| if of_pod(record) { share } else { stage })
            .collect();
        assert_eq!(harmed.len(), 2 * (usize::from(stage) + usize::from(share)), "{harmed:?}");
        harmed.iter().for_each(|record| harm.harm(record));
        machine.restart();
        machine.delete("pod/goes");
        machine.gone("pod/goes");
        machine.running("stays");
        machine.nothing_else_is_mounted(&["stays"]);
    }
    machine.check_data("stays");
    machine.check_data("goes");
    machine.delete_everything();
}

/// All records beneath a directory.
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
