//! Background tasks of a running container: waiting for its exit, its probes, its postStart hook.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use wharf_cluster::work::restart;
use wharf_cluster::{EventType, Priority, now};
use wharf_container::ContainerId;
use wharf_model::Pod;
use wharf_model::container::Container;

use super::pod_state::{ContainerTasks, Task};
use super::probe::{self, Plan, ProbeReport, Purpose};
use super::view::{Failed, RunState, View, roles};
use super::{Pods, hooks};

/// Timeout of a postStart hook, which has none of its own.
const POST_START_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

impl Pods {
    /// Starts the tasks of every running container, including adopted ones.
    pub(super) fn attend(self: &Arc<Self>, uid: &str, view: &View) {
        for ((_, container), observed) in roles(&view.pod).zip(&view.containers) {
            let RunState::Running { id, started, .. } = &observed.run_state else { continue };
            let Some(id) = ContainerId::parse(id) else { continue };
            let running_for = Duration::from_millis(now().0.saturating_sub(started.0).max(0).unsigned_abs());
            self.pod_states.container(uid, &container.name, |known| {
                if known.tasks.as_ref().is_some_and(|tasks| tasks.id == id) {
                    return;
                }
                let mut tasks = vec![self.wait_for(uid, &id)];
                tasks.extend(self.probes(&view.pod, container, &id, running_for, known.health.started));
                if known.health.post_start_running {
                    tasks.extend(self.post_start(&view.pod, container, &id));
                }
                known.tasks = Some(ContainerTasks { id, _tasks: tasks });
            });
        }
    }

    fn wait_for(&self, uid: &str, id: &ContainerId) -> Task {
        let (runtime, queue, uid, id) =
            (self.agent.runtime.clone(), self.queue.clone(), uid.to_owned(), id.clone());
        spawn_restarted(&uid.clone(), move || {
            let (runtime, queue, uid, id) = (runtime.clone(), queue.clone(), uid.clone(), id.clone());
            async move {
                runtime.exited(&id).await;
                queue.reset_backoff(&uid);
                queue.add(uid, Priority::High);
            }
        })
    }

    fn probes(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        container: &Container,
        id: &ContainerId,
        running_for: Duration,
        started: bool,
    ) -> Option<Task> {
        let plan = |purpose: Purpose| match Plan::of(purpose, container)? {
            Ok(plan) => Some(plan),
            Err(what) => {
                let note = format!(
                    "{} probe warning: {what} is not supported and counts as success: use exec, httpGet or tcpSocket",
                    purpose.title()
                );
                self.agent.events.record_for(&**pod, EventType::Warning, "ProbeWarning", note);
                None
            }
        };
        // A startup probe runs only until it has succeeded once: later it may fail and would kill a healthy container.
        let startup = plan(Purpose::Startup).filter(|_| !started);
        let (liveness, readiness) = (plan(Purpose::Liveness), plan(Purpose::Readiness));
        if startup.is_none() && liveness.is_none() && readiness.is_none() {
            return None;
        }
        let (this, pod, container, id) = (Arc::clone(self), Arc::clone(pod), container.clone(), id.clone());
        Some(spawn_restarted(&pod.metadata.uid.clone(), move || {
            let (this, pod, container, id) =
                (Arc::clone(&this), Arc::clone(&pod), container.clone(), id.clone());
            let (startup, liveness, readiness) = (startup.clone(), liveness.clone(), readiness.clone());
            async move {
                let probe_for = async |purpose: Purpose, plan: Option<Plan>| {
                    let Some(plan) = plan else { return };
                    let report = |result| this.handle_probe_report(&pod, &container, purpose, result);
                    probe::run(this.agent.runtime.clone(), id.clone(), plan, running_for, report).await;
                };
                // Other probes start after the startup probe has succeeded.
                let starts = startup.is_some();
                probe_for(Purpose::Startup, startup).await;
                let started = this
                    .pod_states
                    .container(&pod.metadata.uid, &container.name, |known| known.health.started);
                if !starts || started == Some(true) {
                    tokio::join!(
                        probe_for(Purpose::Liveness, liveness),
                        probe_for(Purpose::Readiness, readiness)
                    );
                }
            }
        }))
    }

    /// Handles a probe's result; returns whether to keep probing.
    fn handle_probe_report(
        &self,
        pod: &Pod,
        container: &Container,
        purpose: Purpose,
        report: ProbeReport,
    ) -> bool {
        let healthy = match report {
            ProbeReport::Unhealthy(note) => {
                let note = format!("{} probe {note}", purpose.title());
                self.agent.events.record_for(pod, EventType::Warning, "Unhealthy", note);
                return true;
            }
            ProbeReport::Verdict(healthy) => healthy,
        };
        let probe = purpose.of(container);
        let grace = probe.and_then(|probe| probe.termination_grace_period_seconds);
        let word = purpose.title().to_lowercase();
        let failed = Failed {
            note: format!("Container {} failed {word} probe, will be restarted", container.name),
            grace: grace.map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs())),
        };
        let uid = &pod.metadata.uid;
        self.pod_states.container(uid, &container.name, |known| match (purpose, healthy) {
            (Purpose::Readiness, healthy) => known.health.ready = healthy,
            (Purpose::Startup, true) => known.health.started = true,
            (Purpose::Liveness, true) => {}
            (Purpose::Startup | Purpose::Liveness, false) => known.health.failed = Some(failed),
        });
        self.queue.add(uid.clone(), Priority::Normal);
        match purpose {
            Purpose::Startup => false,
            Purpose::Liveness => healthy,
            Purpose::Readiness => true,
        }
    }

    fn post_start(self: &Arc<Self>, pod: &Arc<Pod>, container: &Container, id: &ContainerId) -> Option<Task> {
        let handler = container.lifecycle.as_ref()?.post_start.clone()?;
        let (this, pod, container, id) = (Arc::clone(self), Arc::clone(pod), container.clone(), id.clone());
        Some(spawn_restarted(&pod.metadata.uid.clone(), move || {
            let (this, pod, container) = (Arc::clone(&this), Arc::clone(&pod), container.clone());
            let (id, handler) = (id.clone(), handler.clone());
            async move {
                let (name, runtime) = (&container.name, &*this.agent.runtime);
                let done = hooks::run(runtime, &id, &container, &handler, POST_START_TIMEOUT).await;
                if let Err(error) = &done {
                    tracing::warn!(pod = %pod.metadata.key(), container = name, error, "postStart hook failed");
                    let note = format!("PostStartHook failed: {error}");
                    this.agent.events.record_for(&*pod, EventType::Warning, "FailedPostStartHook", note);
                }
                let uid = &pod.metadata.uid;
                this.pod_states.container(uid, name, |known| {
                    known.health.post_start_running = false;
                    if done.is_err() {
                        known.health.failed =
                            Some(Failed { note: "FailedPostStartHook".to_owned(), grace: None });
                    }
                });
                this.queue.add(uid.clone(), Priority::Normal);
            }
        }))
    }
}

/// Runs a background task of a pod, and starts it again with backoff if it panics: the pod waits for its result. A hook
/// may therefore run twice.
pub(super) fn spawn_restarted<F>(uid: &str, task: impl FnMut() -> F + Send + 'static) -> Task
where
    F: Future<Output = ()> + Send,
{
    let uid = uid.to_owned();
    AbortOnDropHandle::new(tokio::spawn(async move {
        restart("pods", uid, None, task).await;
    }))
}
