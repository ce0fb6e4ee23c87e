//! Builds volume capabilities.

use crate::v1::VolumeCapability;
use crate::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

/// A volume capability with the number of an access mode. `None` is a raw block volume.
pub fn volume_capability(mode: impl Into<i32>, mount: Option<MountVolume>) -> VolumeCapability {
    let access_type = mount.map_or(AccessType::Block(BlockVolume {}), AccessType::Mount);
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}
