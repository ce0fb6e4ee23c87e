//! What an agent remembers of its pods, besides what the server and the runtime know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;
use wharf_model::Time;
use wharf_model::whole::Pod;
use wharf_model::whole::container::{ContainerStatus, Terminated};

use super::probe::{Plan, Purpose};
use super::view::{Crash, Ended, Health, Life, Seen, Trouble, View, VolumesAre, roles};
use crate::containers::Containers;
use crate::runtime::{Cause, ContainerId, Exit, Found, State};
use crate::volumes::Mounted;

/// What goes on beside a pod's worker, until this is dropped.
pub(super) type Beside = AbortOnDropHandle<()>;

/// Whether the server still has the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum There {
    Yes,
    /// It was not in a list, or somebody saw its end: the server is asked before anything is done.
    Perhaps,
    /// The server said so.
    No,
}

/// A pod.
pub(super) struct Memory {
    pub(super) pod: Arc<Pod>,
    pub(super) there: There,
    pub(super) seen: Time,
    pub(super) volumes: Kept,
    pub(super) containers: BTreeMap<String, Known>,
    pub(super) reported: Option<Value>,
    pub(super) deleted: bool,
}

/// Its volumes.
pub(super) enum Kept {
    Unasked,
    Coming { _waiting: Beside },
    Mounted(Arc<Mounted>),
    Going { _waiting: Beside },
    Released,
}

/// A container.
#[derive(Default)]
pub(super) struct Known {
    /// Lives that the runtime knows.
    pub(super) lives: BTreeMap<u32, ContainerId>,
    /// Those of them that were before the machine was last started.
    earlier: BTreeSet<u32>,
    /// Ends of those that it does not.
    pub(super) ends: BTreeMap<u32, Ended>,
    pub(super) crash: Crash,
    pub(super) trouble: Option<Trouble>,
    pub(super) stopping: Option<Stopping>,
    pub(super) health: Health,
    /// Who waits for the end of the life that runs, asks its probes and does its hook.
    pub(super) attended: Option<Attended>,
}

/// A life that somebody looks after.
pub(super) struct Attended {
    pub(super) id: ContainerId,
    pub(super) _besides: Vec<Beside>,
}

/// A life that is being ended.
pub(super) struct Stopping {
    /// When it is killed.
    pub(super) killed: Time,
    pub(super) _stopping: Beside,
}

impl Memory {
    pub(super) fn new(pod: Arc<Pod>, now: Time) -> Self {
        let mut containers: BTreeMap<String, Known> = BTreeMap::new();
        for status in pod.status.own_container_statuses() {
            let known = Known { ends: told(status), ..Known::default() };
            containers.insert(status.name.clone(), known);
        }
        for (_, container) in roles(&pod) {
            containers.entry(container.name.clone()).or_default();
        }
        Self {
            pod,
            there: There::Yes,
            seen: now,
            volumes: Kept::Unasked,
            containers,
            reported: None,
            deleted: false,
        }
    }

    /// Takes over a container that an agent before us has started.
    pub(super) fn take_over(&mut self, found: &Found) {
        let Found { id, container, attempt, this_boot, state, .. } = found;
        let of_this_life = |status: &ContainerStatus| {
            status.name == *container && u32::try_from(status.restart_count) == Ok(*attempt)
        };
        let started = self
            .pod
            .status
            .own_container_statuses()
            .any(|status| of_this_life(status) && status.started && status.state.running.is_some());
        let known = self.containers.entry(container.clone()).or_default();
        known.lives.insert(*attempt, id.clone());
        known.health.started |= started && matches!(state, State::Running { .. });
        if !this_boot {
            known.earlier.insert(*attempt);
        }
    }

    /// What a rule may look at.
    pub(super) fn view(&mut self, runtime: &dyn Containers, address: &str) -> View {
        let pod = Arc::clone(&self.pod);
        let containers = roles(&pod)
            .map(|(role, container)| {
                let known = self.containers.entry(container.name.clone()).or_default();
                let (life, before) = known.life(runtime);
                if !matches!(life, Life::Running { .. }) {
                    known.stopping = None;
                    known.attended = None;
                    known.health = Health::default();
                }
                Seen {
                    name: container.name.clone(),
                    role,
                    life,
                    before,
                    crash: known.crash.clone(),
                    trouble: known.trouble.clone(),
                    stopping: known.stopping.as_ref().map(|stopping| stopping.killed),
                    probed_start: Plan::is_there(Purpose::Startup, container),
                    probed_ready: Plan::is_there(Purpose::Readiness, container),
                    health: known.health.clone(),
                }
            })
            .collect();
        View {
            pod,
            gone: self.there == There::No,
            address: address.to_owned(),
            seen: self.seen,
            volumes: match self.volumes {
                Kept::Unasked => VolumesAre::Unasked,
                Kept::Coming { .. } => VolumesAre::Coming,
                Kept::Mounted(_) => VolumesAre::Mounted,
                Kept::Going { .. } => VolumesAre::Going,
                Kept::Released => VolumesAre::Released,
            },
            containers,
            reported: self.reported.clone(),
            deleted: self.deleted,
        }
    }
}

impl Known {
    /// The newest life, and how the one before ended.
    fn life(&mut self, runtime: &dyn Containers) -> (Life, Option<Ended>) {
        let newest = self.lives.keys().chain(self.ends.keys()).max().copied();
        let Some(newest) = newest else { return (Life::None, None) };
        let before = match newest.checked_sub(1).map(|attempt| self.one(runtime, attempt)) {
            Some(Life::Ended(ended)) => Some(ended),
            _ => None,
        };
        (self.one(runtime, newest), before)
    }

    fn one(&mut self, runtime: &dyn Containers, attempt: u32) -> Life {
        if let Some(id) = self.lives.get(&attempt) {
            match runtime.state(id) {
                State::Running { started, .. } => {
                    return Life::Running { id: id.to_string(), attempt, started };
                }
                State::Exited(exit) => {
                    let earlier = self.earlier.contains(&attempt);
                    return Life::Ended(Ended { earlier, ..ended(id, attempt, &exit) });
                }
                State::Unknown => {
                    // It was there, and nobody saw its end.
                    self.lives.remove(&attempt);
                    let earlier = self.earlier.contains(&attempt);
                    self.ends.entry(attempt).or_insert_with(|| Ended { earlier, ..lost(attempt, None) });
                }
            }
        }
        self.ends.get(&attempt).map_or(Life::None, |ended| Life::Ended(ended.clone()))
    }
}

fn ended(id: &ContainerId, attempt: u32, exit: &Exit) -> Ended {
    let (reason, message) = match exit.cause {
        Cause::Ended if exit.code == 0 => ("Completed", ""),
        Cause::Ended => ("Error", ""),
        Cause::Lost => (UNKNOWN, LOST),
        Cause::NeverRan => ("StartError", "the start of the container was broken off"),
    };
    Ended {
        id: id.to_string(),
        attempt,
        code: exit.code,
        reason: reason.into(),
        message: message.into(),
        started: Some(exit.started),
        finished: Some(exit.finished),
        earlier: false,
    }
}

const UNKNOWN: &str = "ContainerStatusUnknown";
const LOST: &str = "The container could not be located when the pod was terminated";

fn lost(attempt: u32, started: Option<Time>) -> Ended {
    Ended {
        id: String::new(),
        attempt,
        code: 137,
        reason: UNKNOWN.into(),
        message: LOST.into(),
        started,
        finished: None,
        earlier: true,
    }
}

/// What the server knows of a container's lives: those that the runtime knows too are its to tell.
fn told(status: &ContainerStatus) -> BTreeMap<u32, Ended> {
    let attempt = u32::try_from(status.restart_count).unwrap_or(0);
    let end = |attempt: u32, terminated: &Terminated| Ended {
        id: String::new(),
        attempt,
        code: terminated.exit_code,
        reason: terminated.reason.clone(),
        message: String::new(),
        started: terminated.started_at,
        finished: terminated.finished_at,
        earlier: true,
    };
    let (state, last) = (&status.state, status.last_state.terminated.as_ref());
    let mut ends = BTreeMap::new();
    match (&state.running, &state.terminated) {
        (Some(running), _) => _ = ends.insert(attempt, lost(attempt, running.started_at)),
        (None, Some(terminated)) => _ = ends.insert(attempt, end(attempt, terminated)),
        // It waits for its next life: the last one is the newest.
        (None, None) => {
            ends.extend(last.map(|terminated| (attempt, end(attempt, terminated))));
            return ends;
        }
    }
    if let (Some(before), Some(terminated)) = (attempt.checked_sub(1), last) {
        ends.insert(before, end(before, terminated));
    }
    ends
}

/// All pods, by their UIDs.
#[derive(Clone, Default)]
pub(super) struct Memories(Arc<Mutex<BTreeMap<String, Memory>>>);

impl Memories {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Memory>> {
        // Each change is whole when the lock is given back, even by a panic.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn with<T>(&self, uid: &str, look: impl FnOnce(&mut Memory) -> T) -> Option<T> {
        self.lock().get_mut(uid).map(look)
    }

    pub(super) fn container<T>(
        &self,
        uid: &str,
        name: &str,
        look: impl FnOnce(&mut Known) -> T,
    ) -> Option<T> {
        self.lock().get_mut(uid).map(|memory| look(memory.containers.entry(name.to_owned()).or_default()))
    }

    /// The pod as it is now.
    pub(super) fn see(&self, pod: Arc<Pod>, now: Time) {
        let mut all = self.lock();
        match all.get_mut(&pod.metadata.uid) {
            Some(memory) => (memory.pod, memory.there) = (pod, There::Yes),
            None => _ = all.insert(pod.metadata.uid.clone(), Memory::new(pod, now)),
        }
    }

    pub(super) fn forget(&self, uid: &str) {
        let memory = self.lock().remove(uid);
        drop(memory);
    }

    /// Nothing is remembered any more, and nothing goes on beside.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        // Not under the lock: whoever ends may want it.
        drop(all);
    }

    pub(super) fn uids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// After a restart of the machine: what the server was told last is all that is known.
    #[test]
    fn lives_that_the_server_knows() {
        let at = "1970-01-01T00:00:09Z";
        let ended =
            |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}});
        for (restarts, state, last, expected) in [
            (0, json!({"waiting": {}}), json!({}), vec![]),
            (0, json!({"running": {}}), json!({}), vec![(0, 137)]),
            (2, json!({"running": {}}), ended(3), vec![(1, 3), (2, 137)]),
            (0, ended(4), json!({}), vec![(0, 4)]),
            (1, ended(4), ended(3), vec![(0, 3), (1, 4)]),
            (5, json!({"waiting": {"reason": "CrashLoopBackOff"}}), ended(3), vec![(5, 3)]),
        ] {
            let status: Value =
                json!({"name": "c", "restartCount": restarts, "state": state, "lastState": last});
            let ends = told(&serde_json::from_value(status.clone()).unwrap());
            let got: Vec<(u32, i32)> = ends.iter().map(|(attempt, ended)| (*attempt, ended.code)).collect();
            assert_eq!(got, expected, "{status}");
        }
    }
}
