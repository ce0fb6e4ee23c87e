//! The attacher's in-process state between two reconciles of a volume. It may be lost at any time: then idempotent CSI
//! calls are repeated and backoffs are shorter.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wharf_model::{Monotonic, VolumeAttachment};

use super::references::{AwaitedVersion, DeletedVolumes};
use super::view::{AttachState, Subject};

/// How long a reference check waits for a version. The watch reports its version at least once a minute.
const MAX_VERSION_WAIT: Duration = Duration::from_secs(300);

/// The state of all volumes.
#[derive(Default)]
pub(super) struct AttachStates {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    volumes: HashMap<Subject, VolumeState>,
    /// Volumes, by name and UID, that wait for a reference check.
    checks: DeletedVolumes,
    /// The check that waits for the store, if there is one.
    awaited_version: Option<(AwaitedVersion, Monotonic)>,
}

/// The state of one volume.
#[derive(Default)]
struct VolumeState {
    attachments: BTreeMap<String, AttachState>,
    unreferenced: Option<String>,
}

impl AttachStates {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of an attachment. Empty if the stored state belongs to another attachment of the same name.
    pub(super) fn get(&self, subject: &Subject, attachment: &VolumeAttachment) -> AttachState {
        let inner = self.lock();
        let known = inner.volumes.get(subject).and_then(|v| v.attachments.get(&attachment.metadata.name));
        let known = known.filter(|state| state.uid == attachment.metadata.uid);
        known
            .cloned()
            .unwrap_or_else(|| AttachState { uid: attachment.metadata.uid.clone(), ..AttachState::default() })
    }

    /// Updates the state of an attachment.
    pub(super) fn update(
        &self,
        subject: &Subject,
        attachment: &VolumeAttachment,
        update: impl FnOnce(&mut AttachState),
    ) {
        let mut inner = self.lock();
        let volume = inner.volumes.entry(subject.clone()).or_default();
        let state = volume.attachments.entry(attachment.metadata.name.clone()).or_default();
        if state.uid != attachment.metadata.uid {
            *state = AttachState { uid: attachment.metadata.uid.clone(), ..AttachState::default() };
        }
        update(state);
    }

    /// Clears the failure of an attachment after a change that may let it succeed.
    pub(super) fn wake(&self, subject: &Subject, attachment: &str) {
        let mut inner = self.lock();
        let volume = inner.volumes.get_mut(subject);
        if let Some(state) = volume.and_then(|volume| volume.attachments.get_mut(attachment)) {
            state.clear_failure();
        }
    }

    /// Drops the state of attachments that are not among these, and returns their names.
    pub(super) fn retain(&self, subject: &Subject, present: &BTreeSet<&str>) -> Vec<String> {
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

    /// The UID of the volume that the server confirmed as unreferenced.
    pub(super) fn unreferenced(&self, subject: &Subject) -> Option<String> {
        self.lock().volumes.get(subject)?.unreferenced.clone()
    }

    /// Records that no attachment refers to the volume with this UID.
    pub(super) fn set_unreferenced(&self, subject: &Subject, uid: String) {
        let mut inner = self.lock();
        inner.volumes.entry(subject.clone()).or_default().unreferenced = Some(uid);
    }

    /// Drops the confirmation for a volume without our finalizer, since its deletion is not reported here.
    pub(super) fn expire_unreferenced(&self, subject: &Subject, has_finalizer: bool) {
        if !has_finalizer && let Some(volume) = self.lock().volumes.get_mut(subject) {
            volume.unreferenced = None;
        }
    }

    /// Requests a reference check for a volume.
    pub(super) fn request_check(&self, volume: &str, uid: String) {
        self.lock().checks.insert(volume.to_owned(), uid);
    }

    /// All requested reference checks: volumes and their UIDs.
    pub(super) fn checks(&self) -> DeletedVolumes {
        self.lock().checks.clone()
    }

    /// Drops reference checks of volumes that do not exist any more.
    pub(super) fn retain_checks(&self, exists: impl Fn(&str, &str) -> bool) {
        self.lock().checks.retain(|volume, uid| exists(volume, uid));
    }

    /// The check that waits until the store has reached a version. `None` if it has waited too long: after the server's
    /// data was restored from a backup, no later version may ever be that high.
    pub(super) fn awaited_version(&self, now: Monotonic) -> Option<AwaitedVersion> {
        let mut inner = self.lock();
        let (awaited, since) = inner.awaited_version.take()?;
        if now.since(since) >= MAX_VERSION_WAIT {
            return None;
        }
        inner.awaited_version = Some((awaited.clone(), since));
        Some(awaited)
    }

    /// Records a check that waits until the store has reached a version.
    pub(super) fn await_version(&self, awaited: AwaitedVersion, now: Monotonic) {
        let mut inner = self.lock();
        if inner.awaited_version.as_ref().is_none_or(|(known, _)| *known != awaited) {
            inner.awaited_version = Some((awaited, now));
        }
    }

    /// Removes reference checks that were made.
    pub(super) fn remove_checks(&self, made: &DeletedVolumes) {
        let mut inner = self.lock();
        inner.awaited_version = None;
        inner.checks.retain(|volume, uid| made.get(volume) != Some(uid));
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
    fn state_belongs_to_one_uid() {
        let (states, subject) = (AttachStates::default(), Subject::Volume("v".into()));
        states.update(&subject, &attachment("a", "1"), AttachState::record_unpublished);
        assert!(states.get(&subject, &attachment("a", "1")).unpublished);
        assert!(!states.get(&subject, &attachment("a", "2")).unpublished, "another object of the same name");
        states.update(&subject, &attachment("a", "2"), |state| assert!(!state.unpublished));
        assert!(!states.get(&subject, &attachment("a", "1")).unpublished);
    }

    #[test]
    fn wait_for_a_version_is_bounded_and_ends_with_its_check() {
        let states = AttachStates::default();
        let volumes: DeletedVolumes = [("v".to_owned(), "u".to_owned())].into();
        states.request_check("v", "u".into());
        states.request_check("w", "x".into());
        let awaited = AwaitedVersion { version: "9".into(), volumes: volumes.clone() };
        let minute = |minutes: i64| Monotonic(minutes * 60_000);
        for poll in 0..5 {
            states.await_version(awaited.clone(), minute(poll));
            assert_eq!(states.awaited_version(minute(poll)).as_ref(), Some(&awaited), "{poll}");
        }
        assert_eq!(states.awaited_version(minute(5)), None);
        assert_eq!(states.checks().len(), 2, "they are checked again");
        states.await_version(awaited.clone(), minute(6));
        assert_eq!(states.awaited_version(minute(7)), Some(awaited));
        states.remove_checks(&volumes);
        assert_eq!(states.awaited_version(minute(7)), None);
        assert_eq!(states.checks().into_keys().collect::<Vec<_>>(), ["w"]);
    }

    #[test]
    fn state_of_deleted_attachments_is_dropped() {
        let (states, subject) = (AttachStates::default(), Subject::Volume("v".into()));
        for name in ["a", "b"] {
            states.update(&subject, &attachment(name, "1"), AttachState::record_unpublished);
        }
        assert_eq!(states.retain(&subject, &["b"].into()), ["a"]);
        assert!(states.get(&subject, &attachment("b", "1")).unpublished);
        states.set_unreferenced(&subject, "u".into());
        assert_eq!(states.retain(&subject, &[].into()), ["b"]);
        states.expire_unreferenced(&subject, true);
        assert_eq!(states.unreferenced(&subject).as_deref(), Some("u"));
        // Our finalizer is removed; other finalizers may hold the volume for long.
        states.expire_unreferenced(&subject, false);
        assert!(states.retain(&subject, &[].into()).is_empty());
        assert!(states.lock().volumes.is_empty());
    }
}
