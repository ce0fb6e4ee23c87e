//! Safe format.
