//! What the attacher remembers between two looks at a volume. All of it may be lost: then calls that CSI lets one
//! repeat are repeated, and waits are cut short.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wharf_model::VolumeAttachment;

use super::view::{Memory, Subject};

/// The memories of all volumes.
#[derive(Default)]
pub(super) struct Memories {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    volumes: HashMap<Subject, OfVolume>,
    /// Volumes, by name and uid, of which is to be asked whether attachments refer to them.
    asked: BTreeMap<String, String>,
}

/// What is remembered of one volume.
#[derive(Default)]
struct OfVolume {
    attachments: BTreeMap<String, Memory>,
    unreferenced: Option<String>,
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of an attachment; nothing if it is of another one of its name.
    pub(super) fn of(&self, subject: &Subject, attachment: &VolumeAttachment) -> Memory {
        let inner = self.lock();
        let known = inner.volumes.get(subject).and_then(|v| v.attachments.get(&attachment.metadata.name));
        let known = known.filter(|memory| memory.uid == attachment.metadata.uid);
        known.cloned().unwrap_or_else(|| Memory { uid: attachment.metadata.uid.clone(), ..Memory::default() })
    }

    /// Changes what is remembered of an attachment.
    pub(super) fn change(
        &self,
        subject: &Subject,
        attachment: &VolumeAttachment,
        change: impl FnOnce(&mut Memory),
    ) {
        let mut inner = self.lock();
        let volume = inner.volumes.entry(subject.clone()).or_default();
        let memory = volume.attachments.entry(attachment.metadata.name.clone()).or_default();
        if memory.uid != attachment.metadata.uid {
            *memory = Memory { uid: attachment.metadata.uid.clone(), ..Memory::default() };
        }
        change(memory);
    }

    /// Something changed for an attachment: what it failed at may work now.
    pub(super) fn wake(&self, subject: &Subject, attachment: &str) {
        let mut inner = self.lock();
        let volume = inner.volumes.get_mut(subject);
        if let Some(memory) = volume.and_then(|volume| volume.attachments.get_mut(attachment)) {
            memory.wake();
        }
    }

    /// Forgets the attachments that are not among these, and tells their names.
    pub(super) fn keep(&self, subject: &Subject, present: &BTreeSet<&str>) -> Vec<String> {
        let mut inner = self.lock();
        let Some(volume) = inner.volumes.get_mut(subject) else { return Vec::new() };
        let gone: Vec<String> =
            volume.attachments.keys().filter(|name| !present.contains(name.as_str())).cloned().collect();
        for name in &gone {
            volume.attachments.remove(name);
        }
        if volume.attachments.is_empty() && volume.unreferenced.is_none() {
            inner.volumes.remove(subject);
        }
        gone
    }

    /// The uid of the volume that the server said is unreferenced.
    pub(super) fn unreferenced(&self, subject: &Subject) -> Option<String> {
        self.lock().volumes.get(subject)?.unreferenced.clone()
    }

    /// The server said that no attachment refers to the volume of this uid.
    pub(super) fn set_unreferenced(&self, subject: &Subject, uid: String) {
        let mut inner = self.lock();
        inner.volumes.entry(subject.clone()).or_default().unreferenced = Some(uid);
    }

    /// Forgets what the server said of a volume that our finalizer is not on: nobody tells us when it ends.
    pub(super) fn keep_unreferenced(&self, subject: &Subject, guarded: bool) {
        if !guarded && let Some(volume) = self.lock().volumes.get_mut(subject) {
            volume.unreferenced = None;
        }
    }

    /// Whether attachments refer to this volume is to be asked.
    pub(super) fn ask(&self, volume: &str, uid: String) {
        self.lock().asked.insert(volume.to_owned(), uid);
    }

    /// All that is to be asked, once.
    pub(super) fn take_asked(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.lock().asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(name: &str, uid: &str) -> VolumeAttachment {
        let mut attachment = VolumeAttachment::default();
        (attachment.metadata.name, attachment.metadata.uid) = (name.into(), uid.into());
        attachment
    }

    #[test]
    fn of_the_same_object_only() {
        let (memories, subject) = (Memories::default(), Subject::Volume("v".into()));
        memories.change(&subject, &attachment("a", "1"), Memory::has_unpublished);
        assert!(memories.of(&subject, &attachment("a", "1")).unpublished);
        assert!(!memories.of(&subject, &attachment("a", "2")).unpublished, "another of its name");
        memories.change(&subject, &attachment("a", "2"), |memory| assert!(!memory.unpublished));
        assert!(!memories.of(&subject, &attachment("a", "1")).unpublished);
    }

    #[test]
    fn nothing_is_left_of_what_is_gone() {
        let (memories, subject) = (Memories::default(), Subject::Volume("v".into()));
        for name in ["a", "b"] {
            memories.change(&subject, &attachment(name, "1"), Memory::has_unpublished);
        }
        assert_eq!(memories.keep(&subject, &["b"].into()), ["a"]);
        assert!(memories.of(&subject, &attachment("b", "1")).unpublished);
        memories.set_unreferenced(&subject, "u".into());
        assert_eq!(memories.keep(&subject, &[].into()), ["b"]);
        memories.keep_unreferenced(&subject, true);
        assert_eq!(memories.unreferenced(&subject).as_deref(), Some("u"));
        // Our finalizer is off; others may keep the volume for long.
        memories.keep_unreferenced(&subject, false);
        assert!(memories.keep(&subject, &[].into()).is_empty());
        assert!(memories.lock().volumes.is_empty());
    }
}
