//! The content of a new volume that is a copy: made by a job, see [`super::job`].

use super::directory::staged;
use super::record::VolumeRecord;
use super::snapshot_record::JobKey;
use super::{ErrorKind, Share, ShareError};

impl Share {
    /// The ID of a staging directory whose `data` is a complete copy of the volume's source. Until the copy is complete,
    /// the error is [`ErrorKind::InProgress`].
    pub(super) fn staged_content(&self, volume: &VolumeRecord) -> Result<(String, bool), ShareError> {
        let job = JobKey::Volume(volume.handle.clone());
        let complete = self.job_result(&job)?;
        if self.stat(&staged(&complete.attempt))?.is_none() {
            // Someone removed it, or another controller has just placed it. The next request decides.
            self.forget_job(&job)?;
            let message = format!("the copy for {job} is gone; it starts again");
            return Err(ShareError::new(ErrorKind::InProgress { percent: None }, message));
        }
        Ok((complete.attempt, complete.result.limited))
    }
}
