//! Words of a pod.
