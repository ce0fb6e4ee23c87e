//! Operations on one export: records, volumes, snapshots and copy jobs. Runs in a worker process.
