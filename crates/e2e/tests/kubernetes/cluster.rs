//! Behaviour that only a real cluster shows, one file for each topic.

mod digitalocean;
mod harness;
mod health;
mod host;
mod hostpath;
mod local;
mod moving;
mod no_leak;
mod node;
mod objects;
mod rbac;
mod snapshot_controller;
mod snapshot_metadata;
mod snapshots;
mod static_volumes;
mod survive;
mod swap;
mod up;

use std::time::Duration;

use wharf_testkit::ClusterOptions;

const MINUTE: Duration = Duration::from_secs(60);

/// A cluster without nodes, for tests that run no pods.
const API_ONLY: ClusterOptions = ClusterOptions { nodes: &[], tuned: true, controllers: "*" };
