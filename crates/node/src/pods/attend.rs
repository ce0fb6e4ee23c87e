//! Who looks after a container while it runs: somebody waits for its end, its probes are asked, its hook is done.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use wharf_cluster::{EventType, Priority, now};
use wharf_model::whole::Pod;
use wharf_model::whole::container::Container;

use super::memory::{Attended, Beside};
use super::probe::{self, Plan, Purpose, Said};
use super::view::{Failed, Life, View, roles};
use super::{Pods, hooks};
use crate::runtime::ContainerId;

/// For a hook after the start, which has no limit of its own.
const POST_START: Duration = Duration::from_secs(24 * 3600);

impl Pods {
    /// Every container that runs is looked after, also one that was started before us.
    pub(super) fn attend(self: &Arc<Self>, uid: &str, view: &View) {
        for ((_, container), seen) in roles(&view.pod).zip(&view.containers) {
            let Life::Running { id, started, .. } = &seen.life else { continue };
            let Some(id) = ContainerId::parse(id) else { continue };
            let running_for = Duration::from_millis(now().0.saturating_sub(started.0).max(0).unsigned_abs());
            self.memories.container(uid, &container.name, |known| {
                if known.attended.as_ref().is_some_and(|attended| attended.id == id) {
                    return;
                }
                let mut besides = vec![self.wait_for(uid, &id)];
                besides.extend(self.probes(&view.pod, container, &id, running_for, known.health.started));
                if known.health.beginning {
                    besides.extend(self.post_start(&view.pod, container, &id));
                }
                known.attended = Some(Attended { id, _besides: besides });
            });
        }
    }

    fn beside(&self, task: impl Future<Output = ()> + Send + 'static) -> Beside {
        AbortOnDropHandle::new(tokio::spawn(task))
    }

    fn wait_for(&self, uid: &str, id: &ContainerId) -> Beside {
        let (runtime, queue, uid, id) =
            (self.agent.runtime.clone(), self.queue.clone(), uid.to_owned(), id.clone());
        self.beside(async move {
            runtime.exited(&id).await;
            queue.reset(&uid);
            queue.add(uid, Priority::High);
        })
    }

    fn probes(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        container: &Container,
        id: &ContainerId,
        running_for: Duration,
        started: bool,
    ) -> Option<Beside> {
        let plan = |purpose: Purpose| match Plan::of(purpose, container)? {
            Ok(plan) => Some(plan),
            Err(what) => {
                let note = format!(
                    "{} probe warning: {what} is not asked here, and counts as well: use exec, httpGet or tcpSocket",
                    purpose.title()
                );
                self.agent.events.tell(&**pod, EventType::Warning, "ProbeWarning", note);
                None
            }
        };
        // Its start is over once: by now the probe may well fail, and would end a container that is well.
        let startup = plan(Purpose::Startup).filter(|_| !started);
        let (liveness, readiness) = (plan(Purpose::Liveness), plan(Purpose::Readiness));
        if startup.is_none() && liveness.is_none() && readiness.is_none() {
            return None;
        }
        let (this, pod, container, id) = (Arc::clone(self), Arc::clone(pod), container.clone(), id.clone());
        Some(self.beside(async move {
            let ask = async |purpose: Purpose, plan: Option<Plan>| {
                let Some(plan) = plan else { return };
                let tell = |said| this.probe_said(&pod, &container, purpose, said);
                probe::ask(this.agent.runtime.clone(), id.clone(), plan, running_for, tell).await;
            };
            // Nothing else is asked while it starts.
            let starts = startup.is_some();
            ask(Purpose::Startup, startup).await;
            let started =
                this.memories.container(&pod.metadata.uid, &container.name, |known| known.health.started);
            if !starts || started == Some(true) {
                tokio::join!(ask(Purpose::Liveness, liveness), ask(Purpose::Readiness, readiness));
            }
        }))
    }

    /// Takes what a probe has to tell; answers whether to go on asking.
    fn probe_said(&self, pod: &Pod, container: &Container, purpose: Purpose, said: Said) -> bool {
        let well = match said {
            Said::Unhealthy(note) => {
                let note = format!("{} probe {note}", purpose.title());
                self.agent.events.tell(pod, EventType::Warning, "Unhealthy", note);
                return true;
            }
            Said::Verdict(well) => well,
        };
        let probe = purpose.of(container);
        let grace = probe.and_then(|probe| probe.termination_grace_period_seconds);
        let word = purpose.title().to_lowercase();
        let failed = Failed {
            note: format!("Container {} failed {word} probe, will be restarted", container.name),
            grace: grace.map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs())),
        };
        let uid = &pod.metadata.uid;
        self.memories.container(uid, &container.name, |known| match (purpose, well) {
            (Purpose::Readiness, well) => known.health.ready = well,
            (Purpose::Startup, true) => known.health.started = true,
            (Purpose::Liveness, true) => {}
            (Purpose::Startup | Purpose::Liveness, false) => known.health.failed = Some(failed),
        });
        self.queue.add(uid.clone(), Priority::Normal);
        match purpose {
            Purpose::Startup => false,
            Purpose::Liveness => well,
            Purpose::Readiness => true,
        }
    }

    fn post_start(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        container: &Container,
        id: &ContainerId,
    ) -> Option<Beside> {
        let handler = container.lifecycle.as_ref()?.post_start.clone()?;
        let (this, pod, container, id) = (Arc::clone(self), Arc::clone(pod), container.clone(), id.clone());
        Some(self.beside(async move {
            let (name, runtime) = (&container.name, &*this.agent.runtime);
            let done = hooks::run(runtime, &id, &container, &handler, POST_START).await;
            if let Err(why) = &done {
                tracing::warn!(pod = %pod.metadata.key(), container = name, why, "the hook after the start failed");
                let note = format!("PostStartHook failed: {why}");
                this.agent.events.tell(&*pod, EventType::Warning, "FailedPostStartHook", note);
            }
            let uid = &pod.metadata.uid;
            this.memories.container(uid, name, |known| {
                known.health.beginning = false;
                if done.is_err() {
                    known.health.failed = Some(Failed { note: "FailedPostStartHook".to_owned(), grace: None });
                }
            });
            this.queue.add(uid.clone(), Priority::Normal);
        }))
    }
}
