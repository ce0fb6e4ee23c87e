//! The inputs for deciding about one claim.

use wharf_model::{PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass};

use super::state::ResizeState;
use crate::driver::Capabilities;

/// One claim and everything that its next step depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The claim. `None`: it was deleted.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// The volume that the claim names.
    pub(crate) volume: Option<&'a PersistentVolume>,
    /// The driver's name.
    pub(crate) driver: &'a str,
    pub(crate) capabilities: ResizerCapabilities,
    /// Whether this process handles the volume: with node deployment, only those of the local node.
    pub(crate) is_local: bool,
    /// Whether pods use the claim.
    pub(crate) pod_use: PodUse,
    pub(crate) classes: Classes<'a>,
    pub(crate) state: &'a ResizeState,
}

/// What the driver supports for existing volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResizerCapabilities {
    /// Where volumes are expanded. `None`: not at all.
    pub(crate) expand: Option<ExpandOn>,
    /// Whether volumes can be modified.
    pub(crate) modify: bool,
}

/// Where the driver expands volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpandOn {
    /// In the controller, and then perhaps on the node.
    Controller,
    /// On the node only: the controller accepts every size.
    Node,
}

impl ResizerCapabilities {
    /// From the driver's capabilities. `None`: there is nothing for a resizer to do.
    pub(crate) fn of(capabilities: &Capabilities) -> Option<Self> {
        let expand = match (capabilities.expand_volume, capabilities.node_expand_volume) {
            (true, _) => Some(ExpandOn::Controller),
            (false, true) => Some(ExpandOn::Node),
            (false, false) => None,
        };
        let modify = capabilities.modify_volume;
        (capabilities.controller_service && (expand.is_some() || modify)).then_some(Self { expand, modify })
    }
}

/// Whether pods use a claim. Pods are watched only after the driver refused to expand a volume in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PodUse {
    /// Pods are not watched, or the store is incomplete.
    #[default]
    Unknown,
    /// At least one pod uses it.
    InUse,
    /// No pod uses it.
    Unused,
}

/// The VolumeAttributesClasses that a claim names.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Classes<'a> {
    /// Whether the classes can be read.
    pub(crate) known: bool,
    /// The class in the claim's spec.
    pub(crate) requested: Option<&'a VolumeAttributesClass>,
    /// The target class in the claim's status.
    pub(crate) target: Option<&'a VolumeAttributesClass>,
}

impl<'a> Classes<'a> {
    /// The class of this name, if the claim names it and it exists.
    pub(crate) fn get(&self, name: &str) -> Option<&'a VolumeAttributesClass> {
        [self.requested, self.target].into_iter().flatten().find(|class| class.metadata.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.3 "Start".
    #[test]
    fn capabilities_select_expansion_and_modification() {
        let controller = Capabilities { controller_service: true, ..Capabilities::default() };
        let real = Capabilities { expand_volume: true, node_expand_volume: true, ..controller };
        let trivial = Capabilities { node_expand_volume: true, ..controller };
        let modifier = Capabilities { modify_volume: true, ..controller };
        for (capabilities, expected) in [
            (real, Some(ResizerCapabilities { expand: Some(ExpandOn::Controller), modify: false })),
            (trivial, Some(ResizerCapabilities { expand: Some(ExpandOn::Node), modify: false })),
            (modifier, Some(ResizerCapabilities { expand: None, modify: true })),
            (controller, None),
            (Capabilities { controller_service: false, ..real }, None),
        ] {
            assert_eq!(ResizerCapabilities::of(&capabilities), expected, "{capabilities:?}");
        }
    }
}
