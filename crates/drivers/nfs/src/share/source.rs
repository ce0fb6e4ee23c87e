//! The content of a new volume that is a copy.

use super::record::VolumeRecord;
use super::{ErrorKind, Share, ShareError};

impl Share {
    /// The ID of a staging directory whose `data` is a complete copy of the volume's source. Until the copy is complete,
    /// the error is [`ErrorKind::InProgress`].
    pub(super) fn staged_content(&self, volume: &VolumeRecord) -> Result<String, ShareError> {
        let message = format!("volume {} cannot be created from a source", volume.handle);
        Err(ShareError::new(ErrorKind::Invalid, message))
    }
}
