//! The driver of the simulation: idempotent by name, as CSI asks, and as unreliable as a driver may be.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Code;

use super::super::intent::Request;

/// How a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    /// Done, and answered.
    Well,
    /// Done, and the answer is lost.
    Lost,
    /// Not answered; done at some later moment.
    Late,
    /// Refused, finally.
    Refused,
    /// Not reached.
    Away,
}

impl Mood {
    /// The good one twice: most calls go well.
    pub(super) const ALL: [Self; 6] =
        [Self::Well, Self::Well, Self::Lost, Self::Late, Self::Refused, Self::Away];
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
    asked: BTreeMap<String, Request>,
    /// Handles that a deletion was asked for: too late to keep them.
    doomed: BTreeSet<String>,
    last: u64,
}

impl Backend {
    pub(super) fn handles(&self) -> Vec<&str> {
        self.by_name.values().map(String::as_str).collect()
    }

    pub(super) fn create(
        &mut self,
        name: &str,
        request: &Request,
        mood: Mood,
    ) -> Result<Result<String, Code>, String> {
        // A call that may still run may only be repeated as it was.
        match self.asked.get(name) {
            Some(before) if before != request => {
                return Err(format!("{name} was asked for in two ways: {before:?} and {request:?}"));
            }
            _ => {}
        }
        self.asked.insert(name.to_owned(), request.clone());
        let call = Call::Create(name.to_owned());
        if self.running.contains(&call) {
            return Ok(Err(Code::Aborted));
        }
        Ok(match mood {
            Mood::Well => {
                self.run(&call);
                self.by_name.get(name).cloned().ok_or(Code::Internal)
            }
            Mood::Lost => {
                self.run(&call);
                Err(Code::DeadlineExceeded)
            }
            Mood::Late => {
                self.running.push(call);
                Err(Code::DeadlineExceeded)
            }
            // Also what exists: that this call went wrong says nothing of those before it.
            Mood::Refused => {
                if !self.by_name.contains_key(name) {
                    self.asked.remove(name);
                }
                Err(Code::Internal)
            }
            Mood::Away => Err(Code::Unavailable),
        })
    }

    pub(super) fn delete(&mut self, handle: &str, mood: Mood) -> Result<(), Code> {
        let call = Call::Delete(handle.to_owned());
        if self.running.contains(&call) {
            return Err(Code::Aborted);
        }
        if mood != Mood::Away {
            self.doomed.insert(handle.to_owned());
        }
        match mood {
            Mood::Well => {
                self.run(&call);
                Ok(())
            }
            Mood::Lost => {
                self.run(&call);
                Err(Code::DeadlineExceeded)
            }
            Mood::Late => {
                self.running.push(call);
                Err(Code::DeadlineExceeded)
            }
            Mood::Refused => Err(Code::Internal),
            Mood::Away => Err(Code::Unavailable),
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
                    self.asked.remove(&name);
                }
            }
        }
    }

    pub(super) fn is_doomed(&self, handle: &str) -> bool {
        self.doomed.contains(handle)
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// One of the calls under way ends. A deletion that runs late must still not take what is in use: its handle.
    pub(super) fn ends(&mut self, which: usize) -> Option<String> {
        let call = self.running.remove(which % self.running.len());
        self.run(&call);
        match call {
            Call::Delete(handle) => Some(handle),
            Call::Create(_) => None,
        }
    }
}
