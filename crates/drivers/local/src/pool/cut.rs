//! The moment of a snapshot or clone on a pool that can share extents: file systems frozen, images shared,
//! file systems thawed. Who freezes leaves a durable note first, and a copy whose freeze ran out is not kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use wharf_driver::backend::{BackendError, CreateError, Format, SnapshotError};
use wharf_linux::{Beneath, FileId, LoopDevice, Mount, MountTable};

use super::{Core, lock};
use crate::fault::{During as _, Fault};
use crate::record::{FreezeRecord, VERSION, VolumeRecord};
use crate::store;

/// How long file systems stay frozen at most. Writers wait all that time.
const FREEZE_AT_MOST: Duration = Duration::from_secs(2);

/// A volume and the id of what becomes its copy.
pub(super) struct Cut<'a> {
    pub source: &'a VolumeRecord,
    pub target: &'a str,
}

/// Why nothing was cut.
#[derive(Debug, thiserror::Error)]
pub(super) enum CutError {
    /// Not in the state that the volume is in.
    #[error("{0}")]
    State(String),
    /// Not this time; the same call again may succeed.
    #[error("{0}")]
    Again(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<CutError> for SnapshotError {
    fn from(error: CutError) -> Self {
        match error {
            CutError::State(message) => Self::Precondition(message),
            CutError::Again(message) => Self::Backend(BackendError::Unavailable(message)),
            CutError::Fault(fault) => fault.into(),
        }
    }
}

impl From<CutError> for CreateError {
    fn from(error: CutError) -> Self {
        match error {
            CutError::State(message) => Self::Precondition(message),
            CutError::Again(message) => Self::Backend(BackendError::Unavailable(message)),
            CutError::Fault(fault) => fault.into(),
        }
    }
}

/// How a device's file system is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
enum InUse {
    NotMounted,
    /// Nobody can write: nothing to freeze.
    ReadOnly,
    /// Freeze it here.
    At(PathBuf),
    /// Mounted, but something else is mounted over each place.
    Hidden,
}

impl Core {
    /// The loop devices of a volume's image: by the identity in its record, and by what is at its place now.
    pub(super) fn loops_of(&self, record: &VolumeRecord) -> Result<Vec<LoopDevice>, Fault> {
        let id = &record.id;
        let dir = self.store.stat(&store::dir_of(id)).during("look at its directory", id)?;
        let image = self.store.stat(&store::image_of(id)).during("look at its image", id)?;
        let recorded =
            dir.zip(record.image_inode).map(|(dir, inode)| FileId { device: dir.id.device, inode });
        let present = image.map(|image| image.id);
        let mut loops = self.kernel().loop_devices().during("list loop devices", id)?;
        loops.retain(|device| Some(device.backing) == recorded || Some(device.backing) == present);
        Ok(loops)
    }

    /// Refuses to copy a volume in the middle of being prepared: half a file system would come out.
    pub(super) fn must_be_settled(&self, record: &VolumeRecord) -> Result<(), CutError> {
        if let Format::Formatting { .. } = record.format {
            return Err(CutError::State(format!(
                "{} is being formatted: stage it once, then call again",
                record.id
            )));
        }
        Ok(())
    }

    /// Makes each target share its source's extents, all at one moment.
    pub(super) fn cut(&self, cuts: &[Cut<'_>]) -> Result<(), CutError> {
        let table = self.kernel().mount_table().during("read the mount table", "the pool")?;
        let mut points = Vec::new();
        for Cut { source, .. } in cuts {
            if let Some(point) = self.quiesce(source, &table)? {
                points.push(point);
            }
        }
        if points.is_empty() {
            return self.share(cuts);
        }
        let _one_at_a_time = lock(&self.freezing);
        let note = Path::new(store::FREEZE);
        let record = FreezeRecord { version: VERSION, mount_points: points.clone() };
        self.store.save(note, &record).during("note that it will be frozen", "the pool")?;
        let paths: Vec<&Path> = points.iter().map(PathBuf::as_path).collect();
        let result = self.share_frozen(cuts, &paths);
        self.store.remove_file(note).during("remove the note of the freeze", "the pool")?;
        result
    }

    fn share_frozen(&self, cuts: &[Cut<'_>], mount_points: &[&Path]) -> Result<(), CutError> {
        let named = cuts.first().map_or("the pool", |cut| &cut.source.id);
        let frozen =
            self.kernel().freeze(mount_points, FREEZE_AT_MOST).during("freeze its file system", named)?;
        let shared = self.share(cuts);
        let thawed = frozen.thaw();
        shared?;
        thawed.map_err(|error| {
            CutError::Again(format!(
                "{named}: the freeze did not last until the copy was made ({error}); nothing is kept, call again"
            ))
        })
    }

    fn share(&self, cuts: &[Cut<'_>]) -> Result<(), CutError> {
        for Cut { source, target } in cuts {
            self.reflink(&source.id, target)?;
        }
        Ok(())
    }

    /// Makes the image of `target` share all extents of `source`'s.
    pub(super) fn reflink(&self, source: &str, target: &str) -> Result<(), Fault> {
        let (from, to) = (store::image_of(source), store::image_of(target));
        self.kernel()
            .reflink(&self.store.at(&from), &self.store.at(&to))
            .during("share its source's image", target)
    }

    /// Flushes what can be flushed beforehand, and answers where the volume's file system is to be frozen.
    fn quiesce(&self, record: &VolumeRecord, table: &MountTable) -> Result<Option<PathBuf>, CutError> {
        let id = &record.id;
        for device in self.loops_of(record)? {
            let number = self.kernel().device_number(&device.path).during("look at its device", id)?;
            match in_use(table, &device.path, number) {
                InUse::At(point) => {
                    // Before the freeze, so that it is short.
                    self.store.sync(&store::image_of(id)).during("flush its image", id)?;
                    return Ok(Some(point));
                }
                InUse::ReadOnly => {}
                InUse::NotMounted if matches!(record.format, Format::Copied { .. }) => {
                    return Err(CutError::State(format!(
                        "{id} is just getting its own file system UUID: call again when it is staged"
                    )));
                }
                // A raw device: what its user has written so far, as after a power cut.
                InUse::NotMounted => self.flush(&device.path, id)?,
                InUse::Hidden => {
                    return Err(CutError::State(format!(
                        "{id} is mounted, but something is mounted over it, so it cannot be frozen: unmount that"
                    )));
                }
            }
        }
        Ok(None)
    }

    /// What was written to the device and sits in its page cache.
    fn flush(&self, device: &Path, id: &str) -> Result<(), Fault> {
        let (Some(dir), Some(name)) = (device.parent(), device.file_name()) else { return Ok(()) };
        self.kernel().sync(&Beneath::new(dir, Path::new(name))).during("flush its device", id)
    }
}

/// Whether a mount is of the file system on this device. btrfs has a device number of its own making, but
/// names the device as its source.
pub(super) fn is_on(mount: &Mount, device: &Path, number: (u32, u32)) -> bool {
    mount.device == number || (mount.fs_type == "btrfs" && Path::new(&mount.source) == device)
}

/// Where a device's file system can be frozen: at a place that a path really leads to.
fn in_use(table: &MountTable, device: &Path, number: (u32, u32)) -> InUse {
    let mut found = InUse::NotMounted;
    for (i, mount) in table.mounts().iter().enumerate() {
        if !is_on(mount, device, number) {
            continue;
        }
        if mount.super_options.iter().any(|option| option == "ro") {
            return InUse::ReadOnly;
        }
        let covered =
            table.mounts()[i + 1..].iter().any(|later| mount.mount_point.starts_with(&later.mount_point));
        if !covered {
            return InUse::At(mount.mount_point.clone());
        }
        found = InUse::Hidden;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_freeze() {
        let at = |path: &str| InUse::At(path.into());
        let cases = [
            ("", InUse::NotMounted),
            ("40 22 7:4 / /a rw - ext4 /dev/loop4 rw\n", InUse::NotMounted),
            ("40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n", at("/a")),
            ("40 22 0:44 / /a rw - btrfs /dev/loop3 rw\n", at("/a")),
            ("40 22 0:44 / /a rw - btrfs /dev/loop33 rw\n", InUse::NotMounted),
            // A read-only bind of a file system that is written elsewhere.
            ("40 22 7:3 / /a ro - ext4 /dev/loop3 rw\n", at("/a")),
            ("40 22 7:3 / /a ro - ext4 /dev/loop3 ro\n", InUse::ReadOnly),
            ("40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a rw - tmpfs tmpfs rw\n", InUse::Hidden),
            ("40 22 7:3 / /a/b rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a rw - tmpfs tmpfs rw\n", InUse::Hidden),
            (
                "40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a rw - tmpfs tmpfs rw\n\
                 42 22 7:3 / /b rw - ext4 /dev/loop3 rw\n",
                at("/b"),
            ),
            ("40 22 7:3 / /a rw - ext4 /dev/loop3 rw\n41 40 0:9 / /a/inner rw - tmpfs tmpfs rw\n", at("/a")),
        ];
        for (text, expected) in cases {
            let table = MountTable::parse(text.as_bytes()).unwrap();
            assert_eq!(in_use(&table, Path::new("/dev/loop3"), (7, 3)), expected, "{text}");
        }
    }
}
