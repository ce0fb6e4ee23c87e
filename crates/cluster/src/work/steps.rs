//! The step loop of a reconcile: read a fresh view, decide, perform one effect, and start over.
//!
//! A controller decides with a pure function and performs one effect per step. The effect leaves its result where the
//! next view reads it: responses of the API server in the stores, everything else in the controller's state. So a crash
//! between two steps needs no recovery code: the next reconcile decides again from what exists.
//!
//! Start at [`Steps`]. [`write`](super::write) has the API writes of a step.

use std::fmt::Debug;
use std::time::Duration;

use super::{Gate, WorkOutcome};

/// What follows a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// Decide the next step, from a fresh view.
    Continue,
    /// End the reconcile with this outcome for the queue.
    Finish(WorkOutcome),
}

impl StepOutcome {
    /// Nothing to do until something changes.
    pub const DONE: Self = Self::Finish(WorkOutcome::Done);
    /// The step failed: reconcile again after the backoff.
    pub const RETRY: Self = Self::Finish(WorkOutcome::Retry);

    /// Reconcile again after this delay, independent of failures.
    pub fn retry_after(delay: Duration) -> Self {
        Self::Finish(WorkOutcome::RetryAfter(delay))
    }
}

/// The number of steps in one reconcile, and what happens after the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepLimit {
    /// The number of steps grows with the object, for example with the nodes that a volume is attached to. The key is
    /// requeued at once, so that other keys get a worker.
    Requeue(usize),
    /// A reconcile takes a few steps. More than this means that steps undo each other: the key backs off.
    BackOff(usize),
}

impl StepLimit {
    fn steps(self) -> usize {
        let (Self::Requeue(steps) | Self::BackOff(steps)) = self;
        steps
    }
}

/// The step loop of one reconcile.
///
/// ```ignore
/// let mut steps = Steps::new(&self.gate, STEP_LIMIT);
/// while steps.start_next() {
///     let view = self.view(key);
///     let step = decide(&view, now());
///     if let StepOutcome::Finish(outcome) = self.act(key, &view, step).await {
///         return outcome;
///     }
/// }
/// steps.unfinished(key)
/// ```
///
/// This is not a function that takes a closure: the compiler cannot prove that the future of an async closure which
/// borrows the reconcile's state is `Send`.
pub struct Steps<'a> {
    gate: &'a Gate,
    limit: StepLimit,
    started: usize,
}

impl<'a> Steps<'a> {
    /// A loop without any steps so far.
    pub fn new(gate: &'a Gate, limit: StepLimit) -> Self {
        Self { gate, limit, started: 0 }
    }

    /// Starts the next step. `false` if none may start: the gate is closed, or the limit is reached.
    pub fn start_next(&mut self) -> bool {
        let start = self.gate.is_open() && self.started < self.limit.steps();
        self.started += usize::from(start);
        start
    }

    /// The outcome of a reconcile that no step finished. If the gate is closed, the key waits until it opens.
    pub fn unfinished(self, key: &(impl Debug + ?Sized)) -> WorkOutcome {
        match self.limit {
            StepLimit::BackOff(steps) if self.started == steps => {
                tracing::warn!(?key, steps, "reconcile did not finish within its step limit; backing off");
                WorkOutcome::Retry
            }
            StepLimit::BackOff(_) | StepLimit::Requeue(_) => WorkOutcome::RetryAfter(Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// What a test's steps do.
    enum Script {
        /// Each step continues.
        Endless,
        /// The step of this number, counted from 1, finishes with this outcome.
        FinishAt(usize, WorkOutcome),
        /// The gate closes during the step of this number.
        CloseGateAt(usize),
    }

    #[test]
    fn reconcile_ends_by_a_step_by_the_gate_or_by_the_limit() {
        const AT_ONCE: WorkOutcome = WorkOutcome::RetryAfter(Duration::ZERO);
        const PAUSE: WorkOutcome = WorkOutcome::RetryAfter(Duration::from_secs(7));
        let (requeue, back_off) = (StepLimit::Requeue(3), StepLimit::BackOff(3));
        let table = [
            ("first step finishes", requeue, Script::FinishAt(1, WorkOutcome::Done), WorkOutcome::Done, 1),
            ("later step finishes", back_off, Script::FinishAt(2, PAUSE), PAUSE, 2),
            ("last step finishes", back_off, Script::FinishAt(3, WorkOutcome::Done), WorkOutcome::Done, 3),
            ("failure", requeue, Script::FinishAt(2, WorkOutcome::Retry), WorkOutcome::Retry, 2),
            ("limit of a growing object", requeue, Script::Endless, AT_ONCE, 3),
            ("limit of a loop", back_off, Script::Endless, WorkOutcome::Retry, 3),
            ("gate closed before", back_off, Script::CloseGateAt(0), AT_ONCE, 0),
            ("gate closes between steps", back_off, Script::CloseGateAt(2), AT_ONCE, 2),
            ("gate closes in the last step", back_off, Script::CloseGateAt(3), WorkOutcome::Retry, 3),
        ];
        for (what, limit, script, expected, expected_steps) in table {
            let stop = CancellationToken::new();
            let gate = Gate::new(None, stop.clone());
            if let Script::CloseGateAt(0) = script {
                stop.cancel();
            }
            let mut steps = Steps::new(&gate, limit);
            let (mut ran, mut finished) = (0, None);
            while finished.is_none() && steps.start_next() {
                ran += 1;
                match script {
                    Script::FinishAt(step, outcome) if step == ran => finished = Some(outcome),
                    Script::CloseGateAt(step) if step == ran => stop.cancel(),
                    _ => {}
                }
            }
            assert_eq!(finished.unwrap_or_else(|| steps.unfinished(what)), expected, "{what}");
            assert_eq!(ran, expected_steps, "{what}");
        }
    }
}
