//! The agent beside the NFS server: `wharf nfs-server`. An NFS client cannot set quotas, and copies through the network; a
//! program on the server does both on the file system itself.
//!
//! [`Agent`] serves [`Call`]s for the exports of its machine: limits on the directories of volumes (project quotas of xfs and
//! ext4), what these limits leave of the capacity, and copies of directory trees on the file system itself. [`serve`] offers
//! it over HTTPS to clients with a certificate; [`AgentClient`] is the driver's side.
//!
//! A call names the share by the UUID in its records, and a directory by its path and its file ID. So a driver that talks to
//! the wrong agent, or that means another directory, is refused. The rules are in [`rules`].

mod client;
mod copies;
mod exports;
mod handshakes;
mod message;
mod quota;
pub mod rules;
mod server;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tls;

pub use client::{AgentAccess, AgentClient, ServerAgent};
pub use exports::Agent;
pub use message::{
    AgentError, AgentErrorKind, Answer, Call, CopyStatus, ExportInfo, Operation, QuotaInfo, QuotaSupport,
    Tree, TreeId,
};
pub use quota::{LinuxQuotas, Quotas};
pub use server::{ServeAgentOptions, serve};
pub use tls::{TlsFiles, TlsFilesError};

/// The port of the agent.
pub const PORT: u16 = 9820;
