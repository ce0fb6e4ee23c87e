//! Executes the decided step. Long operations run as background tasks and wake the pod when they finish.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use wharf_cluster::work::StepOutcome;
use wharf_cluster::{ApiError, EventType, Patch, Preconditions, Priority, monotonic, now};
use wharf_container::{ContainerId, StartError};
use wharf_model::Pod;
use wharf_model::container::Container;
use wharf_model::{Kind, Time};

use super::attend::spawn_restarted;
use super::decide::{MIN_GRACE, Step};
use super::pod_state::{PodVolumes, Presence, Stopping};
use super::view::{Ended, Health, RunState, StartFailure, View, roles};
use super::{Pods, clean, env, hooks, spec};

/// Maximum delay between attempts to create a container; starts at one second.
const MAX_START_RETRY: Duration = Duration::from_secs(10);
/// Exit code of a container whose program could not be started.
const START_ERROR_CODE: i32 = 128;

/// Why a container was not started.
enum NoStart {
    /// Retried without counting as a restart.
    Retry(&'static str, String),
    /// Counts as a run that failed immediately.
    Ended(String),
}

fn millis(until: Time, from: Time) -> Duration {
    Duration::from_millis(until.0.saturating_sub(from.0).max(0).unsigned_abs())
}

impl Pods {
    pub(super) async fn act(self: &Arc<Self>, uid: &str, view: &View, step: Step) -> StepOutcome {
        match step {
            Step::Done => return StepOutcome::DONE,
            Step::Wait(pause) => return StepOutcome::retry_after(pause),
            Step::RequestVolumes => self.request_volumes(uid, &view.pod),
            Step::Start { container, attempt } => self.start(uid, view, &container, attempt).await,
            Step::RecordBackOff { container, attempt } => {
                self.record_back_off(uid, view, &container, attempt)
            }
            Step::Stop { containers, by, note } => {
                for container in containers {
                    self.stop(uid, view, &container, by, note.as_deref());
                }
            }
            Step::Release => self.release(uid),
            Step::Report(status) => return self.report(uid, &view.pod, *status).await,
            Step::Delete => return self.delete(uid, &view.pod).await,
            Step::DropState => return self.drop_state(uid).await,
        }
        StepOutcome::Continue
    }

    fn request_volumes(&self, uid: &str, pod: &Arc<Pod>) {
        let volumes = self.agent.volumes.clone();
        volumes.request(Arc::clone(pod));
        let (pod_states, queue, waiter) = (self.pod_states.clone(), self.queue.clone(), uid.to_owned());
        let waiting = spawn_restarted(uid, move || {
            let (volumes, pod_states, queue, waiter) =
                (volumes.clone(), pod_states.clone(), queue.clone(), waiter.clone());
            async move {
                let mounted = loop {
                    match volumes.wait_mounted(&waiter).await {
                        Ok(mounted) => break mounted,
                        // The volume manager has recorded events and keeps retrying, and so do we.
                        Err(not_yet) => {
                            tracing::debug!(pod_uid = waiter, error = %not_yet, "volumes are not mounted yet")
                        }
                    }
                };
                pod_states.with(&waiter, |pod_state| {
                    if matches!(pod_state.volumes, PodVolumes::Requested { .. }) {
                        pod_state.volumes = PodVolumes::Mounted(Arc::new(mounted));
                    }
                });
                queue.reset_backoff(&waiter);
                queue.add(waiter, Priority::High);
            }
        });
        self.pod_states
            .with(uid, |pod_state| pod_state.volumes = PodVolumes::Requested { _waiting: waiting });
    }

    fn release(&self, uid: &str) {
        let volumes = self.agent.volumes.clone();
        volumes.release(uid);
        let (pod_states, queue, waiter) = (self.pod_states.clone(), self.queue.clone(), uid.to_owned());
        let waiting = spawn_restarted(uid, move || {
            let (volumes, pod_states, queue, waiter) =
                (volumes.clone(), pod_states.clone(), queue.clone(), waiter.clone());
            async move {
                volumes.wait_released(&waiter).await;
                pod_states.with(&waiter, |pod_state| {
                    if matches!(pod_state.volumes, PodVolumes::Releasing { .. }) {
                        pod_state.volumes = PodVolumes::Released;
                    }
                });
                queue.reset_backoff(&waiter);
                queue.add(waiter, Priority::High);
            }
        });
        self.pod_states
            .with(uid, |pod_state| pod_state.volumes = PodVolumes::Releasing { _waiting: waiting });
    }

    async fn start(self: &Arc<Self>, uid: &str, view: &View, name: &str, attempt: u32) {
        let Some((_, container)) = roles(&view.pod).find(|(_, container)| container.name == name) else {
            return;
        };
        let pod = &view.pod;
        let events = &self.agent.events;
        let image =
            format!("Image {:?} is not pulled: the container runs programs of the host", container.image);
        events.record_for(&**pod, EventType::Normal, "Pulled", image);
        let started = self.try_start(uid, pod, container, attempt).await;
        let at = monotonic();
        let before = view.containers.iter().find(|observed| observed.name == name);
        let before = before.and_then(|observed| observed.ended_at);
        let lived = !matches!(started, Err(NoStart::Retry(..)));
        let hooked = container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some());
        let old = self.pod_states.container(uid, name, |known| {
            if let (Some(ended), true) = (before, lived) {
                known.crash.begin(self.crash_backoff, ended, at);
            }
            match &started {
                Ok(id) => {
                    known.attempts.insert(attempt, id.clone());
                    known.start_failure = None;
                    known.health = Health { post_start_running: hooked, ..Health::default() };
                }
                Err(NoStart::Ended(message)) => {
                    let ended = Ended {
                        id: String::new(),
                        attempt,
                        code: START_ERROR_CODE,
                        reason: "StartError".to_owned(),
                        message: message.clone(),
                        started: None,
                        finished: Some(now()),
                        earlier: false,
                    };
                    known.ends.insert(attempt, ended);
                    known.start_failure = None;
                }
                Err(NoStart::Retry(reason, message)) => {
                    let count = known.start_failure.as_ref().map_or(0, |start_failure| start_failure.count);
                    let pause = Duration::from_secs(1 << count.min(6)).min(MAX_START_RETRY);
                    let (message, retry_at) = (message.clone(), at.plus(pause));
                    known.start_failure =
                        Some(StartFailure { reason, message, retry_at, count: count.saturating_add(1) });
                }
            }
            // The previous attempt's log is kept for `kubectl logs --previous`; older ones cannot be requested.
            known.ends.retain(|number, _| number.saturating_add(1) >= attempt);
            let (keep, old) = std::mem::take(&mut known.attempts)
                .into_iter()
                .partition(|(number, _)| number.saturating_add(1) >= attempt);
            known.attempts = keep;
            old
        });
        match started {
            Ok(_) => {
                events.record_for(&**pod, EventType::Normal, "Created", format!("Created container: {name}"));
                events.record_for(&**pod, EventType::Normal, "Started", format!("Started container {name}"));
            }
            Err(NoStart::Retry(_, message) | NoStart::Ended(message)) => {
                events.record_for(&**pod, EventType::Warning, "Failed", format!("Error: {message}"));
            }
        }
        for id in old.unwrap_or_default().into_values() {
            self.discard(&id).await;
        }
    }

    async fn try_start(
        &self,
        uid: &str,
        pod: &Pod,
        container: &Container,
        attempt: u32,
    ) -> Result<ContainerId, NoStart> {
        let config = |reason: String| NoStart::Retry("CreateContainerConfigError", reason);
        let mounted = self.pod_states.with(uid, |pod_state| match &pod_state.volumes {
            PodVolumes::Mounted(mounted) => Some(Arc::clone(mounted)),
            _ => None,
        });
        let Some(mounted) = mounted.flatten() else {
            return Err(config(
                "the pod's volumes were unmounted while the container was being created".to_owned(),
            ));
        };
        let found = env::gather(&self.agent.cluster, pod, container).await;
        let made = found.and_then(|found| env::environment(pod, container, &found, &self.node_env));
        let variables = made.map_err(|error| config(error.to_string()))?;
        let spec = spec::spec(pod, container, attempt, variables, &mounted);
        let spec = spec.map_err(|error| config(error.to_string()))?;
        let id = spec.id();
        match self.agent.runtime.start(spec).await {
            Ok(id) => Ok(id),
            Err(error) => {
                // Otherwise the next attempt would find this one.
                self.discard(&id).await;
                Err(match error {
                    StartError::Config(reason) => config(reason),
                    StartError::Program(reason) => NoStart::Ended(reason),
                    error @ StartError::Machine { .. } => {
                        NoStart::Retry("RunContainerError", error.to_string())
                    }
                })
            }
        }
    }

    /// Removes what is left of an exited container.
    pub(super) async fn discard(&self, id: &ContainerId) {
        if let Err(error) = self.agent.runtime.remove(id).await {
            tracing::warn!(%error, "failed to remove exited container");
        }
    }

    fn record_back_off(&self, uid: &str, view: &View, container: &str, attempt: u32) {
        let meta = &view.pod.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let note = format!(
            "Back-off restarting failed container {container} in pod {}_{namespace}({})",
            meta.name, meta.uid
        );
        self.agent.events.record_for(&*view.pod, EventType::Warning, "BackOff", note);
        self.pod_states.container(uid, container, |known| known.crash.reported_attempt = Some(attempt));
    }

    /// Stops a container: its preStop hook first, then SIGTERM, then SIGKILL, all before `by`.
    fn stop(self: &Arc<Self>, uid: &str, view: &View, name: &str, by: Time, note: Option<&str>) {
        let mut containers = roles(&view.pod).zip(&view.containers);
        let Some(((_, container), observed)) = containers.find(|((_, container), _)| container.name == name)
        else {
            return;
        };
        let RunState::Running { id, .. } = &observed.run_state else { return };
        let Some(id) = ContainerId::parse(id) else { return };
        let already_stopping = observed.stopping.is_some();
        if !already_stopping {
            let note = note.map_or_else(|| format!("Stopping container {name}"), str::to_owned);
            self.agent.events.record_for(&*view.pod, EventType::Normal, "Killing", note);
        }
        // A stop that is being shortened has already run the hook.
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.clone());
        let hook = hook.filter(|_| !already_stopping);
        let (this, pod, container) = (Arc::clone(self), Arc::clone(&view.pod), container.clone());
        let stopping = spawn_restarted(uid, move || {
            let (this, pod, container) = (Arc::clone(&this), Arc::clone(&pod), container.clone());
            let (id, hook) = (id.clone(), hook.clone());
            async move {
                if let Some(hook) = hook
                    && let Err(error) =
                        hooks::run(&*this.agent.runtime, &id, &container, &hook, millis(by, now())).await
                {
                    tracing::warn!(pod = %pod.metadata.key(), container = %id, error, "preStop hook failed");
                    let note = format!("PreStopHook failed: {error}");
                    this.agent.events.record_for(&*pod, EventType::Warning, "FailedPreStopHook", note);
                }
                this.agent.runtime.stop(&id, millis(by, now()).max(MIN_GRACE)).await;
            }
        });
        let stopping = Stopping { killed: by, _stopping: stopping };
        self.pod_states.container(uid, name, |known| known.stopping = Some(stopping));
    }

    async fn report(&self, uid: &str, pod: &Pod, status: Value) -> StepOutcome {
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
        match self.agent.cluster.patch(&Pod::API, &pod.key(), Some("status"), patch).await {
            Ok(_) => {
                self.pod_states.with(uid, |pod_state| pod_state.reported = Some(status));
                StepOutcome::Continue
            }
            Err(error) => self.refused(uid, pod, &error, "failed to update pod status"),
        }
    }

    async fn delete(&self, uid: &str, pod: &Pod) -> StepOutcome {
        let only = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        match self.agent.cluster.delete_without_grace(&Pod::API, &pod.key(), only).await {
            Ok(()) => {
                self.pod_states.with(uid, |pod_state| pod_state.deleted = true);
                StepOutcome::Continue
            }
            Err(error) => self.refused(uid, pod, &error, "failed to delete pod"),
        }
    }

    /// A write failed. If the pod may be gone, that is confirmed next.
    fn refused(&self, uid: &str, pod: &Pod, error: &ApiError, what: &str) -> StepOutcome {
        match error {
            ApiError::NotFound(_) | ApiError::Conflict(_) | ApiError::Invalid(_) => {
                self.pod_states.with(uid, |pod_state| pod_state.presence = Presence::Unconfirmed);
            }
            _ => {}
        }
        tracing::debug!(pod = %pod.key(), %error, "{what}");
        StepOutcome::RETRY
    }

    /// Nothing of the pod runs or is mounted: removes its containers' records and its directory.
    async fn drop_state(&self, uid: &str) -> StepOutcome {
        let ids = self.pod_states.with(uid, |pod_state| {
            pod_state
                .containers
                .values()
                .flat_map(|known| known.attempts.values().cloned())
                .collect::<Vec<_>>()
        });
        for id in ids.unwrap_or_default() {
            if let Err(error) = self.agent.runtime.remove(&id).await {
                tracing::warn!(pod_uid = uid, %error, "failed to remove exited container; retrying");
                return StepOutcome::RETRY;
            }
        }
        clean::prune(&self.agent.root.pod(uid));
        self.pod_states.drop_state(uid);
        StepOutcome::DONE
    }
}
