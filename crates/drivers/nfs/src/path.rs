//! Relative paths that cannot leave a share or enter its records.
