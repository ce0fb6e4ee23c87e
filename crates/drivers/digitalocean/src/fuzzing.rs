//! Entry points for the fuzz targets in `fuzz/`. Not part of the API.

pub use crate::node::{note_file, rewrite_note};

/// The name at DigitalOcean of the volume that CSI calls `name`.
pub fn volume_name(name: &str) -> String {
    crate::names::volume_name(name)
}
