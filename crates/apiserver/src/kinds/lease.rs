//! Lease: who leads.

use super::{BASE, Kind};

/// Who leads.
pub(super) static LEASE: Kind = Kind {
    group: "coordination.k8s.io",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    namespaced: true,
    create_on_update: true,
    unconditional_update: false,
    ..BASE
};
