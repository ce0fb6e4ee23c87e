//! Operations on one export: records, volumes, snapshots and copy jobs. Runs in a worker process.
//!
//! A [`Share`] works beneath one directory, on which the export is mounted. It keeps its own state in `.wharf` there (see
//! [`record`]) and guarantees:
//!
//! - It deletes or renames a directory only if its records prove that the directory is the volume's own.
//! - Every operation can be repeated after a crash at any call, and several controllers can work on one export at once:
//!   each record changes by compare-and-swap ([`store`]), and a directory moves only after the record that says so.
//!
//! Start at [`Share::handle`].

mod adopt;
mod agent_copy;
mod create;
mod delete;
mod directory;
mod error;
mod expand;
pub mod files;
mod job;
mod job_copy;
mod job_recover;
mod message;
mod quota;
pub mod record;
mod recover;
mod reserve;
mod root;
mod snapshot;
pub mod snapshot_record;
mod snapshot_upstream;
mod source;
pub mod store;
mod trash;

pub use error::{ErrorKind, ShareError};
pub use message::{
    Adopt, CapacityInfo, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Deletion, ExpandVolume,
    GetSnapshot, GetVolume, PurgeTrash, Request, Response, RunJob, SnapshotInfo, VolumeInfo,
};
pub use root::{Share, ShareEnvironment};

#[cfg(test)]
pub(crate) mod tests;
