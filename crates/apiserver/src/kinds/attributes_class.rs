//! VolumeAttributesClass: what a volume is changed to.

use super::{BASE, Kind};

/// What a volume is changed to.
pub(super) static ATTRIBUTES_CLASS: Kind = Kind {
    group: "storage.k8s.io",
    kind: "VolumeAttributesClass",
    plural: "volumeattributesclasses",
    singular: "volumeattributesclass",
    short_names: &["vac"],
    ..BASE
};
