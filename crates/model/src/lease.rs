//! Lease, slim.

use serde::Deserialize;

use crate::kind::{Api, Kind, Scope};
use crate::{Meta, Time};

/// Who may act.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// Metadata.
    pub metadata: Meta,
    /// Who, since when and for how long.
    pub spec: LeaseSpec,
}

impl Kind for Lease {
    const API: Api = Api {
        group: "coordination.k8s.io",
        version: "v1",
        kind: "Lease",
        plural: "leases",
        scope: Scope::Namespaced,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// Who may act, since when and for how long.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Who; `None` or empty is nobody.
    pub holder_identity: Option<String>,
    /// For how long after the last renewal.
    pub lease_duration_seconds: Option<i32>,
    /// Since when.
    pub acquire_time: Option<Time>,
    /// The last renewal.
    pub renew_time: Option<Time>,
    /// How often it has changed hands.
    pub lease_transitions: Option<i32>,
}
