//! The driver SDK: small [backend] traits in, complete CSI services out.
//!
//! Start with [`backend`], what an author implements.

pub mod backend;
