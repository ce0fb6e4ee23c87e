//! Binds claims to volumes.
