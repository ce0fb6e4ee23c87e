//! Everything between a CSI driver and Kubernetes, in one process. So far the roles of a node: the
//! [`registrar`] makes the driver known to kubelet, [`liveness`] says whether it answers. [`node`] runs them.

pub mod liveness;
mod metrics;
pub mod node;
pub mod registrar;
