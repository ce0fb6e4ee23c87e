//! Entry points for the fuzz targets in `fuzz/`. Not part of the API.

pub use crate::node::{record_file, rewrite_volume_record};

/// The name at DigitalOcean of the volume that CSI calls `name`.
pub fn volume_name(name: &str) -> String {
    crate::names::volume_name(name)
}
