//! Names that Kubernetes and upstream's sidecars use in objects, and the rules by which they build names. They must be
//! exact: other components (upstream's sidecars after a switch, the scheduler, kubelet) rely on them.

/// Annotations.
pub mod annotation {
    /// On a claim: the driver that provisions it.
    pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
    /// On a claim: the name of the same annotation in older clusters.
    pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
    /// On a claim or volume: its class, from before the field existed.
    pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    /// On a claim: the node that the scheduler selected.
    pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
    /// On a claim: the name of the same annotation in older clusters.
    pub const ALPHA_SELECTED_NODE: &str = "volume.alpha.kubernetes.io/selected-node";
    /// On a claim: `yes` once its binding was complete. From then on a missing volume makes the claim Lost.
    pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
    /// On claims and volumes: `yes` if a controller, not a user, chose the other object.
    pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
    /// On a class: `true` makes it the default for claims that name none.
    pub const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
    /// On a class: the name of the same annotation in older clusters.
    pub const BETA_IS_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";
    /// On claims and volumes: the CSI driver that replaces an in-tree plugin.
    pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
    /// On a volume: the provisioner that created it.
    pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
    /// On a volume: the name of the secret for DeleteVolume; empty if there is none.
    pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
    /// On a volume: the namespace of that secret.
    pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
    /// On a volume: the name of the secret for ControllerModifyVolume.
    pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
    /// On a volume: the namespace of that secret.
    pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";
    /// On a snapshot content: `true` allows restoring a file system as a block volume, or the reverse.
    pub const ALLOW_VOLUME_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
    /// On a VolumeAttachment: the driver's node ID, in case the CSINode no longer exists at detach.
    pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
    /// On a claim: the resizer, for migrated volumes.
    pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
    /// On a volume: the claim's capacity before an expansion that the node has not finished.
    pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
    /// On a claim: `true` tells kubelet that an expansion needs nothing on the node.
    pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
    /// On a Node: its node ID for each driver, as JSON. Written by kubelet's plugin manager and the legacy registrar.
    pub const LEGACY_NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
    /// On a Node, with any value: the attach/detach controller attaches its volumes.
    pub const CONTROLLER_MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
}

/// Finalizers.
pub mod finalizer {
    /// On a volume, until the driver has deleted it.
    pub const PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    /// On a claim while it is being cloned.
    pub const CLONING_PROTECTION: &str = "provisioner.storage.kubernetes.io/cloning-protection";
    /// On a snapshot while a volume is being restored from it.
    pub const SNAPSHOT_SOURCE_PROTECTION: &str =
        "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

    /// On a claim that a pod may use.
    pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
    /// On a volume that a claim may be bound to.
    pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
    /// On a VolumeAttributesClass that claims or volumes may name.
    pub const ATTRIBUTES_CLASS_PROTECTION: &str = "kubernetes.io/vac-protection";
    /// On a volume of an in-tree plugin, until that plugin has deleted it.
    pub const IN_TREE_DELETION: &str = "kubernetes.io/pv-controller";

    /// The attacher's finalizer, on volumes and VolumeAttachments.
    pub fn attacher(driver: &str) -> String {
        format!("external-attacher/{}", super::sanitize_driver_name(driver))
    }
}

/// Labels.
pub mod label {
    /// On a CSIStorageCapacity: the driver.
    pub const DRIVER_NAME: &str = "csi.storage.k8s.io/drivername";
    /// On a CSIStorageCapacity: the provisioner that manages it.
    pub const MANAGED_BY: &str = "csi.storage.k8s.io/managed-by";

    /// The value of [`MANAGED_BY`] for the central provisioner, or for that of a node. If a node's name is too long for
    /// a label value, it is shortened as upstream does.
    pub fn managed_by(node: Option<&str>) -> String {
        const BASE: &str = "external-provisioner";
        const LONGEST: usize = 63;
        let Some(node) = node else { return BASE.to_owned() };
        let whole = format!("{BASE}-{node}");
        if whole.len() <= LONGEST {
            return whole;
        }
        match LONGEST.saturating_sub("-00000000-".len() + node.len()) {
            0 => format!("{BASE}-{:08x}", fnv1a(&whole)),
            left => format!("{}-{:08x}-{node}", &BASE[..left.min(BASE.len())], fnv1a(BASE)),
        }
    }

    /// 32-bit FNV-1a.
    fn fnv1a(text: &str) -> u32 {
        text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

/// Keys in the parameters and contexts that are passed to drivers.
pub mod key {
    /// Extra metadata: the claim's name.
    pub const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
    /// Extra metadata: the claim's namespace.
    pub const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
    /// Extra metadata: the volume's name.
    pub const VOLUME_NAME: &str = "csi.storage.k8s.io/pv/name";
    /// In a volume's attributes: the provisioner that created it.
    pub const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
}

/// Reasons of events.
pub mod reason {
    /// Claim, Normal: provisioning starts, or is left to another component.
    pub const PROVISIONING: &str = "Provisioning";
    /// Claim, Normal.
    pub const PROVISIONING_SUCCEEDED: &str = "ProvisioningSucceeded";
    /// Claim, Warning.
    pub const PROVISIONING_FAILED: &str = "ProvisioningFailed";
    /// Claim, Warning: a created volume could not be deleted again.
    pub const PROVISIONING_CLEANUP_FAILED: &str = "ProvisioningCleanupFailed";
    /// Volume, Warning.
    pub const VOLUME_FAILED_DELETE: &str = "VolumeFailedDelete";
    /// Claim, Normal.
    pub const RESIZING: &str = "Resizing";
    /// Claim, Normal: the node has to expand the file system.
    pub const FILE_SYSTEM_RESIZE_REQUIRED: &str = "FileSystemResizeRequired";
    /// Claim, Normal.
    pub const VOLUME_RESIZE_SUCCESSFUL: &str = "VolumeResizeSuccessful";
    /// Claim, Warning.
    pub const VOLUME_RESIZE_FAILED: &str = "VolumeResizeFailed";
    /// Claim, Normal.
    pub const VOLUME_MODIFY: &str = "VolumeModify";
    /// Claim, Normal.
    pub const VOLUME_MODIFY_SUCCESSFUL: &str = "VolumeModifySuccessful";
    /// Claim, Normal.
    pub const VOLUME_MODIFY_CANCELED: &str = "VolumeModifyCanceled";
    /// Claim, Warning.
    pub const VOLUME_MODIFY_FAILED: &str = "VolumeModifyFailed";
    /// Claim, Warning: the driver reports an abnormal volume condition.
    pub const VOLUME_CONDITION_ABNORMAL: &str = "VolumeConditionAbnormal";
    /// Claim, Normal: the volume condition is normal again.
    pub const VOLUME_CONDITION_NORMAL: &str = "VolumeConditionNormal";
    /// Claim, Normal: no volume to bind; Warning: its volume is bound to another claim. Pod, Warning: the claim of an
    /// ephemeral volume belongs to another pod.
    pub const FAILED_BINDING: &str = "FailedBinding";
    /// Claim and volume, Warning: one requests the other, and they do not match.
    pub const VOLUME_MISMATCH: &str = "VolumeMismatch";
    /// Claim, Normal: no pod uses it yet.
    pub const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";
    /// Claim, Normal: pods that use it are not scheduled yet.
    pub const WAIT_FOR_POD_SCHEDULED: &str = "WaitForPodScheduled";
    /// Claim, Normal: waiting for a driver's provisioner to create its volume.
    pub const EXTERNAL_PROVISIONING: &str = "ExternalProvisioning";
    /// Claim, Warning: its volume is gone.
    pub const CLAIM_LOST: &str = "ClaimLost";
    /// Claim, Warning: its volume is bound to another claim.
    pub const CLAIM_MISBOUND: &str = "ClaimMisbound";
    /// Volume, Normal: in use; Warning: no plugin can recycle it.
    pub const VOLUME_FAILED_RECYCLE: &str = "VolumeFailedRecycle";
    /// Volume, Warning.
    pub const VOLUME_UNKNOWN_RECLAIM_POLICY: &str = "VolumeUnknownReclaimPolicy";
    /// Claim, Normal: waiting for a driver's resizer to expand it.
    pub const EXTERNAL_EXPANDING: &str = "ExternalExpanding";
    /// Claim, Warning: pods that use it are on a node that has failed.
    pub const NODE_FAILED: &str = "NodeFailed";
    /// Claim, Warning (as upstream does): that node has recovered.
    pub const NODE_RECOVERED: &str = "NodeRecovered";
    /// Pod, Normal: a volume is attached to its node.
    pub const SUCCESSFUL_ATTACH_VOLUME: &str = "SuccessfulAttachVolume";
    /// Pod, Warning: a volume could not be attached, or must not be.
    pub const FAILED_ATTACH_VOLUME: &str = "FailedAttachVolume";
    /// Node, Normal: it is no longer Ready. Pod, Warning: its node is not Ready.
    pub const NODE_NOT_READY: &str = "NodeNotReady";
    /// Pod, Normal: it is deleted because of a taint of its node, or no longer to be deleted.
    pub const TAINT_MANAGER_EVICTION: &str = "TaintManagerEviction";
}

/// Taints of nodes.
pub mod taint {
    /// The node is not Ready.
    pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
    /// The node has stopped reporting.
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
    /// The node is cordoned.
    pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
    /// An administrator has confirmed that the node is off.
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
    /// The node is short of memory.
    pub const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
    /// The node is short of disk space.
    pub const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
    /// The node is short of process IDs.
    pub const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
    /// The node's network is not set up.
    pub const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";
    /// No new pods.
    pub const NO_SCHEDULE: &str = "NoSchedule";
    /// No new pods, and running pods are evicted.
    pub const NO_EXECUTE: &str = "NoExecute";
}

/// Conditions of a claim.
pub mod condition {
    /// The controller is expanding the volume.
    pub const RESIZING: &str = "Resizing";
    /// The node has to expand the file system.
    pub const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";
    /// The expansion in the controller failed.
    pub const CONTROLLER_RESIZE_ERROR: &str = "ControllerResizeError";
    /// The expansion on the node failed.
    pub const NODE_RESIZE_ERROR: &str = "NodeResizeError";
    /// ControllerModifyVolume is in progress.
    pub const MODIFYING_VOLUME: &str = "ModifyingVolume";
    /// ControllerModifyVolume failed.
    pub const MODIFY_VOLUME_ERROR: &str = "ModifyVolumeError";
}

/// The roles of sidecars, with one lease each per driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseRole {
    /// external-provisioner.
    Provisioner,
    /// external-attacher.
    Attacher,
    /// external-resizer.
    Resizer,
    /// csi-snapshotter.
    Snapshotter,
    /// external-health-monitor-controller.
    HealthMonitor,
}

impl LeaseRole {
    /// The lease that upstream's sidecar of this role uses, so that the two are never active together.
    pub fn lease_name(self, driver: &str) -> String {
        match self {
            Self::Provisioner => sanitize_driver_name(driver),
            Self::Attacher => sanitize_driver_name(&format!("external-attacher-leader-{driver}")),
            Self::Resizer => sanitize_driver_name(&format!("external-resizer-{driver}")),
            Self::Snapshotter => sanitize_driver_name(&format!("external-snapshotter-leader-{driver}")),
            Self::HealthMonitor => sanitize_driver_name(&format!("external-health-monitor-leader-{driver}")),
        }
    }
}

/// The lease of upstream's snapshot controller, which serves all drivers.
pub const SNAPSHOT_CONTROLLER_LEASE: &str = "snapshot-controller-leader";

/// A driver's name as part of another name: all characters except letters, digits and dashes become dashes, and an `X`
/// is appended to a trailing dash.
pub fn sanitize_driver_name(name: &str) -> String {
    let mut name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

/// The naming scheme of volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeNaming {
    /// The prefix before the claim's UID; not empty.
    pub prefix: String,
    /// The number of characters of the UID, without its dashes; `None` uses the UID unchanged.
    pub uuid_length: Option<usize>,
}

impl Default for VolumeNaming {
    fn default() -> Self {
        Self { prefix: "pvc".to_owned(), uuid_length: None }
    }
}

/// Why a volume cannot be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VolumeNameError {
    /// `--volume-name-prefix` is empty.
    #[error("the volume name prefix is empty: set --volume-name-prefix")]
    NoPrefix,
    /// The claim has no UID.
    #[error("the claim has no UID, so its volume cannot be named")]
    NoUid,
}

impl VolumeNaming {
    /// The name of a claim's volume, for Kubernetes and for the driver. It is always the same for a claim.
    pub fn name(&self, claim_uid: &str) -> Result<String, VolumeNameError> {
        if self.prefix.is_empty() {
            return Err(VolumeNameError::NoPrefix);
        }
        if claim_uid.is_empty() {
            return Err(VolumeNameError::NoUid);
        }
        Ok(match self.uuid_length {
            None => format!("{}-{claim_uid}", self.prefix),
            Some(length) => {
                let digits: String = claim_uid.chars().filter(|&c| c != '-').take(length).collect();
                format!("{}-{digits}", self.prefix)
            }
        })
    }
}

/// Whether the text is a DNS-1123 label, as the names of namespaces are.
pub fn is_dns_label(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    name.len() <= 63
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

/// Whether the text is a DNS-1123 subdomain, as the names of most objects are. Its labels have no length limit.
pub fn is_dns_subdomain(name: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        part.bytes().next().is_some_and(alphanumeric)
            && part.bytes().next_back().is_some_and(alphanumeric)
            && part.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.0 "Leader election".
    #[test]
    fn lease_names_match_upstream() {
        for (driver, provisioner, attacher, resizer) in [
            (
                "hostpath.csi.k8s.io",
                "hostpath-csi-k8s-io",
                "external-attacher-leader-hostpath-csi-k8s-io",
                "external-resizer-hostpath-csi-k8s-io",
            ),
            ("a/b", "a-b", "external-attacher-leader-a-b", "external-resizer-a-b"),
            ("odd_", "odd-X", "external-attacher-leader-odd-X", "external-resizer-odd-X"),
        ] {
            assert_eq!(LeaseRole::Provisioner.lease_name(driver), provisioner);
            assert_eq!(LeaseRole::Attacher.lease_name(driver), attacher);
            assert_eq!(LeaseRole::Resizer.lease_name(driver), resizer);
            let snapshotter = format!("external-snapshotter-leader-{provisioner}");
            assert_eq!(LeaseRole::Snapshotter.lease_name(driver), snapshotter);
        }
        let monitor = LeaseRole::HealthMonitor.lease_name("hostpath.csi.k8s.io");
        assert_eq!(monitor, "external-health-monitor-leader-hostpath-csi-k8s-io");
    }

    /// sidecars.md 1.2 "Attach order".
    #[test]
    fn attacher_finalizer_matches_upstream() {
        assert_eq!(finalizer::attacher("local.csi.wharf.dev"), "external-attacher/local-csi-wharf-dev");
        assert_eq!(finalizer::attacher("a."), "external-attacher/a-X");
    }

    /// sidecars.md 1.1 "Capacity".
    #[test]
    fn managed_by_is_shortened_as_upstream_does() {
        assert_eq!(label::managed_by(None), "external-provisioner");
        assert_eq!(label::managed_by(Some("node-a")), "external-provisioner-node-a");
        for (length, prefix) in [
            (42, "external-provisioner-n"),
            (43, "external-p-53f40b57-n"),
            (52, "e-53f40b57-n"),
            (53, "external-provisioner-698d23b8"),
            (253, "external-provisioner-1a4f7268"),
        ] {
            let value = label::managed_by(Some(&"n".repeat(length)));
            assert!(value.starts_with(prefix) && value.len() <= 63, "{length}: {value}");
        }
    }

    /// sidecars.md 1.1 "PV / volume name". kubernetes.md 1.1 "Volume name".
    #[test]
    fn volume_names_follow_the_scheme() {
        let uid = "0d2b7c51-7a5c-4f2b-9f2e-3a1d5c6b7e80";
        let naming = |prefix: &str, uuid_length| VolumeNaming { prefix: prefix.into(), uuid_length };
        for (naming, uid, expected) in [
            (VolumeNaming::default(), uid, Ok("pvc-0d2b7c51-7a5c-4f2b-9f2e-3a1d5c6b7e80".to_owned())),
            (naming("kube", None), "u", Ok("kube-u".to_owned())),
            (naming("pvc", Some(10)), uid, Ok("pvc-0d2b7c517a".to_owned())),
            (naming("pvc", Some(0)), uid, Ok("pvc-".to_owned())),
            (naming("pvc", Some(99)), uid, Ok("pvc-0d2b7c517a5c4f2b9f2e3a1d5c6b7e80".to_owned())),
            (naming("", None), uid, Err(VolumeNameError::NoPrefix)),
            (naming("pvc", None), "", Err(VolumeNameError::NoUid)),
        ] {
            assert_eq!(naming.name(uid), expected);
        }
    }

    #[test]
    fn dns_names_are_validated() {
        for (name, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b", false, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a..b", false, false),
            (".a", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("ä", false, false),
        ] {
            assert_eq!((is_dns_label(name), is_dns_subdomain(name)), (label, subdomain), "{name:?}");
        }
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)));
        assert!(is_dns_subdomain(&"a".repeat(253)) && !is_dns_subdomain(&"a".repeat(254)));
    }
}
