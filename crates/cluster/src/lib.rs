//! The Kubernetes API as controllers see it.
