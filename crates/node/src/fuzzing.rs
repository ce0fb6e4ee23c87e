//! Entry points for the fuzz targets in `fuzz/`. Not part of the API.

pub use crate::volumes::rewrite_volume_data;
