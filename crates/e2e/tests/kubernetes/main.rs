//! Tests on a real Kubernetes cluster: `make test-cluster`. One binary, since only one cluster runs at a time. Each
//! test is `ignored` and in the module `cluster`, by which `hack/test.sh` selects it.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod cluster;
