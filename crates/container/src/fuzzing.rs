//! Entry points for the fuzz targets in `fuzz/`. Not part of the API.

pub use crate::record::rewrite_container_record;
