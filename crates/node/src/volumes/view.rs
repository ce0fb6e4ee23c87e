//! Inputs of the rules for one volume.

use std::fmt;
use std::time::Duration;

use wharf_model::csidriver::{FsGroupPolicy, VolumeLifecycleMode};
use wharf_model::{CSIDriver, StringMap};

use super::world::Volume;
use crate::plugins::NodeCapabilities;

/// Everything the rules need to know about one volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// Its desired and actual state.
    pub(super) volume: &'a Volume,
    /// Pods whose mount can be unpublished: released, or unknown after all pods are known.
    pub(super) released: &'a [String],
    /// Whether all pods of the node are known.
    pub(super) pods_known: bool,
    /// The volume's state in the Node; `None` while the Node is unknown.
    pub(super) node: Option<NodeView<'a>>,
    /// The driver's CSIDriver object.
    pub(super) driver: Driver<'a>,
    /// The driver's node capabilities; `None` if it is not registered.
    pub(super) capabilities: Option<&'a NodeCapabilities>,
    /// Interval of republishing.
    pub(super) resync: Duration,
}

/// The volume's state in the Node.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeView<'a> {
    /// The node's name.
    pub(super) name: &'a str,
    /// Its labels.
    pub(super) labels: &'a StringMap,
    /// Whether the API server has accepted `volumesInUse` with the volume.
    pub(super) reported: bool,
    /// Whether the volume is in `volumesAttached`.
    pub(super) attached: bool,
}

/// The CSIDriver object of a driver.
#[derive(Debug, Clone, Copy)]
pub(super) enum Driver<'a> {
    /// CSIDrivers are not known yet.
    Unknown,
    /// There is no CSIDriver object.
    NoObject,
    /// The CSIDriver object.
    Object(&'a CSIDriver),
}

impl<'a> Driver<'a> {
    /// The CSIDriver object, if there is one.
    pub(super) fn object(self) -> Option<&'a CSIDriver> {
        match self {
            Self::Unknown | Self::NoObject => None,
            Self::Object(driver) => Some(driver),
        }
    }

    /// Whether volumes have to be attached; the default is yes.
    pub(super) fn attaches(self) -> bool {
        CSIDriver::requires_attach(self.object())
    }

    /// Whether the driver gets pod info (podInfoOnMount).
    pub(super) fn wants_pod_info(self) -> bool {
        self.object().is_some_and(|driver| driver.spec.pod_info_on_mount == Some(true))
    }

    /// Whether the driver requires republishing.
    pub(super) fn republishes(self) -> bool {
        self.object().is_some_and(|driver| driver.spec.requires_republish == Some(true))
    }

    /// The driver's fsGroupPolicy.
    pub(super) fn fs_group_policy(self) -> FsGroupPolicy {
        self.object()
            .and_then(|driver| driver.spec.fs_group_policy)
            .unwrap_or(FsGroupPolicy::ReadWriteOnceWithFSType)
    }

    /// Whether the driver supports a lifecycle mode. Without a CSIDriver object, only persistent volumes.
    pub(super) fn supports(self, mode: VolumeLifecycleMode) -> bool {
        match self.object() {
            Some(driver) if !driver.spec.volume_lifecycle_modes.is_empty() => {
                driver.spec.volume_lifecycle_modes.contains(&mode)
            }
            _ => mode == VolumeLifecycleMode::Persistent,
        }
    }
}

/// What a volume is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The Node object.
    Node,
    /// The CSIDriver objects.
    Drivers,
    /// The API server to accept `volumesInUse`.
    Report,
    /// The volume to be attached.
    Attach,
    /// The backoff after a failure.
    Pause,
    /// All pods of the node to be known.
    Pods,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "waiting for this node's Node object",
            Self::Drivers => "CSIDrivers has not been synced yet",
            Self::Report => "waiting for the API server to accept volumesInUse of this node",
            Self::Attach => "waiting for attach: the volume is not in volumesAttached of this node",
            Self::Pause => "waiting for the next retry",
            Self::Pods => "waiting until all pods of this node are known",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn driver(spec: Value) -> CSIDriver {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    /// kubernetes.md 1.8 "Inline", "Pod info", "Republish", "fsGroup": the defaults without an object.
    #[test]
    fn csi_driver_object_overrides_defaults() {
        use VolumeLifecycleMode::{Ephemeral, Persistent};
        let no_object = Driver::NoObject;
        assert!(no_object.attaches() && !no_object.wants_pod_info() && !no_object.republishes());
        assert!(no_object.supports(Persistent) && !no_object.supports(Ephemeral));
        assert_eq!(no_object.fs_group_policy(), FsGroupPolicy::ReadWriteOnceWithFSType);
        let object = driver(json!({}));
        assert!(Driver::Object(&object).attaches() && Driver::Object(&object).supports(Persistent));
        assert!(!Driver::Object(&object).supports(Ephemeral));
        let object = driver(json!({
            "attachRequired": false, "podInfoOnMount": true, "requiresRepublish": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Ephemeral"],
        }));
        let object = Driver::Object(&object);
        assert!(!object.attaches() && object.wants_pod_info() && object.republishes());
        assert!(!object.supports(Persistent) && object.supports(Ephemeral));
        assert_eq!(object.fs_group_policy(), FsGroupPolicy::File);
    }
}
