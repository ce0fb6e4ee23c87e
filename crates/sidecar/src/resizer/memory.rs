//! What this process remembers of a claim between two steps. Nothing here is needed: who remembers nothing takes
//! what is in progress for uncertain, and asks the driver again for the same.
//!
//! It holds only while we are the only one who acts: when the lease is lost, all is forgotten.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::Code;
use wharf_csi::ErrorClass;
use wharf_model::{Key, Quantity, Time};

use super::decide::Step;
use super::view::Users;
use crate::driver::in_gos_words;

/// What is remembered of one claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Of its expansion.
    pub(crate) expansion: Expansion,
    /// Of its modification.
    pub(crate) modification: Modification,
}

/// What is remembered of an expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expansion {
    /// The size that we have written down as begun.
    pub(crate) begun: Option<Quantity>,
    /// Whether the last call ended with a final error: then nothing is under way.
    pub(crate) ended: bool,
    /// What the driver said, until that is written down.
    pub(crate) expanded: Option<Expanded>,
    /// The last failure.
    pub(crate) failed: Option<Failed<SizeQuestion>>,
    /// Whether the users know that it waits for pods to end.
    pub(crate) told_in_use: bool,
}

/// The driver expanded a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expanded {
    /// To the size that was asked of it.
    pub(crate) asked: Quantity,
    /// The size that it has.
    pub(crate) size: Quantity,
    /// Whether the node has its part to do.
    pub(crate) on_node: bool,
}

/// What is remembered of a modification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Modification {
    /// The class that we have written down as in progress.
    pub(crate) begun: Option<String>,
    /// Whether the last call has ended for certain.
    pub(crate) certain: bool,
    /// The class that the driver put in force, until that is written down.
    pub(crate) applied: Option<String>,
    /// The last failure.
    pub(crate) failed: Option<Failed<ClassQuestion>>,
    /// The class whose absence the users know of.
    pub(crate) told_missing: Option<String>,
}

/// What a call to expand was about. Another question need not wait for the pause of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeQuestion {
    /// What the user asked for.
    pub(crate) request: Quantity,
    /// What the driver was asked for.
    pub(crate) size: Quantity,
    /// Who used the volume.
    pub(crate) users: Users,
}

/// What a call to modify was about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClassQuestion {
    /// What the user asked for.
    pub(crate) asked: Option<String>,
    /// What the driver was asked for.
    pub(crate) target: String,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed<Q> {
    /// What it was about.
    pub(crate) question: Q,
    /// How it failed.
    pub(crate) failure: Failure,
    /// How often the same has failed in a row.
    pub(crate) failures: u32,
    /// When.
    pub(crate) at: Time,
    /// No sooner again than then.
    pub(crate) again: Time,
    /// Whether it was written down.
    pub(crate) reported: bool,
}

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What follows from it; `None`: the driver was not asked.
    pub(crate) class: Option<ErrorClass>,
    /// The driver's code.
    pub(crate) code: Code,
    /// The driver's words, or ours.
    pub(crate) message: String,
}

impl Failure {
    /// How upstream writes it: Go's words for an error of gRPC.
    pub(crate) fn text(&self) -> String {
        match self.class {
            Some(_) => in_gos_words(self.code, &self.message),
            None => self.message.clone(),
        }
    }

    /// Whether the driver expands volumes only while nobody uses them.
    pub(crate) fn is_in_use(&self) -> bool {
        self.class.is_some() && self.code == Code::FailedPrecondition
    }
}

impl Expansion {
    /// The driver is about to be asked: from now on something may be under way.
    pub(crate) fn calling(&mut self) {
        self.ended = false;
        self.told_in_use = false;
    }

    /// The driver has done it.
    pub(crate) fn succeeded(&mut self, expanded: Expanded) {
        *self = Self { begun: self.begun, expanded: Some(expanded), ..Self::default() };
    }

    /// The driver has not, or was not asked.
    pub(crate) fn failed(
        &mut self,
        question: SizeQuestion,
        failure: Failure,
        now: Time,
        pause: impl Fn(&Failure, u32) -> Duration,
    ) {
        if let Some(class) = failure.class {
            self.ended = class != ErrorClass::StillRunning;
        }
        self.failed = Some(Failed::new(self.failed.take(), question, failure, now, pause));
    }
}

impl Modification {
    /// The driver is about to be asked: from now on something may be under way.
    pub(crate) fn calling(&mut self) {
        self.certain = false;
    }

    /// The driver has done it.
    pub(crate) fn succeeded(&mut self, target: &str) {
        *self = Self {
            begun: self.begun.take(),
            certain: true,
            applied: Some(target.to_owned()),
            ..Self::default()
        };
    }

    /// The driver has not, or was not asked.
    pub(crate) fn failed(
        &mut self,
        question: ClassQuestion,
        failure: Failure,
        now: Time,
        pause: impl Fn(&Failure, u32) -> Duration,
    ) {
        if let Some(class) = failure.class {
            self.certain = class != ErrorClass::StillRunning;
        }
        self.failed = Some(Failed::new(self.failed.take(), question, failure, now, pause));
    }
}

impl<Q: PartialEq> Failed<Q> {
    fn new(
        before: Option<Self>,
        question: Q,
        failure: Failure,
        now: Time,
        pause: impl Fn(&Failure, u32) -> Duration,
    ) -> Self {
        let same = before.filter(|before| before.question == question);
        let failures = same.map_or(0, |same| same.failures);
        let again = now.plus(pause(&failure, failures));
        Self { question, failure, failures: failures.saturating_add(1), at: now, again, reported: false }
    }

    /// The moment to wait for before this question is asked again. A clock that went back makes nobody wait.
    pub(crate) fn pause(&self, question: &Q, now: Time) -> Option<Time> {
        (self.question == *question && now >= self.at && now < self.again).then_some(self.again)
    }
}

impl Memory {
    /// A step other than a call was done.
    pub(crate) fn after(&mut self, step: &Step) {
        let Self { expansion, modification } = self;
        match step {
            Step::BeginExpansion { size, .. } => {
                expansion.begun = Some(*size);
                // What another size came to is past: it must not be told of this one.
                expansion.failed = expansion.failed.take().filter(|failed| failed.question.size == *size);
            }
            Step::ReportExpansion => {
                if let Some(failed) = &mut expansion.failed {
                    failed.reported = true;
                }
            }
            Step::TellInUse => expansion.told_in_use = true,
            Step::HandToNode | Step::FinishExpansion { .. } => *expansion = Expansion::default(),
            Step::BeginModification { target } => modification.begun = Some(target.clone()),
            Step::ReportModification => {
                if let Some(failed) = &mut modification.failed {
                    failed.reported = true;
                }
            }
            Step::MarkPending { target } | Step::TellMissing { target } => {
                modification.told_missing = Some(target.clone());
            }
            Step::CompleteModification { .. } => *modification = Modification::default(),
            Step::Wait(_)
            | Step::Forget
            | Step::Tidy
            | Step::Expand { .. }
            | Step::Grow { .. }
            | Step::Modify { .. }
            | Step::RecordClass { .. }
            | Step::CancelModification => {}
        }
    }
}

/// The memories of all claims.
#[derive(Default)]
pub(crate) struct Memories {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// What is put back into an earlier one is ignored.
    epoch: u64,
    by_claim: HashMap<Key, (String, Memory)>,
}

/// When a memory was taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

impl Memories {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of the claim of this identity.
    pub(crate) fn get(&self, key: &Key, uid: &str) -> (Epoch, Memory) {
        let inner = self.lock();
        let known = inner.by_claim.get(key).filter(|(known, _)| known == uid);
        (Epoch(inner.epoch), known.map(|(_, memory)| memory.clone()).unwrap_or_default())
    }

    /// Remembers, unless all was forgotten since `epoch`.
    pub(crate) fn put(&self, key: &Key, uid: &str, epoch: Epoch, memory: Memory) {
        let mut inner = self.lock();
        if Epoch(inner.epoch) != epoch {
            return;
        }
        match memory == Memory::default() {
            true => inner.by_claim.remove(key),
            false => inner.by_claim.insert(key.clone(), (uid.to_owned(), memory)),
        };
    }

    /// Whether anything is remembered of a claim of this name.
    pub(crate) fn knows(&self, key: &Key) -> bool {
        self.lock().by_claim.contains_key(key)
    }

    /// The claim is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().by_claim.remove(key);
    }

    /// Somebody else may have acted: nothing that we remember holds any more.
    pub(crate) fn forget_all(&self) {
        let mut inner = self.lock();
        inner.epoch += 1;
        inner.by_claim.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_of_this_claim_and_while_we_are_alone() {
        let memories = Memories::default();
        let key = Key::namespaced("shop", "data");
        let remembered =
            Memory { expansion: Expansion { ended: true, ..Expansion::default() }, ..Memory::default() };
        let (epoch, nothing) = memories.get(&key, "u");
        assert_eq!(nothing, Memory::default());
        memories.put(&key, "u", epoch, remembered.clone());
        assert_eq!(memories.get(&key, "u"), (epoch, remembered.clone()));
        assert_eq!(memories.get(&key, "another").1, Memory::default(), "another claim of that name");
        assert!(memories.knows(&key));

        memories.forget_all();
        assert!(!memories.knows(&key));
        memories.put(&key, "u", epoch, remembered.clone());
        assert!(!memories.knows(&key), "learned before the lease was lost");

        let (epoch, _) = memories.get(&key, "u");
        memories.put(&key, "u", epoch, remembered);
        memories.put(&key, "u", epoch, Memory::default());
        assert!(!memories.knows(&key), "nothing to remember takes no room");
    }

    /// sidecars.md 1.3 "Errors": pauses grow for the same question only.
    #[test]
    fn failures_are_counted_for_the_same_question() {
        let pause = |_: &Failure, failures: u32| Duration::from_secs(1 << failures);
        let failure = || Failure {
            class: Some(ErrorClass::StillRunning),
            code: Code::Unavailable,
            message: "no".into(),
        };
        let question = |size| SizeQuestion {
            request: Quantity::from_bytes(9),
            size: Quantity::from_bytes(size),
            users: Users::Unknown,
        };
        let mut expansion = Expansion { ended: true, ..Expansion::default() };
        expansion.failed(question(9), failure(), Time(0), pause);
        assert!(!expansion.ended);
        expansion.failed(question(9), failure(), Time(1000), pause);
        let failed = expansion.failed.clone().unwrap();
        assert_eq!((failed.failures, failed.again), (2, Time(3000)));
        assert_eq!(failed.pause(&question(9), Time(2999)), Some(Time(3000)));
        assert_eq!(failed.pause(&question(9), Time(3000)), None);
        assert_eq!(failed.pause(&question(9), Time(999)), None, "a clock that went back makes nobody wait");
        assert_eq!(failed.pause(&question(8), Time(2000)), None);
        expansion.failed(question(8), failure(), Time(4000), pause);
        assert_eq!(expansion.failed.unwrap().again, Time(5000));
    }
}
