//! What the snapshotter remembers between two looks at a content. All of it may be lost: then calls that CSI lets one
//! repeat are repeated, and waits are cut short.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wharf_cluster::Backoff;
use wharf_csi::{ErrorClass, Operation, classify, speaks_of_the_request};
use wharf_model::Time;

use super::Subject;
use super::status::Answer;

/// Waits for a driver that is busy or away are never longer: it may be ready any moment.
const SOON: Duration = Duration::from_secs(30);
/// The longest pause between two questions whether a snapshot is ready.
const LOOK_MAX: Duration = Duration::from_secs(15);

/// What we remember of a content.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Memory {
    /// Of this content, not of another of its name.
    pub(super) uid: String,
    /// What the driver said last, while the content may not say it yet.
    pub(super) answer: Option<Answer>,
    /// When the driver said so, and how often it said before that it is not ready.
    pub(super) looked: Option<Looked>,
    /// The driver has deleted it.
    pub(super) deleted: bool,
    /// Every call under the mark was ours, and is known to have made nothing. Where the mark was found, somebody before
    /// us may have made a call that had its effect; the failure of ours says nothing of theirs.
    pub(super) settled: bool,
    /// The last attempt, if it failed.
    pub(super) failure: Option<Failure>,
}

/// A question whether the snapshot is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Looked {
    /// When.
    pub(super) at: Time,
    /// How often before.
    pub(super) count: u32,
}

impl Looked {
    /// When to ask again: a backend that copies for an hour is not asked every second, one that is ready after a
    /// second is not left waiting.
    pub(super) fn next(&self) -> Time {
        self.at.plus(Duration::from_secs(1 << self.count.min(10)).min(LOOK_MAX))
    }
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// A first attempt to make it.
    Create,
    /// A later one, or a look at what is there.
    Check,
    /// Its deletion.
    Delete,
}

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// What was tried.
    pub(super) doing: Doing,
    /// What went wrong, for people.
    pub(super) message: String,
    /// When.
    pub(super) at: Time,
    /// No new attempt sooner than this.
    pub(super) pause: Duration,
    /// How often in a row.
    pub(super) count: u32,
    /// The driver said that it has made nothing and is not at it, when the content had this version. At any other,
    /// somebody may have asked it since.
    pub(super) ended: Option<String>,
    /// Whether the content was told, or need not be.
    pub(super) reported: bool,
}

impl Failure {
    /// How long to wait still. A clock that went back does not make anybody wait.
    pub(super) fn left(&self, now: Time) -> Option<Duration> {
        left(self.at, self.at.plus(self.pause), now)
    }
}

/// From now to the end of a pause.
pub(super) fn left(began: Time, until: Time, now: Time) -> Option<Duration> {
    let left = u64::try_from(until.0.saturating_sub(now.0)).ok().filter(|left| *left > 0)?;
    (now >= began).then(|| Duration::from_millis(left))
}

/// How an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// What was tried.
    pub(super) doing: Doing,
    /// What went wrong, for people.
    pub(super) message: String,
    /// The driver's code, if it was the driver.
    pub(super) code: Option<tonic::Code>,
    /// Whether it may work any moment, for other reasons than the code.
    pub(super) soon: bool,
    /// The content's version when the driver answered, if it was asked to make it.
    pub(super) asked_at: Option<String>,
}

impl Failed {
    fn class(&self) -> Option<ErrorClass> {
        self.code.map(|code| classify(Operation::Snapshot, code))
    }
}

impl Memory {
    /// The driver told how the snapshot is.
    pub(super) fn has_answered(&mut self, answer: Answer, now: Time) {
        let count = self.looked.map_or(0, |looked| looked.count.saturating_add(1));
        self.looked = Some(Looked { at: now, count });
        self.answer = Some(answer);
        self.failure = None;
    }

    /// The content says what the driver said.
    pub(super) fn is_written(&mut self) {
        self.answer = None;
    }

    /// The driver has deleted it.
    pub(super) fn has_deleted(&mut self) {
        *self = Self { uid: std::mem::take(&mut self.uid), deleted: true, ..Self::default() };
    }

    /// An attempt has failed.
    pub(super) fn has_failed(&mut self, failed: Failed, backoff: Backoff, now: Time) {
        let series = |doing| doing == Doing::Delete;
        let before = self.failure.as_ref().filter(|before| series(before.doing) == series(failed.doing));
        let earlier = before.map_or(0, |before| before.count);
        let class = failed.class();
        let max = match class {
            Some(ErrorClass::StillRunning) => backoff.max.min(SOON),
            None if failed.soon => backoff.max.min(SOON),
            Some(ErrorClass::Final | ErrorClass::Infeasible) | None => backoff.max,
        };
        let pause = Backoff { max, ..backoff }.after(earlier);
        let speaks = self.settled || failed.code.is_some_and(speaks_of_the_request);
        let ended = match class {
            Some(ErrorClass::Final | ErrorClass::Infeasible) => failed.asked_at.filter(|_| speaks),
            Some(ErrorClass::StillRunning) | None => None,
        };
        self.settled &= class != Some(ErrorClass::StillRunning);
        let Failed { doing, message, .. } = failed;
        let count = earlier.saturating_add(1);
        // Events tell of deletions; the status is not asked for them.
        let reported = doing == Doing::Delete;
        self.failure = Some(Failure { doing, message, at: now, pause, count, ended, reported });
    }

    /// Something changed that may let it work now.
    pub(super) fn wake(&mut self) {
        // Whether the driver has ended is not a matter of waiting.
        if let Some(failure) = &mut self.failure {
            (failure.pause, failure.count) = (Duration::ZERO, 0);
        }
        self.looked = None;
    }
}

/// The memories of all contents.
#[derive(Default)]
pub(super) struct Memories {
    inner: Mutex<HashMap<Subject, Memory>>,
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, Memory>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of a content; nothing if it is of another one of its name.
    pub(super) fn of(&self, subject: &Subject, uid: &str) -> Memory {
        let known = self.lock().get(subject).filter(|memory| memory.uid == uid).cloned();
        known.unwrap_or_else(|| Memory { uid: uid.to_owned(), ..Memory::default() })
    }

    /// Changes what is remembered of a content.
    pub(super) fn change(&self, subject: &Subject, uid: &str, change: impl FnOnce(&mut Memory)) {
        let mut inner = self.lock();
        let memory = inner.entry(subject.clone()).or_default();
        if memory.uid != uid {
            *memory = Memory { uid: uid.to_owned(), ..Memory::default() };
        }
        change(memory);
    }

    /// The lease is another's: from here on the driver is asked by others too.
    pub(super) fn unsettle(&self) {
        for memory in self.lock().values_mut() {
            memory.settled = false;
        }
    }

    /// Something changed for a content: what it failed at may work now.
    pub(super) fn wake(&self, subject: &Subject) {
        if let Some(memory) = self.lock().get_mut(subject) {
            memory.wake();
        }
    }

    /// Nothing is left to do for a content.
    pub(super) fn forget(&self, subject: &Subject) {
        self.lock().remove(subject);
    }
}
