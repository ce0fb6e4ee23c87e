//! On a real Kubernetes: `make test-cluster`. One binary, since there is one cluster at a time; each test is `ignored`
//! and in the module `cluster`, which is how `hack/test.sh` finds it.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod cluster;
