//! What the node must not forget of a volume: its name, by which its device is found, and that a file system is
//! being made on it. One small file for each volume, written before it is used and removed when it is unstaged.
//!
//! A note that cannot be understood is as good as none: without one a volume is found by what is mounted, and
//! nothing is formatted that does not read as zeroes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wharf_linux::{Beneath, Error, FsType, Kernel, write_durably};

/// How notes are written now.
const VERSION: u32 = 1;

/// What is noted of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) version: u32,
    /// The volume's name.
    pub(super) name: String,
    /// A file system is being made on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) formatting: Option<Formatting>,
}

/// mkfs may have begun, and nobody can have mounted what it made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Formatting {
    /// Which file system.
    pub(super) fs: FsType,
    /// Its UUID.
    pub(super) uuid: String,
    /// On which disk.
    pub(super) disk: Disk,
}

/// One appearance of a disk on this machine. As long as it is the same, the disk was nowhere else, and nobody else
/// can have written to it; once it was away, what is noted of its bytes means nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Disk {
    /// The kernel's boot id.
    pub(super) boot: String,
    /// The disk's sequence number since then.
    pub(super) sequence: u64,
}

impl Note {
    pub(super) fn new(name: &str) -> Self {
        Self { version: VERSION, name: name.to_owned(), formatting: None }
    }
}

/// The notes, in a directory of their own.
#[derive(Clone)]
pub(super) struct Notes {
    kernel: Arc<dyn Kernel>,
    root: PathBuf,
}

impl Notes {
    /// `root` must exist.
    pub(super) fn new(kernel: Arc<dyn Kernel>, root: PathBuf) -> Self {
        Self { kernel, root }
    }

    /// The note of a volume.
    pub(super) fn read(&self, id: &str) -> Result<Option<Note>, Error> {
        let Some(file) = file_of(id) else { return Ok(None) };
        let text = self.kernel.read_file(&Beneath::new(&self.root, Path::new(&file)))?;
        Ok(text.and_then(|text| understand(&file, &text)))
    }

    /// Writes a note, durably. `false` if no volume can have that id.
    pub(super) fn write(&self, id: &str, note: &Note) -> Result<bool, Error> {
        let Some(file) = file_of(id) else { return Ok(false) };
        if self.read(id)?.as_ref() == Some(note) {
            return Ok(true);
        }
        let failed = |error: serde_json::Error| Error::State {
            path: self.root.join(&file),
            reason: error.to_string(),
        };
        let text = serde_json::to_vec(note).map_err(failed)?;
        write_durably(&*self.kernel, &Beneath::new(&self.root, Path::new(&file)), &text)?;
        Ok(true)
    }

    /// Removes a note; none is success.
    pub(super) fn remove(&self, id: &str) -> Result<(), Error> {
        match file_of(id) {
            Some(file) => self.kernel.remove_file(&Beneath::new(&self.root, Path::new(&file))),
            None => Ok(()),
        }
    }

    /// Another volume that is noted under this name.
    pub(super) fn other_of(&self, name: &str, id: &str) -> Result<Option<String>, Error> {
        for file in self.kernel.list_dir(&Beneath::new(&self.root, Path::new(".")))? {
            let Some(other) = file.strip_suffix(SUFFIX).filter(|other| *other != id) else { continue };
            if self.read(other)?.is_some_and(|note| note.name == name) {
                return Ok(Some(other.to_owned()));
            }
        }
        Ok(None)
    }
}

const SUFFIX: &str = ".json";

/// Ids are UUIDs; whatever else comes as one is no name of a file.
fn file_of(id: &str) -> Option<String> {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (plain && !id.is_empty() && id.len() <= 64).then(|| format!("{id}{SUFFIX}"))
}

fn understand(file: &str, text: &[u8]) -> Option<Note> {
    match serde_json::from_slice::<Note>(text) {
        Ok(note) if note.version == VERSION => Some(note),
        Ok(note) => {
            tracing::warn!(file, version = note.version, "a note of another version is not used");
            None
        }
        Err(error) => {
            tracing::warn!(file, %error, "a note that cannot be read is not used");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";

    #[test]
    fn notes_come_back_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let notes = Notes::new(Arc::new(wharf_linux::Linux::new()), dir.path().to_owned());
        let disk = Disk { boot: "b".into(), sequence: 7 };
        let formatting = Formatting { fs: FsType::Ext4, uuid: "u".into(), disk };
        let note = Note { formatting: Some(formatting), ..Note::new("pvc-1") };
        assert_eq!(notes.read(ID).unwrap(), None);
        assert!(notes.write(ID, &note).unwrap());
        assert_eq!(notes.read(ID).unwrap(), Some(note));
        assert_eq!(notes.other_of("pvc-1", ID).unwrap(), None);
        assert_eq!(notes.other_of("pvc-1", "else").unwrap().as_deref(), Some(ID));
        notes.remove(ID).unwrap();
        notes.remove(ID).unwrap();
        assert_eq!(notes.read(ID).unwrap(), None);

        // Neither out of the directory, nor misread.
        assert!(!notes.write("../x", &Note::new("n")).unwrap());
        assert_eq!(notes.read("../x").unwrap(), None);
        for text in ["", "{}", r#"{"version":2,"name":"n"}"#] {
            std::fs::write(dir.path().join(format!("{ID}.json")), text).unwrap();
            assert_eq!(notes.read(ID).unwrap(), None, "{text}");
        }
    }
}
