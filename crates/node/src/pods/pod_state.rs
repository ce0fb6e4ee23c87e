//! In-process state of pods, in addition to what the API server and the runtime know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;
use wharf_container::{Cause, ContainerId, ContainerInfo, Containers, Exit, State};
use wharf_model::Pod;
use wharf_model::container::{ContainerStatus, Terminated};
use wharf_model::{Monotonic, Time};

use super::probe::{Plan, Purpose};
use super::view::{ContainerView, Crash, Ended, Health, RunState, StartFailure, View, VolumesState, roles};
use super::{differ_in_fields, is_ready};
use crate::volumes::Mounted;

/// A background task of a pod, aborted when dropped.
pub(super) type Task = AbortOnDropHandle<()>;

/// Whether the API server still has the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Yes,
    /// It was missing from a list, or a watch reported its deletion: to be confirmed before anything is done.
    Unconfirmed,
    /// Confirmed gone.
    No,
}

/// State of a pod.
pub(super) struct PodState {
    pub(super) pod: Arc<Pod>,
    pub(super) presence: Presence,
    pub(super) first_seen: Time,
    pub(super) volumes: PodVolumes,
    pub(super) containers: BTreeMap<String, ContainerState>,
    pub(super) reported: Option<Value>,
    pub(super) deleted: bool,
    /// Why it is evicted.
    pub(super) evicted: Option<String>,
}

/// State of its volumes.
pub(super) enum PodVolumes {
    Unrequested,
    Requested { _waiting: Task },
    Mounted(Arc<Mounted>),
    Releasing { _waiting: Task },
    Released,
}

/// State of a container.
#[derive(Default)]
pub(super) struct ContainerState {
    /// Attempts that the runtime knows.
    pub(super) attempts: BTreeMap<u32, ContainerId>,
    /// Those of them that ran before the last reboot.
    earlier: BTreeSet<u32>,
    /// Exits of attempts that the runtime does not know.
    pub(super) ends: BTreeMap<u32, Ended>,
    /// The newest attempt that was found to have exited, and when.
    ended_at: Option<(u32, Monotonic)>,
    pub(super) crash: Crash,
    pub(super) start_failure: Option<StartFailure>,
    pub(super) stopping: Option<Stopping>,
    pub(super) health: Health,
    /// Background tasks of the running attempt.
    pub(super) tasks: Option<ContainerTasks>,
}

/// Background tasks of a running attempt.
pub(super) struct ContainerTasks {
    pub(super) id: ContainerId,
    pub(super) _tasks: Vec<Task>,
}

/// An attempt that is being stopped.
pub(super) struct Stopping {
    /// When it is killed.
    pub(super) killed: Time,
    pub(super) _stopping: Task,
}

impl PodState {
    pub(super) fn new(pod: Arc<Pod>, now: Time) -> Self {
        let mut containers: BTreeMap<String, ContainerState> = BTreeMap::new();
        for status in pod.status.own_container_statuses() {
            let known = ContainerState { ends: exits_from_status(status), ..ContainerState::default() };
            containers.insert(status.name.clone(), known);
        }
        for (_, container) in roles(&pod) {
            containers.entry(container.name.clone()).or_default();
        }
        Self {
            pod,
            presence: Presence::Yes,
            first_seen: now,
            volumes: PodVolumes::Unrequested,
            containers,
            reported: None,
            deleted: false,
            evicted: None,
        }
    }

    /// Adopts a container started by an earlier agent.
    pub(super) fn adopt_container(&mut self, found: &ContainerInfo) {
        let ContainerInfo { id, container, attempt, this_boot, state, .. } = found;
        let of_this_life = |status: &ContainerStatus| {
            status.name == *container && u32::try_from(status.restart_count) == Ok(*attempt)
        };
        let started = self
            .pod
            .status
            .own_container_statuses()
            .any(|status| of_this_life(status) && status.started && status.state.running.is_some());
        let known = self.containers.entry(container.clone()).or_default();
        known.attempts.insert(*attempt, id.clone());
        known.health.started |= started && matches!(state, State::Running { .. });
        if !this_boot {
            known.earlier.insert(*attempt);
        }
    }

    /// The inputs of the rules.
    pub(super) fn view(&mut self, runtime: &dyn Containers, address: &str, now: Monotonic) -> View {
        let pod = Arc::clone(&self.pod);
        let containers = roles(&pod)
            .map(|(role, container)| {
                let known = self.containers.entry(container.name.clone()).or_default();
                let (run_state, before) = known.run_state(runtime);
                known.notice_end(&run_state, now);
                if !matches!(run_state, RunState::Running { .. }) {
                    known.stopping = None;
                    known.tasks = None;
                    known.health = Health::default();
                }
                ContainerView {
                    name: container.name.clone(),
                    role,
                    run_state,
                    ended_at: known.ended_at.map(|(_, at)| at),
                    before,
                    crash: known.crash.clone(),
                    start_failure: known.start_failure.clone(),
                    stopping: known.stopping.as_ref().map(|stopping| stopping.killed),
                    probed_start: Plan::is_there(Purpose::Startup, container),
                    probed_ready: Plan::is_there(Purpose::Readiness, container),
                    health: known.health.clone(),
                }
            })
            .collect();
        View {
            pod,
            gone: self.presence == Presence::No,
            address: address.to_owned(),
            first_seen: self.first_seen,
            volumes: match self.volumes {
                PodVolumes::Unrequested => VolumesState::Unrequested,
                PodVolumes::Requested { .. } => VolumesState::Requested,
                PodVolumes::Mounted(_) => VolumesState::Mounted,
                PodVolumes::Releasing { .. } => VolumesState::Releasing,
                PodVolumes::Released => VolumesState::Released,
            },
            containers,
            reported: self.reported.clone(),
            deleted: self.deleted,
            evicted: self.evicted.clone(),
        }
    }
}

impl ContainerState {
    /// Remembers since when the newest attempt is over. The wall time at which it exited may be on either side of a step
    /// of the clock.
    fn notice_end(&mut self, run_state: &RunState, now: Monotonic) {
        self.ended_at = match run_state {
            RunState::Ended(ended) => Some(
                self.ended_at
                    .filter(|(attempt, _)| *attempt == ended.attempt)
                    .unwrap_or((ended.attempt, now)),
            ),
            RunState::None | RunState::Running { .. } => None,
        };
    }

    /// The newest attempt, and how the previous one exited.
    fn run_state(&mut self, runtime: &dyn Containers) -> (RunState, Option<Ended>) {
        let newest = self.attempts.keys().chain(self.ends.keys()).max().copied();
        let Some(newest) = newest else { return (RunState::None, None) };
        let before = match newest.checked_sub(1).map(|attempt| self.one(runtime, attempt)) {
            Some(RunState::Ended(ended)) => Some(ended),
            _ => None,
        };
        (self.one(runtime, newest), before)
    }

    fn one(&mut self, runtime: &dyn Containers, attempt: u32) -> RunState {
        if let Some(id) = self.attempts.get(&attempt) {
            match runtime.state(id) {
                State::Running { started, .. } => {
                    return RunState::Running { id: id.to_string(), attempt, started };
                }
                State::Exited(exit) => {
                    let earlier = self.earlier.contains(&attempt);
                    return RunState::Ended(Ended { earlier, ..ended(id, attempt, &exit) });
                }
                State::Unknown => {
                    // It existed, but its exit was not observed.
                    self.attempts.remove(&attempt);
                    let earlier = self.earlier.contains(&attempt);
                    self.ends.entry(attempt).or_insert_with(|| Ended { earlier, ..lost(attempt, None) });
                }
            }
        }
        self.ends.get(&attempt).map_or(RunState::None, |ended| RunState::Ended(ended.clone()))
    }
}

fn ended(id: &ContainerId, attempt: u32, exit: &Exit) -> Ended {
    let (reason, message) = match exit.cause {
        Cause::Ended if exit.code == 0 => ("Completed", ""),
        Cause::Ended => ("Error", ""),
        Cause::Lost => (UNKNOWN, LOST),
        Cause::NeverRan => ("StartError", "the start of the container was interrupted"),
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

/// Exits known from the pod's status; used for attempts that the runtime does not know.
fn exits_from_status(status: &ContainerStatus) -> BTreeMap<u32, Ended> {
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
        // It waits for its restart: lastState is the newest attempt.
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

/// All pods, by UID.
#[derive(Clone, Default)]
pub(super) struct PodStates(Arc<Mutex<BTreeMap<String, PodState>>>);

impl PodStates {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PodState>> {
        // Every change is complete when the lock is released, even by a panic.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn with<T>(&self, uid: &str, inputs_of: impl FnOnce(&mut PodState) -> T) -> Option<T> {
        self.lock().get_mut(uid).map(inputs_of)
    }

    pub(super) fn container<T>(
        &self,
        uid: &str,
        name: &str,
        inputs_of: impl FnOnce(&mut ContainerState) -> T,
    ) -> Option<T> {
        self.lock()
            .get_mut(uid)
            .map(|pod_state| inputs_of(pod_state.containers.entry(name.to_owned()).or_default()))
    }

    /// Updates the pod object.
    pub(super) fn update_pod(&self, pod: Arc<Pod>, now: Time) {
        let mut all = self.lock();
        match all.get_mut(&pod.metadata.uid) {
            Some(pod_state) => (pod_state.pod, pod_state.presence) = (pod, Presence::Yes),
            None => _ = all.insert(pod.metadata.uid.clone(), PodState::new(pod, now)),
        }
    }

    /// Adopts the pods of the store, after changes may have been dropped. A pod that is missing there, or that nothing is
    /// known about, is confirmed before anything is done: the store may lag. Returns the pods whose fields changed.
    pub(super) fn resync(&self, stored: Vec<Arc<Pod>>, now: Time) -> Vec<String> {
        let mut all = self.lock();
        let stored: BTreeMap<String, Arc<Pod>> =
            stored.into_iter().map(|pod| (pod.metadata.uid.clone(), pod)).collect();
        for (uid, pod_state) in all.iter_mut().filter(|(uid, _)| !stored.contains_key(*uid)) {
            if pod_state.presence == Presence::Yes {
                tracing::debug!(pod_uid = uid, "pod is missing in the store; confirming that it is gone");
                pod_state.presence = Presence::Unconfirmed;
            }
        }
        let mut fields_changed = Vec::new();
        for (uid, pod) in stored {
            let Some(pod_state) = all.get_mut(&uid) else {
                let mut pod_state = PodState::new(pod, now);
                pod_state.presence = Presence::Unconfirmed;
                all.insert(uid, pod_state);
                continue;
            };
            if pod_state.presence == Presence::No {
                continue;
            }
            // Another component changed what we reported: it is written again.
            if is_ready(&pod_state.pod) && !is_ready(&pod) {
                pod_state.reported = None;
            }
            if differ_in_fields(&pod_state.pod, &pod) {
                fields_changed.push(uid);
            }
            pod_state.pod = pod;
        }
        fields_changed
    }

    pub(super) fn drop_state(&self, uid: &str) {
        let pod_state = self.lock().remove(uid);
        drop(pod_state);
    }

    /// Drops all state and background tasks.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        // Not under the lock: tasks may take it while they are dropped.
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

    /// Changes were dropped: a pod was created, one was changed and one was deleted.
    #[test]
    fn resync_repairs_dropped_changes() {
        let pod = |uid: &str, label: &str, ready: &str| -> Arc<Pod> {
            let metadata = json!({"name": uid, "namespace": "n", "uid": uid, "labels": {"l": label}});
            let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
            Arc::new(serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
        };
        let states = PodStates::default();
        for uid in ["same", "changed", "unready", "deleted", "gone"] {
            states.update_pod(pod(uid, "old", "True"), Time(0));
            states.with(uid, |state| state.reported = Some(json!({})));
        }
        states.with("gone", |state| state.presence = Presence::No);
        let stored = vec![
            pod("same", "old", "True"),
            pod("changed", "new", "True"),
            pod("unready", "old", "False"),
            pod("gone", "new", "True"),
            pod("created", "new", "True"),
        ];
        assert_eq!(states.resync(stored, Time(7)), ["changed"]);
        for (uid, presence, label, reported) in [
            ("same", Presence::Yes, "old", true),
            ("changed", Presence::Yes, "new", true),
            ("unready", Presence::Yes, "old", false),
            ("deleted", Presence::Unconfirmed, "old", true),
            ("gone", Presence::No, "old", true),
            ("created", Presence::Unconfirmed, "new", false),
        ] {
            let found = states.with(uid, |state| {
                let label = state.pod.metadata.labels.get("l").map(str::to_owned);
                (state.presence, label, state.reported.is_some())
            });
            assert_eq!(found, Some((presence, Some(label.to_owned()), reported)), "{uid}");
        }
    }

    /// After a reboot, the last reported status is all that is known.
    #[test]
    fn exits_are_recovered_from_the_pod_status() {
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
            let ends = exits_from_status(&serde_json::from_value(status.clone()).unwrap());
            let got: Vec<(u32, i32)> = ends.iter().map(|(attempt, ended)| (*attempt, ended.code)).collect();
            assert_eq!(got, expected, "{status}");
        }
    }
}
