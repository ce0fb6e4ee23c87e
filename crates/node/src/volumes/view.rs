//! What is seen of one volume, and nothing else.

use std::fmt;
use std::time::Duration;

use wharf_model::csidriver::{FsGroupPolicy, LifecycleMode};
use wharf_model::{CSIDriver, Map};

use super::world::Volume;
use crate::plugins::NodeCapabilities;

/// One volume and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// What is wanted of it and what there is.
    pub(super) volume: &'a Volume,
    /// Pods whose share of it may be taken down: they were released, or all pods are known and these are not among
    /// them.
    pub(super) released: &'a [String],
    /// Whether all pods of the node are known.
    pub(super) settled: bool,
    /// What the Node says; `None` while it was not seen.
    pub(super) node: Option<NodeSeen<'a>>,
    /// What the deployer said of the driver.
    pub(super) driver: Driver<'a>,
    /// What the driver can do here; `None`: it has not registered.
    pub(super) can: Option<&'a NodeCapabilities>,
    /// How often a driver that wants it is asked to publish again.
    pub(super) resync: Duration,
}

/// What the Node says of the volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeSeen<'a> {
    /// The node's name.
    pub(super) name: &'a str,
    /// Its labels.
    pub(super) labels: &'a Map,
    /// Whether the server has taken our word that the volume is in use.
    pub(super) reported: bool,
    /// Whether the volume is in `volumesAttached`.
    pub(super) attached: bool,
}

/// What the deployer said of a driver.
#[derive(Debug, Clone, Copy)]
pub(super) enum Driver<'a> {
    /// CSIDrivers are not known yet.
    Unknown,
    /// Nothing: there is no such CSIDriver.
    Silent,
    /// This.
    Said(&'a CSIDriver),
}

impl<'a> Driver<'a> {
    /// The object.
    pub(super) fn object(self) -> Option<&'a CSIDriver> {
        match self {
            Self::Unknown | Self::Silent => None,
            Self::Said(driver) => Some(driver),
        }
    }

    /// Whether volumes are attached first. Unless somebody said no, they are.
    pub(super) fn attaches(self) -> bool {
        self.object().is_none_or(|driver| driver.spec.attach_required != Some(false))
    }

    /// Whether it is told of the pod.
    pub(super) fn wants_pod_info(self) -> bool {
        self.object().is_some_and(|driver| driver.spec.pod_info_on_mount == Some(true))
    }

    /// Whether it wants to publish again and again.
    pub(super) fn republishes(self) -> bool {
        self.object().is_some_and(|driver| driver.spec.requires_republish == Some(true))
    }

    /// When files get the pod's group.
    pub(super) fn fs_group_policy(self) -> FsGroupPolicy {
        self.object()
            .and_then(|driver| driver.spec.fs_group_policy)
            .unwrap_or(FsGroupPolicy::ReadWriteOnceWithFSType)
    }

    /// Whether volumes may live like this. A driver without an object has persistent ones only.
    pub(super) fn lives(self, mode: LifecycleMode) -> bool {
        match self.object() {
            Some(driver) if !driver.spec.volume_lifecycle_modes.is_empty() => {
                driver.spec.volume_lifecycle_modes.contains(&mode)
            }
            _ => mode == LifecycleMode::Persistent,
        }
    }
}

/// What a volume waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The Node.
    Node,
    /// CSIDrivers.
    Drivers,
    /// That the server takes our word that it is in use.
    Report,
    /// Somebody to attach it.
    Attach,
    /// The pause after a failure.
    Pause,
    /// All pods of the node to be known.
    Pods,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "waiting for this node's Node object: it cannot be read yet",
            Self::Drivers => "CSIDrivers has not been synced yet",
            Self::Report => "waiting for the API server to take volumesInUse of this node",
            Self::Attach => "waiting to be attached: it is not in volumesAttached of this node yet",
            Self::Pause => "waiting before it is tried again",
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

    /// kubernetes.md 1.8 "Inline", "Pod info", "Republish", "fsGroup": what holds without an object.
    #[test]
    fn what_a_deployer_says() {
        use LifecycleMode::{Ephemeral, Persistent};
        let silent = Driver::Silent;
        assert!(silent.attaches() && !silent.wants_pod_info() && !silent.republishes());
        assert!(silent.lives(Persistent) && !silent.lives(Ephemeral));
        assert_eq!(silent.fs_group_policy(), FsGroupPolicy::ReadWriteOnceWithFSType);
        let said = driver(json!({}));
        assert!(Driver::Said(&said).attaches() && Driver::Said(&said).lives(Persistent));
        assert!(!Driver::Said(&said).lives(Ephemeral));
        let said = driver(json!({
            "attachRequired": false, "podInfoOnMount": true, "requiresRepublish": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Ephemeral"],
        }));
        let said = Driver::Said(&said);
        assert!(!said.attaches() && said.wants_pod_info() && said.republishes());
        assert!(!said.lives(Persistent) && said.lives(Ephemeral));
        assert_eq!(said.fs_group_policy(), FsGroupPolicy::File);
    }
}
