//! The Lease kind.

use serde::Deserialize;

use crate::kind::{ApiResource, Kind, Scope};
use crate::{Meta, Time};

/// A lease for leader election.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// Metadata.
    pub metadata: Meta,
    /// The holder and its timing.
    pub spec: LeaseSpec,
}

impl Kind for Lease {
    const API: ApiResource = ApiResource {
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

/// The spec of a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// The holder; `None` or empty if the lease is released.
    pub holder_identity: Option<String>,
    /// How long others wait after the last renewal.
    pub lease_duration_seconds: Option<i32>,
    /// When the holder acquired it.
    pub acquire_time: Option<Time>,
    /// The last renewal.
    pub renew_time: Option<Time>,
    /// The number of changes of the holder.
    pub lease_transitions: Option<i32>,
}
