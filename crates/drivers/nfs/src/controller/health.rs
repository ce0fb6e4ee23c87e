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
    let VolumeInfo { handle, path, size, .. } = volume;
    let missing = (!volume.present).then(|| HealthIssue {
        status: HealthStatus::DataLoss,
        reason: "DirectoryMissing".to_owned(),
        message: format!(
            "directory {path} of volume {handle} does not exist, or is another one (other file ID); restore it from a backup"
        ),
    });
    // The last part of a limit cannot be used: file systems allocate in blocks, and need some for themselves. The size of an adopted
    // volume is not known before its next expansion.
    let is_full = |used: &u64| *size > 0 && *used >= size - size / 100;
    let full = volume.used.filter(is_full).map(|used| HealthIssue {
        status: HealthStatus::Degraded,
        reason: "QuotaFull".to_owned(),
        message: format!("volume {handle} uses {used} of {size} bytes; delete data, or expand it"),
    });
    missing.into_iter().chain(full).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::SharePath;

    #[test]
    fn missing_and_full_volumes_have_issues() {
        let reasons = |present: bool, size: u64, used: Option<u64>| {
            let path = SharePath::new("a").expect("a valid path");
            let volume = VolumeInfo {
                handle: "h".to_owned(),
                path,
                size,
                limited: used.is_some(),
                used,
                context: Default::default(),
                options: Vec::new(),
                source: None,
                present,
                recorded: true,
            };
            issues(&volume).into_iter().map(|issue| issue.reason).collect::<Vec<_>>()
        };
        for (present, size, used, expected) in [
            (true, 100, None, vec![]),
            (true, 100, Some(98), vec![]),
            (true, 100, Some(99), vec!["QuotaFull"]),
            (true, 100, Some(100), vec!["QuotaFull"]),
            (true, 0, Some(100), vec![]),
            (false, 100, None, vec!["DirectoryMissing"]),
        ] {
            assert_eq!(reasons(present, size, used), expected, "{present} {size} {used:?}");
        }
    }
}
