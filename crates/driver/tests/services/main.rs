//! A driver called over its socket, with a backend that implements all traits.

#![allow(clippy::unwrap_used)] // test helpers may panic

mod codes;
mod fields;
mod malformed;
mod memory;
mod operations;
mod paging;
mod serving;
mod target;

use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

/// The capability of a mounted volume for one node.
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
