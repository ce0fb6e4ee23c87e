//! The node service: mounts at pod targets, unmounts, statistics and health, through node workers.
