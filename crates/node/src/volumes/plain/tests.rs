//! Plain volumes on real directories.
