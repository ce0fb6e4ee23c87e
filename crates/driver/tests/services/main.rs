//! A driver as its callers see it: over the socket, with a backend that can do everything.

#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the answer

mod codes;
mod malformed;
mod memory;
mod operations;
mod paging;
mod serving;

use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

/// A mounted volume for one node.
fn capability() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

/// A request for a volume of any size.
fn create(name: &str) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability()],
        ..v1::CreateVolumeRequest::default()
    }
}
