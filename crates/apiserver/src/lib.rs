//! The Kubernetes API for one machine: small, durable, in this process, and true enough that kubectl, informers and
//! our own sidecar work on it as on a cluster.
//!
//! ```text
//! request → access (who, may they) → rest (verb) → schema, patch → kinds (defaults, admission, rules) → store
//!                                      watch, list ← store: one log of revisions, published when they are durable
//! ```
//!
//! Over HTTPS and without a socket it is one service and one behaviour. What an object may be and what becomes of
//! it stands in `kinds`, one description each; the rest does not know one kind from another.

pub mod access;
mod bounds;
mod discovery;
mod garbage;
mod json_error;
pub mod kinds;
mod namespaces;
pub mod patch;
pub mod rest;
mod rounds;
pub mod schema;
pub mod select;
pub mod server;
pub mod status;
pub mod store;
pub mod table;
