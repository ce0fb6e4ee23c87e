//! The node's records of volumes, which must survive a restart. A record contains the volume's name, by which its
//! device is found, and a format in progress. There is one small file per volume, written before the volume is used and
//! removed when it is unstaged.
//!
//! A record that cannot be parsed is ignored: without one, a volume is found by its mounts, and a device is formatted
//! only if it reads as zeroes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wharf_linux::{Error, FsType, Kernel, PathBeneath, write_durably};

/// The current format version.
const VERSION: u32 = 1;

/// The record of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VolumeRecord {
    pub(super) version: u32,
    /// The volume's name.
    pub(super) name: String,
    /// A format in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) formatting: Option<Formatting>,
}

/// mkfs may have started, and its result was never mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Formatting {
    /// The file system type.
    pub(super) fs: FsType,
    /// Its UUID.
    pub(super) uuid: String,
    /// The disk.
    pub(super) disk: Disk,
}

/// One attachment of a disk to this machine. As long as it is the same, no other machine can have written to the disk;
/// after a detach, the recorded format state is no longer valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Disk {
    /// The kernel's boot id.
    pub(super) boot: String,
    /// The disk's sequence number since then.
    pub(super) sequence: u64,
}

impl VolumeRecord {
    pub(super) fn new(name: &str) -> Self {
        Self { version: VERSION, name: name.to_owned(), formatting: None }
    }
}

/// All records, in their own directory.
#[derive(Clone)]
pub(super) struct VolumeRecords {
    kernel: Arc<dyn Kernel>,
    root: PathBuf,
}

impl VolumeRecords {
    /// `root` must exist.
    pub(super) fn new(kernel: Arc<dyn Kernel>, root: PathBuf) -> Self {
        Self { kernel, root }
    }

    /// The record of a volume.
    pub(super) fn read(&self, id: &str) -> Result<Option<VolumeRecord>, Error> {
        let Some(file) = file_of(id) else { return Ok(None) };
        let text = self.kernel.read_file(&PathBeneath::new(&self.root, Path::new(&file)))?;
        Ok(text.and_then(|text| parse_record(&file, &text)))
    }

    /// Writes a record, durably. `false` if no volume can have that id.
    pub(super) fn write(&self, id: &str, record: &VolumeRecord) -> Result<bool, Error> {
        let Some(file) = file_of(id) else { return Ok(false) };
        if self.read(id)?.as_ref() == Some(record) {
            return Ok(true);
        }
        let failed = |error: serde_json::Error| Error::InvalidState {
            path: self.root.join(&file),
            reason: error.to_string(),
        };
        let text = serde_json::to_vec(record).map_err(failed)?;
        write_durably(&*self.kernel, &PathBeneath::new(&self.root, Path::new(&file)), &text)?;
        Ok(true)
    }

    /// Removes a record. Succeeds if it does not exist.
    pub(super) fn remove(&self, id: &str) -> Result<(), Error> {
        match file_of(id) {
            Some(file) => self.kernel.remove_file(&PathBeneath::new(&self.root, Path::new(&file))),
            None => Ok(()),
        }
    }

    /// Another volume whose record has this name.
    pub(super) fn other_volume_named(&self, name: &str, id: &str) -> Result<Option<String>, Error> {
        for file in self.kernel.list_dir(&PathBeneath::new(&self.root, Path::new(".")))? {
            let Some(other) = file.strip_suffix(SUFFIX).filter(|other| *other != id) else { continue };
            if self.read(other)?.is_some_and(|record| record.name == name) {
                return Ok(Some(other.to_owned()));
            }
        }
        Ok(None)
    }
}

const SUFFIX: &str = ".json";

/// The file name for an id. Ids are UUIDs; anything else is not used as a file name.
fn file_of(id: &str) -> Option<String> {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (plain && !id.is_empty() && id.len() <= 64).then(|| format!("{id}{SUFFIX}"))
}

fn parse_record(file: &str, text: &[u8]) -> Option<VolumeRecord> {
    match serde_json::from_slice::<VolumeRecord>(text) {
        Ok(record) if record.version == VERSION => Some(record),
        Ok(record) => {
            tracing::warn!(file, version = record.version, "ignored a volume record with an unknown version");
            None
        }
        Err(error) => {
            tracing::warn!(file, %error, "failed to parse a volume record; ignored it");
            None
        }
    }
}

/// The file of a volume's record, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn record_file(id: &str) -> Option<String> {
    file_of(id)
}

/// Reads a record and writes it again, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn rewrite_volume_record(text: &[u8]) -> Option<Vec<u8>> {
    parse_record("record.json", text).and_then(|record| serde_json::to_vec(&record).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";

    #[test]
    fn records_round_trip_and_invalid_records_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let records = VolumeRecords::new(Arc::new(wharf_linux::Linux::new()), dir.path().to_owned());
        let disk = Disk { boot: "b".into(), sequence: 7 };
        let formatting = Formatting { fs: FsType::Ext4, uuid: "u".into(), disk };
        let record = VolumeRecord { formatting: Some(formatting), ..VolumeRecord::new("pvc-1") };
        assert_eq!(records.read(ID).unwrap(), None);
        assert!(records.write(ID, &record).unwrap());
        assert_eq!(records.read(ID).unwrap(), Some(record));
        assert_eq!(records.other_volume_named("pvc-1", ID).unwrap(), None);
        assert_eq!(records.other_volume_named("pvc-1", "else").unwrap().as_deref(), Some(ID));
        records.remove(ID).unwrap();
        records.remove(ID).unwrap();
        assert_eq!(records.read(ID).unwrap(), None);

        // Ids cannot escape the directory, and invalid records are not misread.
        assert!(!records.write("../x", &VolumeRecord::new("n")).unwrap());
        assert_eq!(records.read("../x").unwrap(), None);
        for text in ["", "{}", r#"{"version":2,"name":"n"}"#] {
            std::fs::write(dir.path().join(format!("{ID}.json")), text).unwrap();
            assert_eq!(records.read(ID).unwrap(), None, "{text}");
        }
    }
}
