//! The workload: users create and delete volumes and pods while processes are killed or separated from the API, requests
//! fail and the wall clock is set. Then faults
//! are disabled and everything must converge. After everything is deleted, nothing must be left.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use wharf_model::{PersistentVolumeClaim, Pod};

use crate::judge::LEFT_BEHIND;
use crate::testbed::{CLASSES, Testbed};

/// Number of claims at a time.
const SLOTS: usize = 3;
/// Number of user actions.
const EVENTS: usize = 8;
/// How long it may take until all pods run and all claims have the requested size, once no faults occur.
const CONVERGE_TIMEOUT: Duration = Duration::from_secs(1200);
/// How long it may take until nothing is left.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(1800);

/// What a user has in a slot.
#[derive(Debug, Clone, Default)]
struct Slot {
    claim: Option<String>,
    pod: Option<String>,
    count: usize,
}

/// Runs the workload of the testbed's seed and returns what went wrong.
pub(crate) async fn run(testbed: &mut Testbed) -> Result<(), String> {
    testbed.processes.start_all();
    testbed.sim.set_faults_enabled(true);
    let mut slots = vec![Slot::default(); SLOTS];
    let mut stopped: Vec<&'static str> = Vec::new();
    for event in 0..EVENTS {
        random_user_action(testbed, &mut slots).await;
        maybe_kill_process(testbed, &mut stopped).await;
        maybe_partition_process(testbed);
        maybe_set_wall_clock(testbed);
        let pause = testbed.sim.pick(&[30, 300, 3_000, 20_000]);
        let pause = testbed.sim.duration_up_to(Duration::from_millis(pause));
        sleep(pause).await;
        check_violations(testbed)?;
        if event % 4 == 3 {
            testbed.explained().await?;
        }
    }
    testbed.sim.note("faults disabled");
    testbed.sim.set_faults_enabled(false);
    testbed.processes.start_all();
    let converged = testbed.wait_until(CONVERGE_TIMEOUT, async |testbed| testbed.all_converged().await).await;
    check_violations(testbed)?;
    testbed.explained().await?;
    if !converged {
        return Err(format!("did not converge without faults: {}", testbed.waiting().await));
    }
    testbed.sim.note("deleting everything");
    for pod in testbed.all::<Pod>().await {
        testbed.delete::<Pod>(&pod.metadata.name).await;
    }
    for claim in testbed.all::<PersistentVolumeClaim>().await {
        testbed.delete::<PersistentVolumeClaim>(&claim.metadata.name).await;
    }
    let gone =
        testbed.wait_until(CLEANUP_TIMEOUT, async |testbed| testbed.leftovers().await.is_empty()).await;
    check_violations(testbed)?;
    match gone {
        true => Ok(()),
        false => Err(format!("{LEFT_BEHIND} {:#?}", testbed.leftovers().await)),
    }
}

fn check_violations(testbed: &Testbed) -> Result<(), String> {
    match testbed.sim.violations() {
        none if none.is_empty() => Ok(()),
        violations => Err(violations.join("; ")),
    }
}

/// May kill a random process shortly after an action began. The process is restarted at once, or later.
async fn maybe_kill_process(testbed: &mut Testbed, stopped: &mut Vec<&'static str>) {
    let sim = std::sync::Arc::clone(&testbed.sim);
    if !stopped.is_empty() && sim.below(3) == 0 {
        let name = stopped.remove(sim.below(stopped.len()));
        testbed.processes.start(name);
    }
    if sim.below(2) == 0 {
        return;
    }
    let soon = sim.pick(&[20, 150, 1_500]);
    sleep(sim.duration_up_to(Duration::from_millis(soon))).await;
    let name = sim.pick(&testbed.processes.names());
    testbed.processes.kill(name).await;
    if sim.below(2) == 0 {
        sleep(sim.duration_up_to(Duration::from_secs(2))).await;
        testbed.processes.start(name);
    } else if !stopped.contains(&name) {
        stopped.push(name);
    }
}

/// May separate a random process from the API for a while.
fn maybe_partition_process(testbed: &Testbed) {
    let sim = &testbed.sim;
    if sim.below(4) == 0 {
        let name = sim.pick(&testbed.processes.names());
        sim.partition(name, sim.duration_up_to(Duration::from_secs(60)));
    }
}

/// May set the wall clock forward or back.
fn maybe_set_wall_clock(testbed: &Testbed) {
    const MINUTE: i64 = 60_000;
    const YEAR: i64 = 365 * 24 * 60 * MINUTE;
    let sim = &testbed.sim;
    if sim.below(4) == 0 {
        // Not forward by a year: an old intent whose claim is gone keeps its volume, with reclaim policy Retain.
        sim.set_wall_clock_by(sim.pick(&[-YEAR, -60 * MINUTE, -2 * MINUTE, 2 * MINUTE, 60 * MINUTE]));
    }
}

/// A random user action.
async fn random_user_action(testbed: &Testbed, slots: &mut [Slot]) {
    let sim = &testbed.sim;
    let number = sim.below(slots.len());
    let slot = &mut slots[number];
    slot.count += 1;
    // Names are never reused, so no action waits for a deletion.
    let (new_claim, new_pod) = (format!("c{number}-{}", slot.count), format!("p{number}-{}", slot.count));
    let of = |claim: &str| json!({"persistentVolumeClaim": {"claimName": claim}});
    let random_node = || Some(sim.pick(sim.nodes)).filter(|_| sim.below(2) == 0);
    match (sim.below(9), slot.claim.clone(), slot.pod.clone()) {
        (chance, None, _) => {
            testbed.claim(&new_claim, sim.pick(&CLASSES).0).await;
            if chance > 2 {
                testbed.pod(&new_pod, of(&new_claim), random_node()).await;
                slot.pod = Some(new_pod);
            }
            slot.claim = Some(new_claim);
        }
        (_, Some(claim), None) => {
            testbed.pod(&new_pod, of(&claim), random_node()).await;
            slot.pod = Some(new_pod);
        }
        (0 | 1, Some(claim), Some(_)) => testbed.grow(&claim).await,
        (2 | 3, _, Some(old)) => {
            testbed.delete::<Pod>(&old).await;
            slot.pod = None;
        }
        (4, Some(claim), Some(old)) => {
            // The claim is protected until its pod is deleted.
            testbed.delete::<PersistentVolumeClaim>(&claim).await;
            testbed.delete::<Pod>(&old).await;
            (slot.claim, slot.pod) = (None, None);
        }
        (5, ..) => {
            let template = json!({"spec": {
                "storageClassName": sim.pick(&CLASSES).0, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            }});
            let volume = json!({"ephemeral": {"volumeClaimTemplate": template}});
            testbed.pod(&new_pod, volume, random_node()).await;
        }
        // Move the pod to another node.
        (_, Some(claim), Some(old)) => {
            testbed.delete::<Pod>(&old).await;
            testbed.pod(&new_pod, of(&claim), Some(sim.pick(sim.nodes))).await;
            slot.pod = Some(new_pod);
        }
    }
}
