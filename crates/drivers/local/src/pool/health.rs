//! Health of a volume and of the pool.

use std::path::Path;

use wharf_driver::backend::{BackendError, HealthIssue, HealthStatus, StorageIssue, StorageStatus};
use wharf_linux::MountTable;

use super::PoolCore;
use super::devices::{ImageProblem, image_problem};
use crate::account::Fullness;
use crate::fault::During as _;
use crate::record::{Provisioning, VolumeRecord};
use crate::store;

/// Reasons are part of the interface: each is one stable word.
mod reason {
    pub(super) const IMAGE_MISSING: &str = "ImageMissing";
    pub(super) const IMAGE_SWAPPED: &str = "ImageSwapped";
    pub(super) const IMAGE_DAMAGED: &str = "ImageDamaged";
    pub(super) const RECORD_UNREADABLE: &str = "RecordUnreadable";
    pub(super) const POOL_FULL: &str = "PoolFull";
    pub(super) const POOL_NEARLY_FULL: &str = "PoolNearlyFull";
    pub(super) const POOL_READ_ONLY: &str = "PoolReadOnly";
    pub(super) const POOL_UNREACHABLE: &str = "PoolUnreachable";
}

impl PoolCore {
    /// Health issues of a volume; `None` if the volume does not exist.
    pub fn volume_health(&self, id: &str) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        let broken = self.index().broken(id).map(str::to_owned);
        if let Some(reason) = broken {
            return Ok(Some(vec![issue(HealthStatus::Inaccessible, reason::RECORD_UNREADABLE, reason)]));
        }
        let Some(record) = self.ready_volume(id)? else { return Ok(None) };
        let mut issues: Vec<_> = self.image_issue(&record)?.into_iter().collect();
        // A thick volume has its blocks, unless it shares them or the pool's file lacks some.
        let shares =
            self.reflink && (record.source.is_some() || self.index().snapshots_of(id, None).next().is_some());
        let has_blocks = record.provisioning == Provisioning::Thick && !shares;
        for StorageIssue { status, reason, message } in self.storage_health()? {
            let full = [reason::POOL_FULL, reason::POOL_NEARLY_FULL].contains(&reason.as_str());
            if full && has_blocks && self.recent_account()?.free_beneath.is_none() {
                continue;
            }
            let status = match status {
                StorageStatus::Degraded => HealthStatus::Degraded,
                StorageStatus::Unreachable => HealthStatus::Inaccessible,
            };
            issues.push(HealthIssue { status, reason, message });
        }
        Ok(Some(issues))
    }

    fn image_issue(&self, record: &VolumeRecord) -> Result<Option<HealthIssue>, BackendError> {
        let id = &record.id;
        let path = store::image_of(id);
        let stat = self.store.stat(&path).during("stat its image", id)?;
        let Some(fault) = image_problem(stat, record.image_inode, record.size) else { return Ok(None) };
        let (status, reason) = match fault {
            ImageProblem::Missing => (HealthStatus::DataLoss, reason::IMAGE_MISSING),
            ImageProblem::Swapped => (HealthStatus::Inaccessible, reason::IMAGE_SWAPPED),
            ImageProblem::Size(found) if found < record.size => {
                (HealthStatus::DataLoss, reason::IMAGE_DAMAGED)
            }
            ImageProblem::Size(_) => (HealthStatus::Inaccessible, reason::IMAGE_DAMAGED),
        };
        Ok(Some(issue(status, reason, fault.message(&self.store.root.join(path), record.size))))
    }

    /// Health issues of the pool.
    pub fn storage_health(&self) -> Result<Vec<StorageIssue>, BackendError> {
        let issue =
            |status, reason: &str, message| StorageIssue { status, reason: reason.to_owned(), message };
        let mut issues = Vec::new();
        if let Err(message) = self.ready() {
            return Ok(vec![issue(StorageStatus::Unreachable, reason::POOL_UNREACHABLE, message)]);
        }
        let usage = self.usage()?;
        let table = self.kernel().mount_table().during("read the mount table", "the pool")?;
        if usage.read_only || is_read_only(&table, &self.store.root) {
            let message = "the pool's file system is read-only: check the kernel log, repair and remount it";
            issues.push(issue(StorageStatus::Degraded, reason::POOL_READ_ONLY, message.to_owned()));
        }
        let account = self.recent_account()?;
        let reason = match account.fullness {
            Fullness::Normal => return Ok(issues),
            Fullness::NearlyFull => reason::POOL_NEARLY_FULL,
            Fullness::Full => reason::POOL_FULL,
        };
        let message = format!(
            "{}; {} bytes are free, volumes can still take {}; {}",
            account.fullness_message(),
            account.free,
            account.outstanding,
            account.remedy()
        );
        issues.push(issue(StorageStatus::Degraded, reason, message));
        Ok(issues)
    }
}

/// Whether the file system that holds `path` is read-only. After an error, ext4 shows that only in the mount table:
/// statvfs still reports it as writable.
fn is_read_only(table: &MountTable, path: &Path) -> bool {
    table.holding(path).is_some_and(|mount| {
        mount.is_read_only() || mount.super_options.iter().any(|option| option == "emergency_ro")
    })
}

fn issue(status: HealthStatus, reason: &str, message: String) -> HealthIssue {
    HealthIssue { status, reason: reason.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_is_detected_on_the_topmost_mount() {
        let rw = "1 0 8:1 / / rw - ext4 /dev/sda rw\n";
        let cases = [
            (rw.to_owned(), false),
            (format!("{rw}2 1 8:2 / /srv ro - xfs /dev/sdb rw\n"), true),
            (format!("{rw}2 1 8:2 / /srv rw - ext4 /dev/sdb rw,emergency_ro\n"), true),
            (format!("{rw}2 1 8:2 / /srv/pool2 ro - xfs /dev/sdb ro\n"), false),
            (
                format!(
                    "{rw}2 1 8:2 / /srv ro - xfs /dev/sdb ro\n3 2 8:3 / /srv/pool rw - xfs /dev/sdc rw\n"
                ),
                false,
            ),
            (
                format!("{rw}2 1 8:2 / /srv ro - xfs /dev/sdb ro\n3 2 8:3 / /srv rw - xfs /dev/sdc rw\n"),
                false,
            ),
        ];
        for (text, expected) in cases {
            let table = MountTable::parse(text.as_bytes()).unwrap();
            assert_eq!(is_read_only(&table, Path::new("/srv/pool")), expected, "{text}");
        }
    }
}
