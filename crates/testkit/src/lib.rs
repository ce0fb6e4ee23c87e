//! Throwaway pools and clusters, a kernel that dies on demand, drivers as child processes, a scripted driver, and an
//! orchestrator that calls them: for tests only, never in the released binary. A failed expectation panics, as in any test.

mod beside;
mod cluster;
mod crash;
mod dice;
pub mod differential;
mod driver;
mod embedded;
mod kubectl;
mod leftovers;
mod orchestrator;
mod pool;
pub mod scripted;
mod scripted_cluster;
mod server;

pub use beside::{Beside, Usage, built, free_address, page, upstream};
pub use cluster::{ClusterOptions, TestCluster};
pub use crash::{CrashKernel, EFFECTS};
pub use dice::Dice;
pub use driver::{DriverOptions, TestDriver};
pub use embedded::Embedded;
pub use kubectl::Kubectl;
pub use leftovers::{leftovers, loop_devices_on};
pub use orchestrator::{MIB, Orchestrator, capability, source};
pub use pool::TestPool;
pub use scripted_cluster::{ScriptedDriver, node_sidecar};
pub use server::{Server, connect};
