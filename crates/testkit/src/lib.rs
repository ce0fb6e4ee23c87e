//! Test support: throwaway pools and clusters, a kernel that crashes on demand, drivers as child processes, a
//! scripted CSI driver, and an orchestrator that calls drivers as kubelet and the sidecars do.
//!
//! Only tests and benchmarks use this crate; it is never part of the released binary. A failed expectation panics.

mod cluster;
mod crash;
pub mod differential;
mod driver;
mod embedded;
mod kubectl;
mod leftovers;
mod orchestrator;
mod pool;
mod process;
mod random;
pub mod scripted;
mod scripted_cluster;
mod server;

pub use cluster::{ClusterOptions, TestCluster};
pub use crash::{CrashKernel, EFFECTS};
pub use driver::{DriverOptions, TestDriver};
pub use embedded::EmbeddedServer;
pub use kubectl::Kubectl;
pub use leftovers::{leftovers, loop_devices_on};
pub use orchestrator::{MIB, Orchestrator, capability, source};
pub use pool::{TestPool, check_image};
pub use process::{ChildProcess, Usage, built_program, free_address, http_get, upstream_program};
pub use random::SeededRng;
pub use scripted_cluster::{ScriptedDriver, node_sidecar};
pub use server::{ApiClient, connect};
