//! Objects by key, with one global revision: what etcd is to a cluster.
//!
//! A write is acknowledged, and seen by readers and watchers, when it is durable. Writers are one thread that
//! commits whatever waits in one go. All objects and the tail of the log are in memory; a list is a copy of bytes,
//! a watcher is a cursor into the shared log and costs nothing while nothing happens. What is older than the log is
//! gone ([`ListError::Compacted`]).

use std::sync::Arc;

use bytes::Bytes;

/// One for the whole store; each write takes the next. Never 0 for an object.
pub type Revision = u64;

/// `group/plural/namespace/name`; the core group and cluster scope leave theirs empty (`/nodes//n1`).
pub type Key = Arc<str>;

/// An object as it is stored: JSON in which `metadata.resourceVersion` is its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub key: Key,
    /// Of the write that made it so.
    pub revision: Revision,
    /// JSON.
    pub value: Bytes,
}

/// JSON with a place for the revision, which is known only when the write is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// JSON with `"resourceVersion":""` in it.
    pub json: Bytes,
    /// Where, between those quotes, the digits go.
    pub at: usize,
    /// When the store forgets the object by itself, in milliseconds of wall time.
    pub expires: Option<i64>,
}

/// What is to be done with a key, and what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// There must be none yet.
    Create(Body),
    /// It must be at this revision.
    Update(Revision, Body),
    /// It must be at this revision. The body is what watchers are told: the object as it was, at the revision of
    /// its deletion.
    Delete(Revision, Body),
}

/// One write, as watchers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Of this write.
    pub revision: Revision,
    /// Whose.
    pub key: Key,
    /// The object now; at a deletion its last state, with the revision of the deletion in it.
    pub value: Bytes,
    /// It is gone.
    pub deleted: bool,
    /// The object before; none if it was created.
    pub previous: Option<Bytes>,
}
