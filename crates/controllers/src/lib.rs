//! The storage controllers of kube-controller-manager and kube-scheduler: they bind claims to volumes, attach volumes
//! to nodes, schedule pods, protect objects that are in use, and handle nodes that are lost. And the snapshot
//! controller, which in upstream is a program of its own.
//!
//! Each controller has four modules: its inputs (`view`), its rules (`decide`), its effects (`act`), and the control
//! loop in the module's own file. The controllers run against the embedded API server or a cluster's API server, in
//! place of upstream's.

pub mod attach_detach;
pub mod binder;
pub mod ephemeral;
pub mod expand;
pub mod node_lifecycle;
pub mod protection;
pub mod scheduler;
pub mod snapshot_controller;

use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder};

/// What every controller needs to run; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The client and stores for the API server.
    pub cluster: Cluster,
    /// Open while this process may start work.
    pub gate: Gate,
    /// The event recorder, with the component name of upstream's controller.
    pub events: EventRecorder,
}
