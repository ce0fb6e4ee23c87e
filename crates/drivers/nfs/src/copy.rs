//! Copies a directory tree beneath two open directories.
