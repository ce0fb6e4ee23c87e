//! What happens: users ask for volumes and pods, change their minds, and processes die. Then the storm is over, all of it
//! must come to rest; and when everything is deleted, nothing may be left.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use wharf_model::PersistentVolumeClaim;
use wharf_model::whole::Pod;

use crate::ground::{CLASSES, Ground};

/// Places for claims.
const SLOTS: usize = 3;
/// How much happens.
const EVENTS: usize = 8;
/// So long it may take until all pods run and all claims are as asked, once nothing fails any more.
const CALM: Duration = Duration::from_secs(1200);
/// And so long until nothing is left.
const END: Duration = Duration::from_secs(1800);

/// What users know of a place.
#[derive(Debug, Clone, Default)]
struct Slot {
    claim: Option<String>,
    pod: Option<String>,
    count: usize,
}

/// Tells the story of the ground's seed, and says what is wrong.
pub(crate) async fn tell(ground: &mut Ground) -> Result<(), String> {
    ground.processes.start_all();
    ground.sim.set_storm(true);
    let mut slots = vec![Slot::default(); SLOTS];
    let mut dead: Vec<&'static str> = Vec::new();
    for event in 0..EVENTS {
        happens(ground, &mut slots).await;
        somebody_dies(ground, &mut dead).await;
        let pause = ground.sim.pick(&[30, 300, 3_000, 20_000]);
        let pause = ground.sim.within(Duration::from_millis(pause));
        sleep(pause).await;
        safe(ground)?;
        if event % 4 == 3 {
            ground.explained().await?;
        }
    }
    ground.sim.note("the storm is over");
    ground.sim.set_storm(false);
    ground.processes.start_all();
    let calm = ground.within(CALM, async |ground| ground.all_is_done().await).await;
    safe(ground)?;
    ground.explained().await?;
    if !calm {
        return Err(format!("not done though nothing fails any more: {}", ground.waiting().await));
    }
    ground.sim.note("all is deleted");
    for pod in ground.all::<Pod>().await {
        ground.delete::<Pod>(&pod.metadata.name).await;
    }
    for claim in ground.all::<PersistentVolumeClaim>().await {
        ground.delete::<PersistentVolumeClaim>(&claim.metadata.name).await;
    }
    let gone = ground.within(END, async |ground| ground.left().await.is_empty()).await;
    safe(ground)?;
    match gone {
        true => Ok(()),
        false => Err(format!("left behind: {:#?}", ground.left().await)),
    }
}

fn safe(ground: &Ground) -> Result<(), String> {
    match ground.sim.violations() {
        none if none.is_empty() => Ok(()),
        violations => Err(violations.join("; ")),
    }
}

/// Perhaps: soon after, in the middle of what just began. Who died may be started again at once, or later.
async fn somebody_dies(ground: &mut Ground, dead: &mut Vec<&'static str>) {
    let sim = std::sync::Arc::clone(&ground.sim);
    if !dead.is_empty() && sim.roll(3) == 0 {
        let name = dead.remove(sim.roll(dead.len()));
        ground.processes.start(name);
    }
    if sim.roll(2) == 0 {
        return;
    }
    let soon = sim.pick(&[20, 150, 1_500]);
    sleep(sim.within(Duration::from_millis(soon))).await;
    let name = sim.pick(&ground.processes.names());
    ground.processes.kill(name).await;
    if sim.roll(2) == 0 {
        sleep(sim.within(Duration::from_secs(2))).await;
        ground.processes.start(name);
    } else if !dead.contains(&name) {
        dead.push(name);
    }
}

/// One thing happens.
async fn happens(ground: &Ground, slots: &mut [Slot]) {
    let sim = &ground.sim;
    let number = sim.roll(slots.len());
    let slot = &mut slots[number];
    slot.count += 1;
    // Names are used once, so nobody has to wait until one is gone.
    let (new_claim, new_pod) = (format!("c{number}-{}", slot.count), format!("p{number}-{}", slot.count));
    let of = |claim: &str| json!({"persistentVolumeClaim": {"claimName": claim}});
    let anywhere = || Some(sim.pick(sim.nodes)).filter(|_| sim.roll(2) == 0);
    match (sim.roll(9), slot.claim.clone(), slot.pod.clone()) {
        (chance, None, _) => {
            ground.claim(&new_claim, sim.pick(&CLASSES).0).await;
            if chance > 2 {
                ground.pod(&new_pod, of(&new_claim), anywhere()).await;
                slot.pod = Some(new_pod);
            }
            slot.claim = Some(new_claim);
        }
        (_, Some(claim), None) => {
            ground.pod(&new_pod, of(&claim), anywhere()).await;
            slot.pod = Some(new_pod);
        }
        (0 | 1, Some(claim), Some(_)) => ground.grow(&claim).await,
        (2 | 3, _, Some(old)) => {
            ground.delete::<Pod>(&old).await;
            slot.pod = None;
        }
        (4, Some(claim), Some(old)) => {
            // It is kept until its pod is gone.
            ground.delete::<PersistentVolumeClaim>(&claim).await;
            ground.delete::<Pod>(&old).await;
            (slot.claim, slot.pod) = (None, None);
        }
        (5, ..) => {
            let template = json!({"spec": {
                "storageClassName": sim.pick(&CLASSES).0, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            }});
            let volume = json!({"ephemeral": {"volumeClaimTemplate": template}});
            ground.pod(&new_pod, volume, anywhere()).await;
        }
        // It moves to another node.
        (_, Some(claim), Some(old)) => {
            ground.delete::<Pod>(&old).await;
            ground.pod(&new_pod, of(&claim), Some(sim.pick(sim.nodes))).await;
            slot.pod = Some(new_pod);
        }
    }
}
