//! A Kubernetes API server for one machine: small, durable, in-process, and faithful enough that kubectl, informers
//! and Wharf's own sidecar roles work against it as against a cluster.
//!
//! ```text
//! request → access (authn, authz) → rest (verb) → schema, patch → kinds (defaults, admission, validation) → store
//!                                     watch, list ← store: one log of revisions, published once they are durable
//! ```
//!
//! The same service handles requests over HTTPS and in-process. `kinds` has one description of each kind: defaults,
//! admission, validation and printing. The other modules do not distinguish kinds. Start reading in `rest`.

pub mod access;
mod bounds;
mod discovery;
mod garbage;
mod json_error;
pub mod kinds;
mod memory_budget;
mod namespaces;
pub mod patch;
pub mod rest;
mod retry_loop;
pub mod schema;
pub mod select;
pub mod server;
pub mod status;
pub mod store;
pub mod table;
