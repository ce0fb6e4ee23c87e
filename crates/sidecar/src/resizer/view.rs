//! What the resizer sees of one claim, and nothing else.

use wharf_model::{PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass};

use super::memory::Memory;
use crate::driver::Capabilities;

/// One claim and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The claim; `None` when it is gone.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// The volume that it names.
    pub(crate) volume: Option<&'a PersistentVolume>,
    /// The driver's name.
    pub(crate) driver: &'a str,
    /// What the driver can do.
    pub(crate) can: Can,
    /// Whether the volume is ours to act on: a node's own sidecar leaves alone what its node cannot reach.
    pub(crate) reached: bool,
    /// Whether pods use the claim.
    pub(crate) users: Users,
    /// The classes that the claim names.
    pub(crate) classes: Classes<'a>,
    /// What was tried.
    pub(crate) memory: &'a Memory,
}

/// What a driver can do to volumes that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Can {
    /// Where volumes are expanded; `None`: nowhere.
    pub(crate) expand: Option<Where>,
    /// Whether they can be modified.
    pub(crate) modify: bool,
}

/// Where the driver expands volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// In its controller, and then perhaps on the node.
    Controller,
    /// On the node only: for the controller every size is fine.
    Node,
}

impl Can {
    /// As the driver says; `None` if there is nothing for a resizer to do.
    pub(crate) fn of(can: &Capabilities) -> Option<Self> {
        let expand = match (can.expand_volume, can.node_expand_volume) {
            (true, _) => Some(Where::Controller),
            (false, true) => Some(Where::Node),
            (false, false) => None,
        };
        let modify = can.modify_volume;
        (can.controller_service && (expand.is_some() || modify)).then_some(Self { expand, modify })
    }
}

/// Whether pods use a claim. Pods are watched only once the driver has said that it matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Users {
    /// Pods are not watched, or not all of them are known.
    #[default]
    Unknown,
    /// At least one.
    Some,
    /// None.
    None,
}

/// The VolumeAttributesClasses that a claim names.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Classes<'a> {
    /// Whether we know which classes there are.
    pub(crate) known: bool,
    /// The one asked for.
    pub(crate) asked: Option<&'a VolumeAttributesClass>,
    /// The one on its way.
    pub(crate) target: Option<&'a VolumeAttributesClass>,
}

impl<'a> Classes<'a> {
    /// The class of this name, if the claim names it and it exists.
    pub(crate) fn get(&self, name: &str) -> Option<&'a VolumeAttributesClass> {
        [self.asked, self.target].into_iter().flatten().find(|class| class.metadata.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.3 "Start".
    #[test]
    fn what_there_is_to_do() {
        let controller = Capabilities { controller_service: true, ..Capabilities::default() };
        let real = Capabilities { expand_volume: true, node_expand_volume: true, ..controller };
        let trivial = Capabilities { node_expand_volume: true, ..controller };
        let modifier = Capabilities { modify_volume: true, ..controller };
        for (can, expected) in [
            (real, Some(Can { expand: Some(Where::Controller), modify: false })),
            (trivial, Some(Can { expand: Some(Where::Node), modify: false })),
            (modifier, Some(Can { expand: None, modify: true })),
            (controller, None),
            (Capabilities { controller_service: false, ..real }, None),
        ] {
            assert_eq!(Can::of(&can), expected, "{can:?}");
        }
    }
}
