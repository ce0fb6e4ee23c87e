//! Health of volumes, as their share shows it.

use async_trait::async_trait;
use wharf_driver::backend::{
    BackendError, GetStorageHealth, GetVolumeHealth, Health, HealthIssue, HealthStatus, StorageIssue,
};

use super::Controller;
use crate::handle::VolumeHandle;
use crate::share::VolumeInfo;

#[async_trait]
impl Health for Controller {
    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        let Ok(location) = VolumeHandle::parse(&request.id).and_then(|handle| handle.location()) else {
            return Ok(None);
        };
        let export = self.export(&location, &request.secrets).await.map_err(BackendError::Internal)?;
        match self.find(&export, &request.id, Some(location.path)).await {
            Ok(found) => Ok(found.as_ref().map(issues)),
            Err(BackendError::Unavailable(message)) => Ok(Some(vec![HealthIssue {
                status: HealthStatus::Inaccessible,
                reason: "ServerUnreachable".to_owned(),
                message,
            }])),
            Err(error) => Err(error),
        }
    }

    async fn storage_health(&self, _: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError> {
        // Servers are reported per node, where they are used.
        Ok(Vec::new())
    }
}

fn issues(volume: &VolumeInfo) -> Vec<HealthIssue> {
    match volume.present {
        true => Vec::new(),
        false => vec![HealthIssue {
            status: HealthStatus::DataLoss,
            reason: "DirectoryMissing".to_owned(),
            message: format!(
                "directory {} of volume {} does not exist, or is another one (other file ID); restore it from a backup",
                volume.path, volume.handle
            ),
        }],
    }
}
