//! Health as this node sees it: what the backend says of a volume, and what the mount table and the file
//! system's own counters add. Reads only.

use std::path::PathBuf;

use wharf_csi::v1;
use wharf_linux::{FsType, Kernel, Mount};

use super::block::Block;
use super::error::NodeError;
use super::mounts::{DeviceNode, Kind, list, turned_read_only};
use crate::backend::{Device, HealthIssue, HealthStatus, StorageIssue, StorageStatus};

impl Block {
    /// What is wrong with the volume's device and mounts. `paths` are where the orchestrator believes it is.
    pub(crate) async fn mount_issues(
        &self,
        id: &str,
        paths: Vec<PathBuf>,
    ) -> Result<Vec<HealthIssue>, NodeError> {
        let device = self.attached(id).await?;
        self.machine
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
        node.uses(&table).filter(|mount| node.kind_of(mount) == Some(Kind::Filesystem)).collect();
    let mut issues = Vec::new();
    let turned: Vec<&Mount> = mounts.iter().copied().filter(|mount| turned_read_only(mount)).collect();
    if !turned.is_empty() {
        let message = format!(
            "the file system at {} became read-only after errors; stop its pods and stage it again, which \
             checks it",
            list(turned)
        );
        issues.push(issue(HealthStatus::Degraded, "FilesystemReadOnly", message));
    }
    let filesystem = mounts.first().and_then(|mount| Some((mount, mount.fs_type.parse::<FsType>().ok()?)));
    if let Some((mount, fs)) = filesystem {
        let errors = kernel.fs_error_count(&device.path, fs, &mount.mount_point)?;
        if errors > 0 {
            let message = format!("{fs} has counted {errors} errors; check it and the storage beneath it");
            issues.push(issue(HealthStatus::Degraded, "FilesystemErrors", message));
        }
    }
    Ok(issues)
}

/// A volume that is not attached and yet mounted has lost its device.
fn orphan_issues(kernel: &dyn Kernel, paths: &[PathBuf]) -> Result<Vec<HealthIssue>, NodeError> {
    let table = kernel.mount_table()?;
    let resolved = paths.iter().map(|path| kernel.resolve(path)).collect::<wharf_linux::Result<Vec<_>>>()?;
    let mounts: Vec<&Mount> = resolved.iter().filter_map(|path| table.at(path)).collect();
    if mounts.is_empty() {
        return Ok(Vec::new());
    }
    let message = format!("it is mounted at {}, but its device is no longer attached", list(mounts));
    Ok(vec![issue(HealthStatus::Inaccessible, "DeviceMissing", message)])
}

fn issue(status: HealthStatus, reason: &str, message: String) -> HealthIssue {
    HealthIssue { status, reason: reason.to_owned(), message }
}

/// On the wire, each `(status, reason)` once.
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
