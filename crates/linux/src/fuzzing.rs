//! Entry points for the fuzz targets in `fuzz/`. Not part of the API.

use crate::{ProbeResult, Result, probe};

/// Probes a device of this size, as [`crate::Filesystems::probe`] does.
pub fn probe(size: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<ProbeResult> {
    probe::identify(size, read)
}
