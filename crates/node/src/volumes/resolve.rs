//! Which volumes a pod uses, and which CSI volume is behind each. Pure functions, no I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_cluster::ApiError;
use wharf_model::claim::ClaimPhase;
use wharf_model::pod::PodVolume;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Pod, VolumeMode};

use super::world::{DesiredMount, Mode, Source, Volume};
use super::{names, selinux};

/// The finalizer that protects a claim while pods use it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Names of the volumes that containers use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// In volumeMounts.
    pub(super) mounts: BTreeSet<String>,
    /// In volumeDevices.
    pub(super) devices: BTreeSet<String>,
}

impl Used {
    /// All names, each once.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.mounts.union(&self.devices).map(String::as_str)
    }
}

/// The volumes that containers use; others are not mounted.
pub(super) fn used(pod: &Pod) -> Used {
    let containers = || pod.spec.init_containers.iter().chain(&pod.spec.containers);
    Used {
        mounts: containers()
            .flat_map(|container| &container.volume_mounts)
            .map(|mount| mount.name.clone())
            .collect(),
        devices: containers()
            .flat_map(|container| &container.volume_devices)
            .map(|device| device.name.clone())
            .collect(),
    }
}

/// Why a pod's volume cannot be mounted. Upstream's wording where it exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unresolved {
    /// The claim cannot be read.
    #[error("failed to fetch PVC from API server: {0}")]
    ClaimUnread(ApiError),
    /// The claim does not exist.
    #[error("failed to fetch PVC from API server: persistentvolumeclaim \"{0}\" not found")]
    NoClaim(String),
    /// The claim is being deleted and not protected.
    #[error("PVC is being deleted")]
    Deleting,
    /// The claim is not bound yet.
    #[error("PVC is not bound")]
    NotBound,
    /// The claim is bound but names no volume.
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName,
    /// The claim of an ephemeral volume belongs to something else.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner {
        /// The claim.
        claim: String,
        /// The pod.
        pod: String,
    },
    /// The PersistentVolume cannot be read.
    #[error("failed to fetch PV {name} from API server: {error}")]
    VolumeUnread {
        /// The volume.
        name: String,
        /// The error.
        error: ApiError,
    },
    /// The PersistentVolume does not exist.
    #[error("failed to fetch PV {0} from API server: persistentvolume \"{0}\" not found")]
    NoVolume(String),
    /// The PersistentVolume is bound to no claim.
    #[error(
        "found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    )]
    NoClaimRef(String),
    /// The PersistentVolume is bound to another claim.
    #[error("found PV object {name} but its pv.Spec.ClaimRef.UID {has} does not point to claim.UID {wants}")]
    OtherClaim {
        /// The volume.
        name: String,
        /// The uid in its claimRef.
        has: String,
        /// The claim's uid.
        wants: String,
    },
    /// A block volume in volumeMounts.
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    NotFiles(String),
    /// A file system volume in volumeDevices.
    #[error("volume {0} has volumeMode Filesystem, but is specified in volumeDevices")]
    NotADevice(String),
    /// The PersistentVolume is not a CSI volume.
    #[error("PersistentVolume {0} is not a CSI volume; only CSI volumes can be mounted here")]
    NotCsi(String),
    /// An unsupported volume type.
    #[error(
        "the type of volume {0} is not supported here: use a PersistentVolumeClaim, an inline CSI volume, emptyDir, hostPath, secret, configMap, projected or downwardAPI"
    )]
    NotSupported(String),
    /// The pod's containers need different SELinux labels.
    #[error(transparent)]
    Label(#[from] selinux::Conflict),
}

/// The PersistentVolume's name, if this pod can use the claim.
pub(super) fn volume_of<'a>(
    pod: &Pod,
    volume: &PodVolume,
    claim: &'a PersistentVolumeClaim,
) -> Result<&'a str, Unresolved> {
    let meta = &claim.metadata;
    if meta.is_deleting() && !meta.has_finalizer(PROTECTION) {
        return Err(Unresolved::Deleting);
    }
    if claim.status.phase != ClaimPhase::Bound {
        return Err(Unresolved::NotBound);
    }
    if claim.spec.volume_name.is_empty() {
        return Err(Unresolved::NoVolumeName);
    }
    let owned = || {
        let mut controllers = meta.owner_references.iter().filter(|owner| owner.controller == Some(true));
        controllers.any(|owner| owner.uid == pod.metadata.uid)
    };
    if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_some() && !owned() {
        let (claim, pod) = (meta.key().to_string(), pod.metadata.key().to_string());
        return Err(Unresolved::NotOwner { claim, pod });
    }
    Ok(&claim.spec.volume_name)
}

/// The CSI volume of a claim, and the pod's desired mount of it.
pub(super) fn persistent(
    pod: &Arc<Pod>,
    volume: &PodVolume,
    claim: Arc<PersistentVolumeClaim>,
    persistent: Arc<PersistentVolume>,
    se_linux: Option<String>,
) -> Result<(Volume, DesiredMount), Unresolved> {
    let name = &persistent.metadata.name;
    let Some(reference) = &persistent.spec.claim_ref else {
        return Err(Unresolved::NoClaimRef(name.clone()));
    };
    if reference.uid != claim.metadata.uid {
        let (has, wants) = (reference.uid.clone(), claim.metadata.uid.clone());
        return Err(Unresolved::OtherClaim { name: name.clone(), has, wants });
    }
    let mode = match persistent.spec.volume_mode() {
        VolumeMode::Block => Mode::Block,
        VolumeMode::Filesystem | VolumeMode::Unknown => Mode::Filesystem,
    };
    let used = used(pod);
    match mode {
        Mode::Block if used.mounts.contains(&volume.name) => {
            return Err(Unresolved::NotFiles(volume.name.clone()));
        }
        Mode::Filesystem if used.devices.contains(&volume.name) => {
            return Err(Unresolved::NotADevice(volume.name.clone()));
        }
        Mode::Block | Mode::Filesystem => {}
    }
    let csi = persistent.spec.csi.as_ref().filter(|csi| !csi.volume_handle.is_empty());
    let csi = csi.ok_or_else(|| Unresolved::NotCsi(name.clone()))?;
    let known = Volume::new(&csi.driver, &csi.volume_handle, name, mode, false);
    let read_only = volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only);
    let desired = DesiredMount {
        pod: Arc::clone(pod),
        names: [volume.name.clone()].into(),
        source: Source::Persistent { volume: persistent, claim },
        read_only,
        se_linux,
    };
    Ok((known, desired))
}

/// The CSI volume of an inline volume, and the pod's desired mount of it.
pub(super) fn inline(pod: &Arc<Pod>, volume: &PodVolume) -> Result<(Volume, DesiredMount), Unresolved> {
    let Some(source) = &volume.csi else { return Err(Unresolved::NotSupported(volume.name.clone())) };
    let handle = names::inline_handle(&pod.metadata.uid, &volume.name);
    let known = Volume::new(&source.driver, &handle, &volume.name, Mode::Filesystem, true);
    let desired = DesiredMount {
        pod: Arc::clone(pod),
        names: [volume.name.clone()].into(),
        source: Source::Inline(source.clone()),
        read_only: source.read_only,
        se_linux: None,
    };
    Ok((known, desired))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(volumes: Value, containers: Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid"},
            "spec": {"volumes": volumes, "containers": containers},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn claim(change: Value) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "claim-uid"},
            "spec": {"volumeName": "pv1"},
            "status": {"phase": "Bound"},
        });
        merge(&mut claim, change);
        serde_json::from_value(claim).unwrap()
    }

    fn persistent_volume(change: Value) -> PersistentVolume {
        let mut volume = json!({
            "metadata": {"name": "pv1"},
            "spec": {
                "claimRef": {"namespace": "ns", "name": "data", "uid": "claim-uid"},
                "csi": {"driver": "d", "volumeHandle": "h"},
            },
        });
        merge(&mut volume, change);
        serde_json::from_value(volume).unwrap()
    }

    fn merge(into: &mut Value, change: Value) {
        match (into, change) {
            (Value::Object(into), Value::Object(change)) => {
                for (key, value) in change {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, change) => *into = change,
        }
    }

    /// kubernetes.md 1.8 "Wanted volumes".
    #[test]
    fn only_volumes_used_by_containers_are_mounted() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "unused"}],
            "initContainers": [{"name": "i", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
            "containers": [
                {"name": "x", "volumeMounts": [{"name": "b", "mountPath": "/b"}]},
                {"name": "y", "volumeDevices": [{"name": "c", "devicePath": "/dev/c"}]},
            ],
        }}))
        .unwrap();
        assert_eq!(used(&pod).names().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(used(&pod).devices, ["c".to_owned()].into());
    }

    /// kubernetes.md 1.8 "Claims": the claim must be bound, name a volume, and not be deleted.
    #[test]
    fn claim_must_be_bound_and_owned() {
        let pod = pod(json!([]), json!([]));
        let named: PodVolume =
            serde_json::from_value(json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}))
                .unwrap();
        let ephemeral: PodVolume = serde_json::from_value(json!({"name": "v", "ephemeral": {}})).unwrap();
        let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let protected = json!({"metadata": {
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["kubernetes.io/pvc-protection"],
        }});
        let owner = |uid: &str, controller: bool| {
            json!({"metadata": {"ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller,
            }]}})
        };
        let foreign = || Err(Unresolved::NotOwner { claim: "ns/data".into(), pod: "ns/p".into() });
        for (volume, change, expected) in [
            (&named, json!({}), Ok("pv1")),
            (&named, deleting, Err(Unresolved::Deleting)),
            (&named, protected, Ok("pv1")),
            (&named, json!({"status": {"phase": "Pending"}}), Err(Unresolved::NotBound)),
            (&named, json!({"status": {"phase": "Lost"}}), Err(Unresolved::NotBound)),
            (&named, json!({"spec": {"volumeName": ""}}), Err(Unresolved::NoVolumeName)),
            (&ephemeral, json!({}), foreign()),
            (&ephemeral, owner("other", true), foreign()),
            (&ephemeral, owner("pod-uid", false), foreign()),
            (&ephemeral, owner("pod-uid", true), Ok("pv1")),
        ] {
            let claim = claim(change.clone());
            assert_eq!(volume_of(&pod, volume, &claim), expected, "{change}");
        }
    }

    /// kubernetes.md 1.8 "Volumes": the volume must belong to the claim and have the mode that containers use.
    #[test]
    fn volume_must_match_claim_and_mode() {
        let volumes =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}]);
        let files = pod(volumes.clone(), json!([{"volumeMounts": [{"name": "v", "mountPath": "/v"}]}]));
        let device = pod(volumes, json!([{"volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]}]));
        let block = json!({"spec": {"volumeMode": "Block"}});
        let try_it = |pod: &Arc<Pod>, change: Value| {
            let (claim, volume) = (Arc::new(claim(json!({}))), Arc::new(persistent_volume(change)));
            persistent(pod, &pod.spec.volumes[0], claim, volume, None)
        };
        let (volume, desired) = try_it(&files, json!({})).unwrap();
        assert_eq!((volume.driver.as_str(), volume.handle.as_str(), volume.spec.as_str()), ("d", "h", "pv1"));
        assert_eq!((volume.mode, volume.ephemeral, desired.read_only), (Mode::Filesystem, false, true));
        assert_eq!(try_it(&device, block.clone()).unwrap().0.mode, Mode::Block);
        let error = |pod: &Arc<Pod>, change: Value| try_it(pod, change).unwrap_err().to_string();
        assert_eq!(error(&files, block), "volume v has volumeMode Block, but is specified in volumeMounts");
        assert_eq!(
            error(&device, json!({})),
            "volume v has volumeMode Filesystem, but is specified in volumeDevices"
        );
        assert!(error(&files, json!({"spec": {"claimRef": null}})).contains("nil pv.Spec.ClaimRef"));
        let other = json!({"spec": {"claimRef": {"uid": "other"}}});
        assert!(
            error(&files, other).contains("pv.Spec.ClaimRef.UID other does not point to claim.UID claim-uid")
        );
        assert!(error(&files, json!({"spec": {"csi": null}})).contains("pv1 is not a CSI volume"));
        assert!(error(&files, json!({"spec": {"csi": {"volumeHandle": ""}}})).contains("not a CSI volume"));
    }

    /// kubernetes.md 1.8 "Inline".
    #[test]
    fn inline_volume_is_resolved_from_the_pod() {
        let pod =
            pod(json!([{"name": "v", "csi": {"driver": "d", "readOnly": true}}, {"name": "w"}]), json!([]));
        let (volume, desired) = inline(&pod, &pod.spec.volumes[0]).unwrap();
        assert_eq!(volume.handle, names::inline_handle("pod-uid", "v"));
        assert!(volume.ephemeral && desired.read_only && volume.spec == "v");
        assert_eq!(inline(&pod, &pod.spec.volumes[1]).unwrap_err(), Unresolved::NotSupported("w".into()));
    }
}
