//! ConfigMap: words for programs.

use super::{BASE, Kind};

/// Words for programs.
pub(super) static CONFIG_MAP: Kind = Kind {
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    namespaced: true,
    ..BASE
};
