//! Health of volumes on this node: issues from the backend, from the mount table and from the file system's error counters.
//! Read-only.

use std::path::PathBuf;

use wharf_csi::v1;
use wharf_linux::{FsType, Kernel, Mount};

use super::block::Block;
use super::error::NodeError;
use super::mounts::{DeviceNode, VolumeMode, became_read_only, mount_points};
use crate::backend::{Device, HealthIssue, HealthStatus, StorageIssue, StorageStatus};

impl Block {
    /// The issues of the volume's device and mounts. `paths` are where the orchestrator expects the volume.
    pub(crate) async fn mount_issues(
        &self,
        id: &str,
        paths: Vec<PathBuf>,
    ) -> Result<Vec<HealthIssue>, NodeError> {
        let device = self.find_attached(id).await?;
        self.kernel
            .run(move |kernel| match device {
                Some(device) => attached_issues(kernel, &device),
                None => orphan_issues(kernel, &paths),
            })
            .await
    }
}

fn attached_issues(kernel: &dyn Kernel, device: &Device) -> Result<Vec<HealthIssue>, NodeError> {
    if let Err(error) = kernel.device_size(&device.path) {
        return Ok(vec![issue(HealthStatus::Inaccessible, "DeviceMissing", error.to_string())]);
    }
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    let mounts: Vec<&Mount> =
        node.mounts_in(&table).filter(|mount| node.mode_of(mount) == Some(VolumeMode::Filesystem)).collect();
    let mut issues = Vec::new();
    let turned: Vec<&Mount> = mounts.iter().copied().filter(|mount| became_read_only(mount)).collect();
    if !turned.is_empty() {
        let message = format!(
            "the file system at {} became read-only after errors; stop its pods and stage the volume again, which \
             checks the file system",
            mount_points(turned)
        );
        issues.push(issue(HealthStatus::Degraded, "FilesystemReadOnly", message));
    }
    let filesystem = mounts.first().and_then(|mount| Some((mount, mount.fs_type.parse::<FsType>().ok()?)));
    if let Some((mount, fs)) = filesystem {
        let errors = kernel.fs_error_count(&device.path, fs, &mount.mount_point)?;
        if errors > 0 {
            let message = format!(
                "{fs} has recorded {errors} errors; check the file system and the storage beneath it"
            );
            issues.push(issue(HealthStatus::Degraded, "FilesystemErrors", message));
        }
    }
    Ok(issues)
}

/// A volume that is mounted but not attached has lost its device.
fn orphan_issues(kernel: &dyn Kernel, paths: &[PathBuf]) -> Result<Vec<HealthIssue>, NodeError> {
    let table = kernel.mount_table()?;
    let resolved = paths.iter().map(|path| kernel.resolve(path)).collect::<wharf_linux::Result<Vec<_>>>()?;
    let mounts: Vec<&Mount> = resolved.iter().filter_map(|path| table.at(path)).collect();
    if mounts.is_empty() {
        return Ok(Vec::new());
    }
    let message =
        format!("the volume is mounted at {}, but its device is no longer attached", mount_points(mounts));
    Ok(vec![issue(HealthStatus::Inaccessible, "DeviceMissing", message)])
}

fn issue(status: HealthStatus, reason: &str, message: String) -> HealthIssue {
    HealthIssue { status, reason: reason.to_owned(), message }
}

/// Converts the issues to the response; each `(status, reason)` is returned once.
pub(crate) fn storage_health(issues: Vec<StorageIssue>) -> v1::NodeGetStorageHealthResponse {
    use v1::node_get_storage_health_response::StorageBackendHealth;

    let mut entries: Vec<StorageBackendHealth> = Vec::new();
    for issue in issues {
        let status = i32::from(match issue.status {
            StorageStatus::Degraded => v1::StorageHealthErrorType::StorageDegraded,
            StorageStatus::Unreachable => v1::StorageHealthErrorType::StorageUnreachable,
        });
        if !entries.iter().any(|entry| entry.status == status && entry.reason == issue.reason) {
            let (reason, message) = (issue.reason, issue.message);
            entries.push(StorageBackendHealth { status, reason, message, volume_capability: None });
        }
    }
    v1::NodeGetStorageHealthResponse { backend_health: entries }
}
