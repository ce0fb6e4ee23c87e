//! Snapshots and clones on a pool with reflinks: freeze the file systems, reflink the images, thaw. A durable
//! freeze record is written before the freeze. If the freeze expired before the reflink was complete, the copy of a
//! single volume is kept as a crash-consistent one: the kernel locks the image during the whole reflink, so the copy has
//! the image's content at one point in time. Copies of several volumes are discarded then.

use std::path::{Path, PathBuf};

use wharf_driver::backend::{BackendError, CreateError, FormatState, SnapshotError};
use wharf_linux::{Mount, MountTable, PathBeneath};

use super::{PoolCore, lock};
use crate::fault::{During as _, Fault};
use crate::record::{FreezeRecord, VERSION, VolumeRecord};
use crate::store;

/// A volume and the id of its copy.
pub(super) struct ReflinkCopy<'a> {
    pub source: &'a VolumeRecord,
    pub target: &'a str,
}

/// What a copy of a file system in use contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyConsistency {
    /// A file system that was frozen, or not in use.
    Consistent,
    /// What the disk would have after a power failure.
    CrashConsistent,
}

/// Why a reflink copy failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReflinkError {
    /// The volume's current state does not allow it.
    #[error("{0}")]
    State(String),
    /// A temporary failure: a retry may succeed.
    #[error("{0}")]
    Retryable(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<ReflinkError> for SnapshotError {
    fn from(error: ReflinkError) -> Self {
        match error {
            ReflinkError::State(message) => Self::Precondition(message),
            ReflinkError::Retryable(message) => Self::Backend(BackendError::Unavailable(message)),
            ReflinkError::Fault(fault) => fault.into(),
        }
    }
}

impl From<ReflinkError> for CreateError {
    fn from(error: ReflinkError) -> Self {
        match error {
            ReflinkError::State(message) => Self::Precondition(message),
            ReflinkError::Retryable(message) => Self::Backend(BackendError::Unavailable(message)),
            ReflinkError::Fault(fault) => fault.into(),
        }
    }
}

/// Where to freeze a device's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FreezePoint {
    NotMounted,
    /// Mounted read-only: nothing to freeze.
    ReadOnly,
    /// Freeze it at this mount point.
    At(PathBuf),
    /// Mounted, but every mount point is covered by another mount.
    Hidden,
}

impl PoolCore {
    /// Refuses to copy a volume while it is being formatted: the copy would contain half a file system.
    pub(super) fn refuse_formatting(&self, record: &VolumeRecord) -> Result<(), ReflinkError> {
        if let FormatState::Formatting { .. } = record.format {
            return Err(ReflinkError::State(format!(
                "volume {} is being formatted: stage it once, then retry",
                record.id
            )));
        }
        if record.growing_offline {
            return Err(ReflinkError::State(format!(
                "the file system of volume {} is being enlarged: stage it once, then retry",
                record.id
            )));
        }
        Ok(())
    }

    /// Reflinks each source to its target, all at one point in time.
    pub(super) fn reflink_all(&self, copies: &[ReflinkCopy<'_>]) -> Result<CopyConsistency, ReflinkError> {
        let table = self.kernel().mount_table().during("read the mount table", "the pool")?;
        let mut points = Vec::new();
        for ReflinkCopy { source, .. } in copies {
            if let Some(point) = self.quiesce(source, &table)? {
                points.push(point);
            }
        }
        if points.is_empty() {
            self.share(copies)?;
            return Ok(CopyConsistency::Consistent);
        }
        let _one_at_a_time = lock(&self.freezing);
        let file = Path::new(store::FREEZE);
        let record = FreezeRecord { version: VERSION, mount_points: points.clone() };
        self.store.save(file, &record).during("write the freeze record", "the pool")?;
        let paths: Vec<&Path> = points.iter().map(PathBuf::as_path).collect();
        let result = self.share_frozen(copies, &paths);
        self.store.remove_file(file).during("remove the freeze record", "the pool")?;
        result
    }

    fn share_frozen(
        &self,
        copies: &[ReflinkCopy<'_>],
        mount_points: &[&Path],
    ) -> Result<CopyConsistency, ReflinkError> {
        let named = copies.first().map_or("the pool", |copy| &copy.source.id);
        let frozen = self
            .kernel()
            .freeze(mount_points, self.config.freeze_limit)
            .during("freeze its file system", named)?;
        let shared = self.share(copies);
        let thawed = frozen.thaw();
        shared?;
        match (thawed, copies) {
            (Ok(()), _) => Ok(CopyConsistency::Consistent),
            (Err(error), [copy]) => {
                tracing::warn!(
                    volume_handle = named,
                    copy = copy.target,
                    %error,
                    "freeze expired before the copy was complete: the copy is crash-consistent; a larger \
                     --freeze-limit avoids that"
                );
                Ok(CopyConsistency::CrashConsistent)
            }
            (Err(error), _) => Err(ReflinkError::Retryable(format!(
                "{named}: the freeze expired before all copies of the group were complete ({error}); the copies \
                 were discarded: retry, or start the driver with a larger --freeze-limit"
            ))),
        }
    }

    fn share(&self, copies: &[ReflinkCopy<'_>]) -> Result<(), ReflinkError> {
        for ReflinkCopy { source, target } in copies {
            self.reflink(&source.id, target)?;
        }
        Ok(())
    }

    /// Reflinks the image of `source` to `target`.
    pub(super) fn reflink(&self, source: &str, target: &str) -> Result<(), Fault> {
        let (from, to) = (store::image_of(source), store::image_of(target));
        self.kernel()
            .reflink(&self.store.at(&from), &self.store.at(&to))
            .during("reflink its source's image", target)
    }

    /// Flushes the volume before the freeze and returns the mount point to freeze, if there is one.
    fn quiesce(&self, record: &VolumeRecord, table: &MountTable) -> Result<Option<PathBuf>, ReflinkError> {
        let id = &record.id;
        for device in self.loop_devices_of(record)? {
            let number = self.kernel().device_number(&device.path).during("read its device number", id)?;
            match freeze_point(table, &device.path, number) {
                FreezePoint::At(point) => {
                    // Flush before the freeze, so that the freeze is short.
                    self.store.sync(&store::image_of(id)).during("flush its image", id)?;
                    return Ok(Some(point));
                }
                FreezePoint::ReadOnly => {}
                FreezePoint::NotMounted if matches!(record.format, FormatState::Copied { .. }) => {
                    return Err(ReflinkError::State(format!(
                        "volume {id} is being assigned its own file system UUID: retry when it is staged"
                    )));
                }
                // A raw device: the copy has what was written so far, as after a power failure.
                FreezePoint::NotMounted => self.flush(&device.path, id)?,
                FreezePoint::Hidden => {
                    return Err(ReflinkError::State(format!(
                        "volume {id} is mounted, but another mount covers it, so it cannot be frozen: unmount the other mount"
                    )));
                }
            }
        }
        Ok(None)
    }

    /// Writes the device's page cache to the image.
    fn flush(&self, device: &Path, id: &str) -> Result<(), Fault> {
        let (Some(dir), Some(name)) = (device.parent(), device.file_name()) else { return Ok(()) };
        self.kernel().sync(&PathBeneath::new(dir, Path::new(name))).during("flush its device", id)
    }
}

/// Whether a mount is of the file system on this device. btrfs reports an anonymous device number, but names the
/// device as its source.
pub(super) fn is_on(mount: &Mount, device: &Path, number: (u32, u32)) -> bool {
    mount.device == number || (mount.fs_type == "btrfs" && Path::new(&mount.source) == device)
}

/// Where a device's file system can be frozen: at a mount point that is not covered by another mount.
fn freeze_point(table: &MountTable, device: &Path, number: (u32, u32)) -> FreezePoint {
    let mut found = FreezePoint::NotMounted;
    for (i, mount) in table.mounts().iter().enumerate() {
        if !is_on(mount, device, number) {
            continue;
        }
        if mount.super_options.iter().any(|option| option == "ro") {
            return FreezePoint::ReadOnly;
        }
        let covered =
            table.mounts()[i + 1..].iter().any(|later| mount.mount_point.starts_with(&later.mount_point));
        if !covered {
            return FreezePoint::At(mount.mount_point.clone());
        }
        found = FreezePoint::Hidden;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freeze_point_is_an_uncovered_writable_mount() {
        let at = |path: &str| FreezePoint::At(path.into());
        let cases = [
            ("", FreezePoint::NotMounted),
            ("40 22 7:4 / /a rw - ext4 /dev/loop4 rw\n", FreezePoint::NotMounted),
            ("40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n", at("/a")),
            ("40 22 0:44 / /a rw - btrfs /dev/loop3 rw\n", at("/a")),
            ("40 22 0:44 / /a rw - btrfs /dev/loop33 rw\n", FreezePoint::NotMounted),
            // A read-only bind mount of a file system that is writable elsewhere.
            ("40 22 7:3 / /a ro - ext4 /dev/loop3 rw\n", at("/a")),
            ("40 22 7:3 / /a ro - ext4 /dev/loop3 ro\n", FreezePoint::ReadOnly),
            (
                "40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a rw - tmpfs tmpfs rw\n",
                FreezePoint::Hidden,
            ),
            (
                "40 22 7:3 / /a/b rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a rw - tmpfs tmpfs rw\n",
                FreezePoint::Hidden,
            ),
            (
                "40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a rw - tmpfs tmpfs rw\n\
                 42 22 7:3 / /b rw - ext4 /dev/loop3 rw\n",
                at("/b"),
            ),
            ("40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a/inner rw - tmpfs tmpfs rw\n", at("/a")),
        ];
        for (text, expected) in cases {
            let table = MountTable::parse(text.as_bytes()).unwrap();
            assert_eq!(freeze_point(&table, Path::new("/dev/loop3"), (7, 3)), expected, "{text}");
        }
    }
}
