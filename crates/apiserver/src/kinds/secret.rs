//! Secret: words that only some may read.

use super::{BASE, Kind};

/// Words that only some may read.
pub(super) static SECRET: Kind =
    Kind { kind: "Secret", plural: "secrets", singular: "secret", namespaced: true, ..BASE };
