//! A panic ends only the unit of work in which it occurs. `WHARF_FAULT` injects the panics. `hack/test.sh dist` runs
//! these tests with the binary of the profile `dist`.

use std::collections::BTreeMap;
use std::process::Command;

use wharf_testkit::{built_program, free_address};

use crate::machine::{Machine, NODE, TEMP_DIR};
use crate::objects::{KEEPER, claim, pod};

/// The injected panics.
const FAULTS: [&str; 10] = [
    // Units of work: reconciles, a handled change, API requests, a scheduling attempt, a pod sync.
    "panic:binder:name: \"affected\"",
    "panic:provisioner:\"pvc-",
    "panic:ephemeral:default/affected",
    "panic:apiserver:GET /api/v1/namespaces/default/pods/absent",
    "panic:apiserver:WATCH persistentvolumeclaims",
    "panic:scheduler:default/affected",
    "panic:pods:\"",
    // Components at their start: a controller, a sidecar role, the intent journal.
    "panic:volume binder:controller",
    "panic:provisioner:local.csi.wharf.dev",
    "panic:journal:tasks",
];

impl Machine {
    /// The number of panics that `wharf up` has caught, by component.
    fn caught_panics(&self) -> Result<BTreeMap<String, u64>, String> {
        let sample = |line: &str| {
            let rest = line.strip_prefix("wharf_panics_total{part=\"process\",component=\"")?;
            let (component, count) = rest.split_once("\"} ")?;
            Some((component.to_owned(), count.parse().ok()?))
        };
        Ok(self.page("/metrics")?.lines().filter_map(sample).collect())
    }
}

#[test]
fn panics_in_units_of_work_stop_neither_wharf_up_nor_other_work() {
    let mut machine = Machine::with_faults(&FAULTS);
    machine.create(&claim("affected", "32Mi"));
    machine.create(&pod("affected", "affected", KEEPER));
    machine.create(&claim("other", "32Mi"));
    machine.create(&pod("other", "other", KEEPER));
    let error = machine.try_get("pod/absent").unwrap_err();
    assert!(error.contains("the request caused a panic"), "{error}");
    assert_eq!(machine.try_get("pod/absent"), Ok(None), "the next request must succeed");
    machine.wait_until_written("other");
    machine.wait_until_written("affected");
    let caught = machine.wait_until("all faults are injected", |machine| {
        let caught = machine.caught_panics()?;
        if caught.values().sum::<u64>() == FAULTS.len() as u64 {
            Ok(caught)
        } else {
            Err(format!("{caught:?}"))
        }
    });
    let once = ["binder", "ephemeral", "journal", "pods", "scheduler", "volume binder"];
    let mut expected = BTreeMap::from(once.map(|component| (component.to_owned(), 1)));
    expected.extend(["apiserver", "provisioner"].map(|component| (component.to_owned(), 2)));
    assert_eq!(caught, expected);
    let log = machine.log();
    let logged = log.lines().filter(|line| line.contains("caught panic") && line.contains("WHARF_FAULT"));
    assert_eq!(logged.count(), FAULTS.len(), "{log}");
    machine.delete_everything();
}

/// The node agent can rebuild the state of its pods only when the process starts.
#[test]
fn panic_of_non_restartable_component_ends_wharf_up_and_names_it() {
    let data = tempfile::Builder::new().prefix("wharf-up-").tempdir_in(TEMP_DIR).unwrap();
    let output = Command::new(built_program("wharf"))
        .args(["up", "--no-local", "--csi", "unix:///run/no-such-driver.sock", "--node-name", NODE])
        .args(["--listen", &free_address(), "--data-dir"])
        .arg(data.path())
        .env("WHARF_FAULT", "panic:pod manager:")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("pod manager: panicked: injected by WHARF_FAULT"), "{errors}");
}
