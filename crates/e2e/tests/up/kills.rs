//! kill -9 of `wharf up` at every boundary of the six flows, and at random moments.

use std::time::{Duration, Instant};

use serde_json::Value;
use wharf_testkit::SeededRng;

use crate::machine::Machine;
use crate::objects::{
    DEVICE_KEEPER, KEEPER, PUBLISHED_DEVICES, STAGED_DEVICES, block, claim, claim_of, name, pod,
    pod_with_device, restored, sized, snapshot,
};

/// A moment in a flow: its name, and whether it was reached. While the API does not respond, it was not.
type Boundary = (&'static str, fn(&Machine) -> bool);

/// How long it may take to reach the next boundary.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The number of kills followed by another boundary, and how many of them are known to have happened before it.
#[derive(Default)]
struct Kills {
    followed: usize,
    in_time: usize,
}

impl Kills {
    /// Kills `wharf up` at each of these boundaries as soon as it is reached, and restarts it.
    fn at(&mut self, machine: &mut Machine, boundaries: &[Boundary]) {
        for (index, (boundary, has_come)) in boundaries.iter().enumerate() {
            let until = Instant::now() + TIMEOUT;
            let mut had_not_come = false;
            while !has_come(machine) {
                // If the running process has not reached the boundary, the previous one had not either.
                had_not_come = had_not_come || machine.answers() && !has_come(machine);
                assert!(machine.is_running(), "{boundary}: wharf up exited");
                assert!(Instant::now() < until, "{boundary}: not reached in time");
                std::thread::sleep(Duration::from_micros(200));
            }
            machine.restart();
            println!("killed when {boundary}; the last kill was before that: {had_not_come}");
            if index > 0 {
                self.followed += 1;
                self.in_time += usize::from(had_not_come);
            }
        }
    }

    /// Late kills all meet the same state and prove little.
    fn assert_in_time(&self) {
        let Self { followed, in_time } = self;
        println!("{in_time} of {followed} kills came before the next boundary");
        assert!(in_time * 2 >= *followed, "only {in_time} of {followed} kills came before the next boundary");
    }
}

impl Machine {
    fn is_mounted(&self, end: &str) -> bool {
        self.mounts().iter().any(|path| path.ends_with(end))
    }

    fn is_mapped(&self) -> bool {
        self.mounts().iter().any(|path| path.to_string_lossy().contains("volumeDevices/publish"))
    }

    fn field_is(&self, object: &str, pointer: &str, wanted: &str) -> bool {
        self.field(object, pointer) == wanted
    }

    fn answers(&self) -> bool {
        self.try_list("node").is_ok()
    }

    fn some(&self, kind: &str) -> bool {
        self.try_list(kind).is_ok_and(|all| !all.is_empty())
    }

    /// Whether the API reports that no object exists.
    fn none(&self, kind: &str) -> bool {
        self.try_list(kind).is_ok_and(|all| all.is_empty())
    }

    /// Whether the API reports that an object is deleted or being deleted.
    fn is_deleting(&self, object: &str) -> bool {
        self.try_get(object)
            .is_ok_and(|found| found.is_none_or(|found| !found["metadata"]["deletionTimestamp"].is_null()))
    }

    /// Whether the node's status lists a volume.
    fn node_lists(&self, list: &str) -> bool {
        self.volumes_of_node(list).is_some_and(|volumes| volumes > 0)
    }

    fn node_lists_none(&self, list: &str) -> bool {
        self.volumes_of_node(list) == Some(0)
    }

    /// `None` if the API does not respond.
    fn volumes_of_node(&self, list: &str) -> Option<usize> {
        let node = self.try_get("node/node-1").ok()??;
        Some(node["status"][list].as_array().map_or(0, Vec::len))
    }

    /// How many pod volumes have a record for cleanup.
    fn records(&self) -> usize {
        let volumes = self.names("kubelet/pods").into_iter().flat_map(|pod| {
            let volumes = format!("kubelet/pods/{pod}/volumes/kubernetes.io~csi");
            self.names(&volumes).into_iter().map(move |volume| format!("{volumes}/{volume}"))
        });
        volumes.filter(|volume| self.names(volume).iter().any(|name| name == "vol_data.json")).count()
    }
}

const PROVISION: [Boundary; 5] = [
    ("the claim exists", |m| m.some("pvc")),
    ("the volume is being created", |m| !m.names("pool/volumes").is_empty()),
    ("the PersistentVolume is there", |m| m.some("pv")),
    ("the volume is bound", |m| {
        m.try_list("pv").is_ok_and(|all| all.iter().any(|pv| pv["status"]["phase"] == "Bound"))
    }),
    ("the claim is bound", |m| m.field_is("pvc/data", "/status/phase", "Bound")),
];

const TO_ATTACHED: [Boundary; 7] = [
    ("the pod exists", |m| m.some("pod")),
    ("the pod has a node", |m| m.field_is("pod/keeper", "/spec/nodeName", "node-1")),
    ("the node reports the volume as in use", |m| m.node_lists("volumesInUse")),
    ("the attachment exists", |m| m.some("va")),
    ("the volume is attached", |m| {
        m.try_list("va")
            .is_ok_and(|all| all.iter().any(|attachment| attachment["status"]["attached"] == true))
    }),
    ("the node status lists the attachment", |m| m.node_lists("volumesAttached")),
    ("the volume has its device", |m| !m.devices().is_empty()),
];

const TO_MOUNTED: [Boundary; 3] = [
    ("the volume is staged", |m| m.is_mounted("globalmount")),
    ("the volume is to be published", |m| m.records() > 0),
    ("the volume is published", |m| m.is_mounted("mount")),
];

const TO_MAPPED: [Boundary; 3] = [
    ("the device is staged", |m| !m.names(STAGED_DEVICES).is_empty()),
    ("the device is to be published", |m| !m.names(PUBLISHED_DEVICES).is_empty()),
    ("the device is published", |m| m.is_mapped()),
];

const TO_RUNNING: [Boundary; 2] = [
    ("the container record exists", |m| !m.names("containers").is_empty()),
    ("the pod runs", |m| m.field_is("pod/keeper", "/status/phase", "Running")),
];

const SNAPSHOT: [Boundary; 4] = [
    ("the snapshot exists", |m| m.some("vs")),
    ("the snapshot has its content", |m| m.some("vsc")),
    ("the snapshot is in the pool", |m| !m.names("pool/snapshots").is_empty()),
    ("the snapshot is ready", |m| m.field_is("vs/cut", "/status/readyToUse", "true")),
];

const EXPANSION: [Boundary; 3] = [
    ("the expansion is requested", |m| m.field_is("pvc/data", "/spec/resources/requests/storage", "400Mi")),
    ("the volume has grown", |m| {
        m.try_list("pv").is_ok_and(|all| all.iter().any(|pv| pv["spec"]["capacity"]["storage"] == "400Mi"))
    }),
    ("the claim has grown", |m| m.field_is("pvc/data", "/status/capacity/storage", "400Mi")),
];

const FROM_RUNNING: [Boundary; 1] = [("the pod is being deleted", |m| m.is_deleting("pod/keeper"))];

const FROM_MOUNTED: [Boundary; 3] = [
    ("the volume is unpublished", |m| !m.is_mounted("mount")),
    ("the volume's record is removed", |m| m.records() == 0),
    ("the volume is unstaged", |m| !m.is_mounted("globalmount")),
];

const FROM_MAPPED: [Boundary; 2] = [
    ("the device is unpublished", |m| !m.is_mapped()),
    ("the device is unstaged", |m| m.names(STAGED_DEVICES).is_empty()),
];

const FROM_ATTACHED: [Boundary; 5] = [
    ("the device is released", |m| m.devices().is_empty()),
    ("the pod is gone", |m| m.none("pod")),
    ("the node no longer uses the volume", |m| m.node_lists_none("volumesInUse")),
    ("the volume is to be detached", |m| {
        m.try_list("va").is_ok_and(|all| all.iter().all(|va| !va["metadata"]["deletionTimestamp"].is_null()))
    }),
    ("the volume is detached", |m| m.none("va")),
];

const DELETION: [Boundary; 5] = [
    ("the claim is gone", |m| m.none("pvc")),
    ("the volume is released", |m| {
        m.try_list("pv").is_ok_and(|all| all.iter().all(|pv| pv["status"]["phase"] == "Released"))
    }),
    ("the volume is being deleted", |m| m.names("pool/volumes").is_empty()),
    ("the trash is empty", |m| m.names("pool/trash").is_empty()),
    ("the PersistentVolume is gone", |m| m.none("pv")),
];

#[test]
fn kill_at_every_boundary_recovers() {
    let claim = |name: &str, size: &str| claim_of(name, size, "local-xfs");
    kill_through_lifecycle(claim, &pod("keeper", "data", KEEPER), &TO_MOUNTED, &FROM_MOUNTED);
}

#[test]
fn kill_at_every_boundary_of_block_volume_recovers() {
    let claim = |name: &str, size: &str| block(self::claim(name, size));
    kill_through_lifecycle(
        claim,
        &pod_with_device("keeper", "data", DEVICE_KEEPER),
        &TO_MAPPED,
        &FROM_MAPPED,
    );
}

/// The lifecycle of a volume, with a kill at each boundary.
fn kill_through_lifecycle(
    claim: fn(&str, &str) -> Value,
    keeper: &Value,
    stage: &[Boundary],
    unstage: &[Boundary],
) {
    let (mut machine, mut kills) = (Machine::new(), Kills::default());
    machine.create(&claim("data", "300Mi"));
    kills.at(&mut machine, &PROVISION);
    machine.create(keeper);
    kills.at(&mut machine, &[&TO_ATTACHED, stage, &TO_RUNNING].concat());
    machine.wait_until_running("keeper");
    machine.wait_for_only_these_mounts(&["keeper"]);
    machine.wait_until_written("keeper");
    machine.create(&snapshot("cut", "data"));
    kills.at(&mut machine, &SNAPSHOT);
    machine.patch("pvc/data", &sized("400Mi"));
    kills.at(&mut machine, &EXPANSION);
    machine.check_data("data");
    machine.wait_until_running("keeper");
    machine.delete("pod/keeper");
    kills.at(&mut machine, &[&FROM_RUNNING, unstage, &FROM_ATTACHED].concat());
    machine.check_data("data");
    machine.create(&restored(claim("again", "400Mi"), "cut"));
    machine.check_data("again");
    machine.delete("pvc/again");
    machine.wait_until_gone("pvc/again");
    machine.wait_until("the copy is gone", |machine| {
        if machine.try_list("pv")?.len() == 1 { Ok(()) } else { Err("not yet".to_owned()) }
    });
    machine.delete("pvc/data");
    kills.at(&mut machine, &DELETION);
    machine.delete("vs/cut");
    kills.at(
        &mut machine,
        &[
            ("the snapshot is gone", |m| m.none("vs")),
            ("the content is gone", |m| m.none("vsc")),
            ("the pool is empty", |m| m.names("pool/snapshots").is_empty()),
        ],
    );
    machine.wait_until_ready();
    machine.wait_until_nothing_is_left();
    kills.assert_in_time();
}

/// Number of kills at random moments.
const KILLS: usize = 30;
/// Upper limit of the time between an action and a kill, in milliseconds.
const SOON: usize = 400;
const CLAIMS: usize = 4;

/// Creates and deletes claims and pods while `wharf up` is killed repeatedly. `UP_SEED` repeats the choices of a
/// run.
#[test]
#[ignore = "takes long, and another seed each time: make test-all"]
fn random_kills_recover() {
    let mut rng = SeededRng::from_env("UP_SEED");
    let mut machine = Machine::new();
    for number in 0..KILLS {
        let slot = rng.below(CLAIMS);
        let (data, keeper) = (format!("data-{slot}"), format!("keeper-{slot}"));
        let (has_claim, has_pod) = (machine.is_live("pvc", &data), machine.is_live("pod", &keeper));
        match (has_claim, has_pod, rng.below(4)) {
            (None, ..) => {
                machine.create(&claim(&data, "32Mi"));
                machine.create(&pod(&keeper, &data, KEEPER));
            }
            // An object being deleted keeps its name until it is gone.
            (Some(false), ..) | (_, Some(false), _) => {}
            (Some(true), None, 0) => machine.delete(&format!("pvc/{data}")),
            (Some(true), None, _) => drop(machine.create(&pod(&keeper, &data, KEEPER))),
            (Some(true), Some(true), 0) => drop(machine.create(&snapshot(&format!("cut-{number}"), &data))),
            (Some(true), Some(true), 1) => {
                machine.delete(&format!("pod/{keeper}"));
                machine.delete(&format!("pvc/{data}"));
            }
            (Some(true), Some(true), _) => machine.delete(&format!("pod/{keeper}")),
        }
        std::thread::sleep(Duration::from_millis(u64::try_from(rng.below(SOON)).unwrap()));
        machine.restart();
    }
    // Objects to keep must converge, and so must objects being deleted.
    let stays = |object: &serde_json::Value| object["metadata"]["deletionTimestamp"].is_null();
    let pods: Vec<String> = machine.list("pod").iter().filter(|pod| stays(pod)).map(name).collect();
    let claims: Vec<String> = machine.list("pvc").iter().filter(|claim| stays(claim)).map(name).collect();
    for pod in &pods {
        machine.wait_until_running(pod);
    }
    machine.wait_until("deleted objects are gone", |machine| {
        let left = |kind, kept: &[String]| -> Result<usize, String> {
            Ok(machine.try_list(kind)?.iter().filter(|object| !kept.contains(&name(object))).count())
        };
        match left("pod", &pods)? + left("pvc", &claims)? {
            0 => Ok(()),
            _ => Err(format!("{:?}", machine.try_list("pod")?)),
        }
    });
    machine.wait_for_only_these_mounts(&pods.iter().map(String::as_str).collect::<Vec<_>>());
    for claim in &claims {
        // A claim whose pod was deleted before it wrote anything has no data to compare.
        let keeper = claim.replace("data", "keeper");
        if !pods.contains(&keeper) {
            machine.create(&pod(&keeper, claim, KEEPER));
            machine.wait_until_running(&keeper);
        }
        machine.wait_until_written(&keeper);
        machine.check_data(claim);
    }
    machine.delete_everything();
}

impl Machine {
    /// Whether an object exists, and if so whether it is not being deleted.
    fn is_live(&mut self, kind: &str, name: &str) -> Option<bool> {
        let all = self.list(kind);
        let found = all.iter().find(|object| self::name(object) == name)?;
        Some(found["metadata"]["deletionTimestamp"].is_null())
    }
}
