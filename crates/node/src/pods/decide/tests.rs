//! Rules of a pod.
