//! Everything between a CSI driver and Kubernetes, in one process.
