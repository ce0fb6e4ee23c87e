//! The claims, pods and snapshots of these tests, and the checks that apply to all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::machine::Machine;

/// Writes data and its checksum into `/data`, or verifies both if they exist; then waits to be stopped.
pub(crate) const KEEPER: &str = "set -e; cd /data; if test -e sum; then sha256sum -c sum; else \
    head -c 300000 /dev/urandom > blob; sha256sum blob > sum.new; sync; mv sum.new sum; sync; echo written; fi; \
    trap 'kill $!; exit 0' TERM; sleep 100000 & wait $!";
/// Verifies the data by its checksum.
const CHECKER: &str = "cd /data && sha256sum -c sum";
/// The same two for the device `/dev/data`, whose first block holds the checksum of the following blocks.
pub(crate) const DEVICE_KEEPER: &str = "set -e; sum() { dd if=/dev/data bs=4k skip=1 count=64 status=none | sha256sum; }; \
    case $(head -c 67 /dev/data | tr -d '\\0') in '') dd if=/dev/urandom of=/dev/data bs=4k seek=1 count=64 conv=fsync status=none; \
    sum | dd of=/dev/data conv=fsync status=none; echo written;; $(sum)) echo data: OK;; *) exit 1;; esac; \
    trap 'kill $!; exit 0' TERM; sleep 100000 & wait $!";
const DEVICE_CHECKER: &str = "test \"$(head -c 67 /dev/data)\" = \
    \"$(dd if=/dev/data bs=4k skip=1 count=64 status=none | sha256sum)\"";

/// Where volumes are staged and block devices are published, below the data directory.
const STAGED: &str = "kubelet/plugins/kubernetes.io/csi/local.csi.wharf.dev";
pub(crate) const STAGED_DEVICES: &str = "kubelet/plugins/kubernetes.io/csi/volumeDevices/staging";
pub(crate) const PUBLISHED_DEVICES: &str = "kubelet/plugins/kubernetes.io/csi/volumeDevices/publish";

/// A claim of the local driver's default StorageClass (ext4).
pub(crate) fn claim(name: &str, size: &str) -> Value {
    claim_of(name, size, "local")
}

/// A claim of a StorageClass.
pub(crate) fn claim_of(name: &str, size: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// The same claim with volumeMode Block.
pub(crate) fn block(mut claim: Value) -> Value {
    claim["spec"]["volumeMode"] = json!("Block");
    claim
}

/// The same claim, restored from a snapshot.
pub(crate) fn restored(mut claim: Value, snapshot: &str) -> Value {
    claim["spec"]["dataSource"] =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot});
    claim
}

/// A pod that runs a script, with a claim at `/data` and restartPolicy Never.
pub(crate) fn pod(name: &str, claim: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "none", "command": ["bash", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// A pod that runs a script, with a claim's device at `/dev/data`.
pub(crate) fn pod_with_device(name: &str, claim: &str, script: &str) -> Value {
    let mut pod = pod(name, claim, script);
    let container = pod["spec"]["containers"][0].as_object_mut().unwrap();
    container.remove("volumeMounts");
    container.insert("volumeDevices".to_owned(), json!([{"name": "data", "devicePath": "/dev/data"}]));
    pod
}

/// A snapshot of a claim.
pub(crate) fn snapshot(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    })
}

/// A patch of the requested size.
pub(crate) fn sized(size: &str) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": size}}}})
}

/// A field of an object, by JSON pointer; empty if it does not exist.
pub(crate) fn field(object: &Value, pointer: &str) -> String {
    match object.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

pub(crate) fn name(object: &Value) -> String {
    field(object, "/metadata/name")
}

impl Machine {
    /// A field of an object; empty if the object or the field does not exist.
    pub(crate) fn field(&self, object: &str, pointer: &str) -> String {
        self.get(object).map(|object| field(&object, pointer)).unwrap_or_default()
    }

    /// Waits until an object's field has a value.
    pub(crate) fn wait_for_field(&mut self, object: &str, pointer: &str, wanted: &str) {
        self.wait_until(&format!("{object} {pointer} is {wanted}"), |machine| {
            let object = machine.get(object).ok_or("the object does not exist")?;
            if field(&object, pointer) == wanted { Ok(()) } else { Err(format!("{:#}", object["status"])) }
        });
    }

    /// Waits until a pod runs; fails if it has terminated.
    pub(crate) fn wait_until_running(&mut self, pod: &str) {
        self.wait_until(&format!("pod {pod} runs"), |machine| {
            let object = machine.get(&format!("pod/{pod}")).ok_or("the object does not exist")?;
            match field(&object, "/status/phase").as_str() {
                "Running" => Ok(()),
                phase => {
                    let output = machine.container_logs(pod);
                    assert!(phase == "Pending", "pod {pod} is {phase}: {output}\n{:#}", object["status"]);
                    Err(format!("{:#}", object["status"]))
                }
            }
        });
    }

    /// Waits until a pod runs and has written or verified its data.
    pub(crate) fn wait_until_written(&mut self, pod: &str) {
        self.wait_until_running(pod);
        self.wait_until(&format!("pod {pod} has its data"), |machine| {
            let output = machine.container_logs(pod);
            if output.contains("written") || output.contains(": OK") { Ok(()) } else { Err(output) }
        });
    }

    /// Waits until an object is gone.
    pub(crate) fn wait_until_gone(&mut self, object: &str) {
        self.wait_until(&format!("{object} is gone"), |machine| {
            let (kind, name) = object.split_once('/').unwrap();
            let all = machine.try_list(kind)?;
            match all.iter().find(|object| self::name(object) == name) {
                None => Ok(()),
                Some(object) => Err(format!("{object:#}")),
            }
        });
    }

    /// The process ID of a pod's container, in the machine's PID namespace.
    pub(crate) fn process_of(&self, pod: &str) -> String {
        let uid = self.field(&format!("pod/{pod}"), "/metadata/uid");
        let records =
            self.names("containers").into_iter().map(|name| self.data().join("containers").join(name));
        let read = |path: PathBuf| -> Value {
            serde_json::from_slice(&fs::read(path).unwrap_or_default()).unwrap_or_default()
        };
        let mut own = records.filter(|record| read(record.join("order.json")).to_string().contains(&uid));
        let running = read(own.next().expect("the container's record").join("running.json"));
        field(&running, "/program/pid")
    }

    /// Runs a pod that verifies a claim's data by its checksum.
    pub(crate) fn check_data(&mut self, claim: &str) {
        let name = format!("check-{claim}");
        let checker = match self.is_block(claim) {
            true => pod_with_device(&name, claim, DEVICE_CHECKER),
            false => pod(&name, claim, CHECKER),
        };
        self.create(&checker);
        self.wait_until(&format!("the data of {claim} is what was written"), |machine| {
            let object = machine.get(&format!("pod/{name}")).ok_or("the object does not exist")?;
            let phase = field(&object, "/status/phase");
            assert_ne!(phase, "Failed", "{claim}: {}", machine.container_logs(&name));
            if phase == "Succeeded" { Ok(()) } else { Err(format!("{:#}", object["status"])) }
        });
        self.delete(&format!("pod/{name}"));
        self.wait_until_gone(&format!("pod/{name}"));
    }

    /// Whether an existing claim has volumeMode Block.
    fn is_block(&mut self, claim: &str) -> bool {
        let claim = format!("pvc/{claim}");
        let claim = self.wait_until("the claim can be read", |machine| {
            machine.get(&claim).ok_or("the claim does not exist".to_owned())
        });
        claim["spec"]["volumeMode"] == "Block"
    }

    /// Waits until exactly the volumes of these pods, one claim each, are attached and mounted: no volume is
    /// attached twice or staged without a pod.
    pub(crate) fn wait_for_only_these_mounts(&mut self, pods: &[&str]) {
        // A volume and its path in a pod.
        let expected: Vec<(String, String)> = pods
            .iter()
            .map(|pod| {
                let pod = self.get(&format!("pod/{pod}")).unwrap();
                let (uid, claim) = (
                    field(&pod, "/metadata/uid"),
                    field(&pod, "/spec/volumes/0/persistentVolumeClaim/claimName"),
                );
                let volume = self.field(&format!("pvc/{claim}"), "/spec/volumeName");
                let at = match self.is_block(&claim) {
                    true => format!("volumeDevices/publish/{volume}/{uid}"),
                    false => format!("pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"),
                };
                (volume, at)
            })
            .collect();
        let volumes: BTreeSet<String> = expected.iter().map(|(volume, _)| volume.clone()).collect();
        self.wait_until("nothing else is mounted", |machine| {
            let attached: Vec<String> = machine
                .try_list("va")?
                .iter()
                .map(|attachment| field(attachment, "/spec/source/persistentVolumeName"))
                .collect();
            let once: BTreeSet<String> = attached.iter().cloned().collect();
            assert_eq!(once.len(), attached.len(), "a volume is attached twice: {attached:?}");
            let mounts = machine.mounts();
            let staged = mounts.iter().filter(|path| path.ends_with("globalmount")).count();
            let staged = staged + machine.names(STAGED_DEVICES).len();
            let is_share = |path: &&PathBuf| {
                path.ends_with("mount") || path.to_string_lossy().contains("volumeDevices/publish")
            };
            let published: Vec<_> = mounts.iter().filter(is_share).collect();
            let is_published =
                |(_, at): &(String, String)| published.iter().filter(|path| path.ends_with(at)).count() == 1;
            let mounted = staged == volumes.len() && published.len() == expected.len();
            let devices = machine.devices();
            if once == volumes
                && mounted
                && expected.iter().all(is_published)
                && devices.len() == volumes.len()
            {
                return Ok(());
            }
            Err(format!("of {expected:?}: attached {attached:?}, mounted {mounts:?}, devices {devices:?}"))
        });
    }

    /// Deletes all objects and waits until nothing is left of them.
    pub(crate) fn delete_everything(&mut self) {
        for kind in ["pod", "vs", "pvc"] {
            for object in self.list(kind) {
                self.delete(&format!("{kind}/{}", name(&object)));
            }
        }
        self.wait_until_nothing_is_left();
    }

    /// Waits until no object, volume, mount, device or directory is left.
    pub(crate) fn wait_until_nothing_is_left(&mut self) {
        self.wait_until("nothing is left", |machine| {
            let mut left = Vec::new();
            for kind in ["pod", "vs", "vsc", "pvc", "pv", "va"] {
                let objects = machine.try_list(kind)?;
                left.extend(objects.iter().map(|object| format!("{kind}/{} {:#}", name(object), object)));
            }
            for directory in ["volumes", "snapshots", "groups", "trash"] {
                let names = machine.names(&format!("pool/{directory}"));
                left.extend(names.iter().map(|name| format!("{name} in the pool")));
            }
            for directory in ["kubelet/pods", "containers", STAGED, STAGED_DEVICES, PUBLISHED_DEVICES] {
                let names = machine.names(directory);
                left.extend(names.iter().map(|name| format!("{directory}/{name}")));
            }
            left.extend(machine.mounts().iter().map(|path| format!("mount {}", path.display())));
            left.extend(machine.devices().iter().map(|path| format!("device {}", path.display())));
            if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
        });
    }
}
