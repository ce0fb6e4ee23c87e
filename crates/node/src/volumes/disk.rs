//! Directories and records of volumes on disk, checked against the mount table.
//!
//! Guarantees: a record is durable when the call returns, and nothing is removed that has a mount on it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::{Kernel, MountTable, PathBeneath, write_durably};

use super::data::{Data, FILE, Unreadable};
use crate::paths::Root;

/// A failed disk operation.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
    /// Something is still mounted at a path to be removed.
    #[error("{} is still mounted although the driver reported success: check with `findmnt`", path.display())]
    StillMounted {
        /// The path.
        path: PathBuf,
    },
    /// The staged volume is mounted elsewhere too.
    #[error(
        "the device mount path {path:?} is still mounted by other references {others:?}: unmount them to unstage the volume"
    )]
    Referenced {
        /// Where it is staged.
        path: PathBuf,
        /// The other mount points.
        others: Vec<PathBuf>,
    },
    /// A file could not be created or removed.
    #[error("{step} {}: {source}", path.display())]
    Files {
        /// The failed system call.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The path is outside the root directory.
    #[error("{} is not beneath {}", path.display(), root.display())]
    Outside {
        /// The path.
        path: PathBuf,
        /// The root.
        root: PathBuf,
    },
    /// The blocking task panicked or was cancelled.
    #[error("the disk operation was aborted; retrying")]
    Aborted,
}

/// Content of a record; `None` if there is none.
pub(super) type Read = Option<Result<Data, Unreadable>>;

/// The disk, for async code.
#[derive(Clone)]
pub(super) struct Disk {
    kernel: Arc<dyn Kernel>,
    root: Root,
}

impl Disk {
    pub(super) fn new(kernel: Arc<dyn Kernel>, root: Root) -> Self {
        Self { kernel, root }
    }

    /// Runs blocking steps on a blocking thread, if the kernel can block. They run to completion even if the caller
    /// is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        steps: impl FnOnce(&BlockingDisk<'_>) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        let Self { kernel, root } = self.clone();
        let work = move || steps(&BlockingDisk { kernel: &*kernel, root: &root });
        if !self.kernel.may_block() {
            return work();
        }
        tokio::task::spawn_blocking(work).await.unwrap_or(Err(DiskError::Aborted))
    }
}

/// The disk, for code that may block.
pub(super) struct BlockingDisk<'a> {
    pub(super) kernel: &'a dyn Kernel,
    pub(super) root: &'a Root,
}

impl BlockingDisk<'_> {
    /// Creates `dir` with its parents and durably writes the record in it; then creates `also`.
    pub(super) fn record(&self, dir: &Path, record: &[u8], also: Option<&Path>) -> Result<(), DiskError> {
        self.kernel.create_target_dir(dir)?;
        let file = self.within(&dir.join(FILE))?;
        let file = PathBeneath::new(self.root.path(), &file);
        if self.kernel.read_file(&file)?.as_deref() != Some(record) {
            write_durably(self.kernel, &file, record)?;
        }
        if let Some(also) = also {
            self.kernel.create_target_dir(also)?;
        }
        Ok(())
    }

    /// Reads the record in a directory; `None` if there is none.
    pub(super) fn read(&self, dir: &Path) -> Result<Read, DiskError> {
        let file = self.within(&dir.join(FILE))?;
        let bytes = if_directory(self.kernel.read_file(&PathBeneath::new(self.root.path(), &file)))?;
        Ok(bytes.flatten().map(|bytes| Data::read(&bytes)))
    }

    /// Names in a directory; empty if it does not exist or is not a directory.
    pub(super) fn names(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        let dir = self.within(dir)?;
        let names = if_directory(self.kernel.list_dir(&PathBeneath::new(self.root.path(), &dir)))?;
        Ok(names.unwrap_or_default())
    }

    /// Whether something is mounted at exactly this path.
    pub(super) fn is_mounted(&self, table: &MountTable, path: &Path) -> Result<bool, DiskError> {
        Ok(table.at(&self.kernel.resolve(path)?).is_some())
    }

    /// Removes the target, the record next to it and their directory, only if nothing is mounted there.
    pub(super) fn remove(&self, target: &Path) -> Result<(), DiskError> {
        self.remove_target(target)?;
        match target.parent() {
            Some(dir) => self.remove_record(dir),
            None => Ok(()),
        }
    }

    /// Removes an empty directory or file with no mount on it; a missing one is success.
    pub(super) fn remove_target(&self, target: &Path) -> Result<(), DiskError> {
        if self.is_mounted(&self.kernel.mount_table()?, target)? {
            return Err(DiskError::StillMounted { path: target.to_owned() });
        }
        Ok(self.kernel.remove_target(target)?)
    }

    /// Removes a record and its directory; a missing one is success. The record is removed first: a directory without
    /// a record means that its volume is gone.
    pub(super) fn remove_record(&self, dir: &Path) -> Result<(), DiskError> {
        let root = self.root.path();
        for name in [FILE.to_owned(), format!("{FILE}.tmp")] {
            let file = self.within(&dir.join(name))?;
            self.kernel.remove_file(&PathBeneath::new(root, &file))?;
        }
        let dir = self.within(dir)?;
        Ok(self.kernel.remove_dir(&PathBeneath::new(root, &dir))?)
    }

    /// Removes what is left of a published block volume.
    pub(super) fn remove_published_device(&self, spec: &str, pod: &str) -> Result<(), DiskError> {
        let target = self.root.device_publish(spec, pod);
        self.remove_target(&target)?;
        self.unlink(&self.device_link(spec, pod))?;
        target.parent().map_or(Ok(()), |dir| self.remove_if_empty(dir))
    }

    /// Removes what is left of a staged block volume; its record is second to last.
    pub(super) fn remove_device(&self, spec: &str) -> Result<(), DiskError> {
        self.remove_target(&self.root.device_stage(spec))?;
        // Created for a publish that did not happen.
        self.remove_if_empty(&self.root.devices().join("publish").join(spec))?;
        self.remove_record(&self.root.device_data(spec))?;
        self.remove_if_empty(&self.root.devices().join(spec))
    }

    /// Removes the directory of a volume that is gone, given its target path.
    pub(super) fn sweep(&self, target: &Path) -> Result<(), DiskError> {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (Some(parent), devices) = (target.parent(), self.root.devices()) else { return Ok(()) };
        if parent == devices.join("staging") {
            self.remove_device(&name(target))
        } else if parent.parent() == Some(&devices.join("publish")) {
            self.remove_published_device(&name(parent), &name(target))
        } else {
            self.remove(target)
        }
    }

    /// The link in a pod's directory to its block device.
    pub(super) fn device_link(&self, spec: &str, pod: &str) -> PathBuf {
        self.root.pod(pod).join("volumeDevices/kubernetes.io~csi").join(spec)
    }

    /// Removes a directory if it is empty.
    pub(super) fn remove_if_empty(&self, dir: &Path) -> Result<(), DiskError> {
        if !self.names(dir)?.is_empty() {
            return Ok(());
        }
        let dir = self.within(dir)?;
        Ok(self.kernel.remove_dir(&PathBeneath::new(self.root.path(), &dir))?)
    }

    /// Fails if what is mounted at `path`, or a part of it, is also mounted elsewhere: those users would lose the
    /// volume.
    pub(super) fn check_unreferenced(&self, path: &Path) -> Result<(), DiskError> {
        let table = self.kernel.mount_table()?;
        let at = self.kernel.resolve(path)?;
        let others = references(&table, &at);
        match others.is_empty() {
            true => Ok(()),
            false => Err(DiskError::Referenced { path: path.to_owned(), others }),
        }
    }

    /// Creates the link in a pod's directory to its block device.
    pub(super) fn link(&self, link: &Path, to: &Path) -> Result<(), DiskError> {
        let failed = |step| move |source| DiskError::Files { step, path: link.to_owned(), source };
        if let Some(parent) = link.parent() {
            self.kernel.create_target_dir(parent)?;
        }
        match std::os::unix::fs::symlink(to, link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match std::fs::read_link(link).map_err(failed("readlink"))? == to {
                    true => Ok(()),
                    false => {
                        self.unlink(link)?;
                        std::os::unix::fs::symlink(to, link).map_err(failed("symlink"))
                    }
                }
            }
            made => made.map_err(failed("symlink")),
        }
    }

    /// Removes such a link; a missing one is success.
    pub(super) fn unlink(&self, link: &Path) -> Result<(), DiskError> {
        match std::fs::remove_file(link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DiskError::Files { step: "unlink", path: link.to_owned(), source: error })
            }
            _ => Ok(()),
        }
    }

    fn within(&self, path: &Path) -> Result<PathBuf, DiskError> {
        let root = self.root.path();
        let within = path.strip_prefix(root).map(Path::to_owned);
        within.map_err(|_| DiskError::Outside { path: path.to_owned(), root: root.to_owned() })
    }
}

/// Maps "not a directory" to `None`: foreign files among our directories are ignored.
fn if_directory<T>(result: wharf_linux::Result<T>) -> Result<Option<T>, DiskError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.errno().map(|errno| io::Error::from_raw_os_error(errno).kind()) {
            Some(io::ErrorKind::NotADirectory) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// Other mount points of what is mounted at `at`, or of a part of it.
fn references(table: &MountTable, at: &Path) -> Vec<PathBuf> {
    let Some(staged) = table.at(at) else { return Vec::new() };
    let same = |mount: &&wharf_linux::Mount| {
        mount.device == staged.device
            && mount.mount_point != staged.mount_point
            && mount.root.starts_with(&staged.root)
    };
    table.mounts().iter().filter(same).map(|mount| mount.mount_point.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[&str]) -> MountTable {
        MountTable::parse(lines.join("\n").as_bytes()).unwrap()
    }

    /// kubernetes.md 1.8 "Unstage"; kubernetes#122342: other mounts of the volume are listed.
    #[test]
    fn references_lists_other_mounts_of_the_volume() {
        let table = table(&[
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            "2 1 7:0 / /k/globalmount rw - ext4 /dev/loop0 rw",
            "3 1 7:0 /sub /elsewhere rw - ext4 /dev/loop0 rw",
            "4 1 7:1 / /k/other rw - ext4 /dev/loop1 rw",
            "5 1 8:1 /data /k/hostpath rw - ext4 /dev/sda1 rw",
            "6 1 8:1 /data/sub /mnt rw - ext4 /dev/sda1 rw",
        ]);
        assert_eq!(references(&table, Path::new("/k/globalmount")), [PathBuf::from("/elsewhere")]);
        assert_eq!(references(&table, Path::new("/k/other")), Vec::<PathBuf>::new());
        assert_eq!(references(&table, Path::new("/k/hostpath")), [PathBuf::from("/mnt")]);
        assert_eq!(references(&table, Path::new("/k/nothing")), Vec::<PathBuf>::new());
    }

    #[tokio::test]
    async fn record_is_written_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let disk = Disk::new(Arc::new(wharf_linux::Linux::new()), root.clone());
        let data =
            Data { driver: "d".into(), handle: "h".into(), spec: None, lifecycle: None, se_linux: None };
        let stage = root.stage("d", "h");
        let target = stage.join("globalmount");
        let record = data.staged();
        disk.run(move |disk| {
            disk.record(&stage, &record, Some(&target))?;
            disk.record(&stage, &record, Some(&target))?;
            assert_eq!(disk.read(&stage)?, Some(Ok(data)));
            assert!(target.is_dir());
            assert_eq!(disk.names(&stage)?, ["globalmount", FILE]);
            disk.check_unreferenced(&target)?;
            disk.remove(&target)?;
            disk.remove(&target)?;
            assert!(!stage.exists());
            assert_eq!(disk.read(&stage)?, None);
            Ok(())
        })
        .await
        .unwrap();
    }
}
