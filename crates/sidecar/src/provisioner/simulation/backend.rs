//! The simulated driver: idempotent by name, as CSI requires, and as unreliable as CSI allows.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Code;

use super::super::intent::Request;

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// It takes effect and returns.
    Succeeds,
    /// It takes effect, and the response is lost.
    ResponseLost,
    /// It times out and takes effect later.
    Delayed,
    /// It fails with a final error.
    Rejected,
    /// The driver is unreachable.
    Unreachable,
}

impl CallOutcome {
    /// Success twice: most calls succeed.
    pub(super) const ALL: [Self; 6] = [
        Self::Succeeds,
        Self::Succeeds,
        Self::ResponseLost,
        Self::Delayed,
        Self::Rejected,
        Self::Unreachable,
    ];
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Create(String),
    Delete(String),
}

#[derive(Debug, Default)]
pub(super) struct Backend {
    /// Handles by name.
    by_name: BTreeMap<String, String>,
    running: Vec<Call>,
    requests: BTreeMap<String, Request>,
    /// Handles with a requested deletion: too late to retain them.
    deletions: BTreeSet<String>,
    last: u64,
}

impl Backend {
    pub(super) fn handles(&self) -> Vec<&str> {
        self.by_name.values().map(String::as_str).collect()
    }

    /// The name in the request that created a volume.
    pub(super) fn name_of(&self, handle: &str) -> &str {
        let found = self.by_name.iter().find(|(_, of)| *of == handle);
        found.map(|(name, _)| name.as_str()).unwrap_or_default()
    }

    pub(super) fn create(
        &mut self,
        name: &str,
        request: &Request,
        outcome: CallOutcome,
    ) -> Result<Result<String, Code>, String> {
        // A call that may still run may only be repeated unchanged.
        match self.requests.get(name) {
            Some(before) if before != request => {
                return Err(format!(
                    "{name} was requested with different parameters: {before:?} and {request:?}"
                ));
            }
            _ => {}
        }
        self.requests.insert(name.to_owned(), request.clone());
        let call = Call::Create(name.to_owned());
        if self.running.contains(&call) {
            return Ok(Err(Code::Aborted));
        }
        Ok(match outcome {
            CallOutcome::Succeeds => {
                self.run(&call);
                self.by_name.get(name).cloned().ok_or(Code::Internal)
            }
            CallOutcome::ResponseLost => {
                self.run(&call);
                Err(Code::DeadlineExceeded)
            }
            CallOutcome::Delayed => {
                self.running.push(call);
                Err(Code::DeadlineExceeded)
            }
            // Also if the volume exists: the failure of this call does not undo earlier ones.
            CallOutcome::Rejected => {
                if !self.by_name.contains_key(name) {
                    self.requests.remove(name);
                }
                Err(Code::Internal)
            }
            CallOutcome::Unreachable => Err(Code::Unavailable),
        })
    }

    pub(super) fn delete(&mut self, handle: &str, outcome: CallOutcome) -> Result<(), Code> {
        let call = Call::Delete(handle.to_owned());
        if self.running.contains(&call) {
            return Err(Code::Aborted);
        }
        if outcome != CallOutcome::Unreachable {
            self.deletions.insert(handle.to_owned());
        }
        match outcome {
            CallOutcome::Succeeds => {
                self.run(&call);
                Ok(())
            }
            CallOutcome::ResponseLost => {
                self.run(&call);
                Err(Code::DeadlineExceeded)
            }
            CallOutcome::Delayed => {
                self.running.push(call);
                Err(Code::DeadlineExceeded)
            }
            CallOutcome::Rejected => Err(Code::Internal),
            CallOutcome::Unreachable => Err(Code::Unavailable),
        }
    }

    fn run(&mut self, call: &Call) {
        match call {
            Call::Create(name) => {
                self.last += 1;
                let handle = format!("handle-{}", self.last);
                self.by_name.entry(name.clone()).or_insert(handle);
            }
            Call::Delete(handle) => {
                let gone = self.by_name.iter().find(|(_, of)| *of == handle).map(|(name, _)| name.clone());
                if let Some(name) = gone {
                    self.by_name.remove(&name);
                    self.requests.remove(&name);
                }
            }
        }
    }

    pub(super) fn deletion_requested(&self, handle: &str) -> bool {
        self.deletions.contains(handle)
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// A delayed call takes effect. Returns the handle of a deletion, which must not hit a volume in use.
    pub(super) fn finish_delayed(&mut self, which: usize) -> Option<String> {
        let call = self.running.remove(which % self.running.len());
        self.run(&call);
        match call {
            Call::Delete(handle) => Some(handle),
            Call::Create(_) => None,
        }
    }
}
