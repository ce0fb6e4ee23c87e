//! Containers as host processes.
