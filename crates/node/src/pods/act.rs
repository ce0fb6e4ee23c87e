//! Does the one step that was decided. What takes long goes on beside, and wakes the pod when it is over.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use wharf_cluster::work::Outcome;
use wharf_cluster::{ApiError, EventType, Patch, Preconditions, Priority, now};
use wharf_model::whole::Pod;
use wharf_model::whole::container::Container;
use wharf_model::{Kind, Time};

use super::decide::{SHORTEST_GRACE, Step};
use super::memory::{Kept, Stopping, There};
use super::view::{Ended, Health, Life, Trouble, View, roles};
use super::{Pods, clean, env, hooks, spec};
use crate::runtime::{ContainerId, StartError};

/// Between two attempts to make a container that cannot be made: a second, then longer, up to this.
const TROUBLE: Duration = Duration::from_secs(10);
/// Of a container whose program could not be run.
const NOT_STARTED: i32 = 128;

/// What comes after a step.
pub(super) enum Then {
    /// Look again.
    Again,
    /// That is all for now.
    End(Outcome),
}

/// Why a container does not run.
enum NoStart {
    /// It is tried again.
    Trouble(&'static str, String),
    /// It was a life, if a short one.
    Ended(String),
}

fn millis(until: Time, from: Time) -> Duration {
    Duration::from_millis(until.0.saturating_sub(from.0).max(0).unsigned_abs())
}

impl Pods {
    pub(super) async fn act(self: &Arc<Self>, uid: &str, view: &View, step: Step) -> Then {
        match step {
            Step::Done => return Then::End(Outcome::Done),
            Step::Wait(pause) => return Then::End(Outcome::After(pause)),
            Step::WantVolumes => self.want_volumes(uid, &view.pod),
            Step::Start { container, attempt } => self.start(uid, view, &container, attempt).await,
            Step::TellBackOff { container, attempt } => self.tell_back_off(uid, view, &container, attempt),
            Step::Stop { containers, by, note } => {
                for container in containers {
                    self.stop(uid, view, &container, by, note.as_deref());
                }
            }
            Step::Release => self.release(uid),
            Step::Report(status) => return self.report(uid, &view.pod, *status).await,
            Step::Delete => return self.delete(uid, &view.pod).await,
            Step::Forget => return self.forget(uid).await,
        }
        Then::Again
    }

    fn want_volumes(&self, uid: &str, pod: &Arc<Pod>) {
        let volumes = self.agent.volumes.clone();
        volumes.want(Arc::clone(pod));
        let (memories, queue, waiter) = (self.memories.clone(), self.queue.clone(), uid.to_owned());
        let waiting = AbortOnDropHandle::new(tokio::spawn(async move {
            let mounted = loop {
                match volumes.mounted(&waiter).await {
                    Ok(mounted) => break mounted,
                    // The volume manager has told people; it goes on, and so do we.
                    Err(not_yet) => tracing::debug!(pod = waiter, %not_yet, "volumes are not there yet"),
                }
            };
            memories.with(&waiter, |memory| {
                if matches!(memory.volumes, Kept::Coming { .. }) {
                    memory.volumes = Kept::Mounted(Arc::new(mounted));
                }
            });
            queue.reset(&waiter);
            queue.add(waiter, Priority::High);
        }));
        self.memories.with(uid, |memory| memory.volumes = Kept::Coming { _waiting: waiting });
    }

    fn release(&self, uid: &str) {
        let volumes = self.agent.volumes.clone();
        volumes.release(uid);
        let (memories, queue, waiter) = (self.memories.clone(), self.queue.clone(), uid.to_owned());
        let waiting = AbortOnDropHandle::new(tokio::spawn(async move {
            volumes.released(&waiter).await;
            memories.with(&waiter, |memory| {
                if matches!(memory.volumes, Kept::Going { .. }) {
                    memory.volumes = Kept::Released;
                }
            });
            queue.reset(&waiter);
            queue.add(waiter, Priority::High);
        }));
        self.memories.with(uid, |memory| memory.volumes = Kept::Going { _waiting: waiting });
    }

    async fn start(self: &Arc<Self>, uid: &str, view: &View, name: &str, attempt: u32) {
        let Some((_, container)) = roles(&view.pod).find(|(_, container)| container.name == name) else {
            return;
        };
        let pod = &view.pod;
        let events = &self.agent.events;
        let image =
            format!("Image {:?} is not pulled: the container runs the host's programs", container.image);
        events.tell(&**pod, EventType::Normal, "Pulled", image);
        let started = self.try_start(uid, pod, container, attempt).await;
        let at = now();
        let before = match view.containers.iter().find(|seen| seen.name == name).map(|seen| &seen.life) {
            Some(Life::Ended(ended)) => Some(ended.finished.unwrap_or(at)),
            _ => None,
        };
        let lived = !matches!(started, Err(NoStart::Trouble(..)));
        let hooked = container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some());
        let old = self.memories.container(uid, name, |known| {
            if let (Some(ended), true) = (before, lived) {
                known.crash.begin(self.pace, ended, at);
            }
            match &started {
                Ok(id) => {
                    known.lives.insert(attempt, id.clone());
                    known.trouble = None;
                    known.health = Health { beginning: hooked, ..Health::default() };
                }
                Err(NoStart::Ended(message)) => {
                    let ended = Ended {
                        id: String::new(),
                        attempt,
                        code: NOT_STARTED,
                        reason: "StartError".to_owned(),
                        message: message.clone(),
                        started: None,
                        finished: Some(at),
                        earlier: false,
                    };
                    known.ends.insert(attempt, ended);
                    known.trouble = None;
                }
                Err(NoStart::Trouble(reason, message)) => {
                    let count = known.trouble.as_ref().map_or(0, |trouble| trouble.count);
                    let pause = Duration::from_secs(1 << count.min(6)).min(TROUBLE);
                    let (message, again) = (message.clone(), at.plus(pause));
                    known.trouble = Some(Trouble { reason, message, again, count: count.saturating_add(1) });
                }
            }
            // The last one's log is for those who ask what happened; older ones nobody can ask for.
            known.ends.retain(|life, _| life.saturating_add(1) >= attempt);
            let (keep, old) = std::mem::take(&mut known.lives)
                .into_iter()
                .partition(|(life, _)| life.saturating_add(1) >= attempt);
            known.lives = keep;
            old
        });
        match started {
            Ok(_) => {
                events.tell(&**pod, EventType::Normal, "Created", format!("Created container: {name}"));
                events.tell(&**pod, EventType::Normal, "Started", format!("Started container {name}"));
            }
            Err(NoStart::Trouble(_, message) | NoStart::Ended(message)) => {
                events.tell(&**pod, EventType::Warning, "Failed", format!("Error: {message}"));
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
        let config = |why: String| NoStart::Trouble("CreateContainerConfigError", why);
        let mounted = self.memories.with(uid, |memory| match &memory.volumes {
            Kept::Mounted(mounted) => Some(Arc::clone(mounted)),
            _ => None,
        });
        let Some(mounted) = mounted.flatten() else {
            return Err(config("the volumes went away while the container was made".to_owned()));
        };
        let found = env::gather(&self.agent.cluster, pod, container).await;
        let made = found.and_then(|found| env::environment(pod, container, &found, &self.around));
        let variables = made.map_err(|error| config(error.to_string()))?;
        let spec = spec::spec(pod, container, attempt, variables, &mounted);
        let spec = spec.map_err(|error| config(error.to_string()))?;
        let id = spec.id();
        match self.agent.runtime.start(spec).await {
            Ok(id) => Ok(id),
            Err(error) => {
                // What is left of it would be found in place of the next attempt.
                self.discard(&id).await;
                Err(match error {
                    StartError::Config(why) => config(why),
                    StartError::Program(why) => NoStart::Ended(why),
                    error @ StartError::Machine { .. } => {
                        NoStart::Trouble("RunContainerError", error.to_string())
                    }
                })
            }
        }
    }

    /// Takes away what is left of a container that has ended.
    pub(super) async fn discard(&self, id: &ContainerId) {
        if let Err(error) = self.agent.runtime.remove(id).await {
            tracing::warn!(%error, "what is left of a container stays for now");
        }
    }

    fn tell_back_off(&self, uid: &str, view: &View, container: &str, attempt: u32) {
        let meta = &view.pod.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let note = format!(
            "Back-off restarting failed container {container} in pod {}_{namespace}({})",
            meta.name, meta.uid
        );
        self.agent.events.tell(&*view.pod, EventType::Warning, "BackOff", note);
        self.memories.container(uid, container, |known| known.crash.told = Some(attempt));
    }

    /// Ends a container: its hook first, then a signal, then another, all before `by`.
    fn stop(self: &Arc<Self>, uid: &str, view: &View, name: &str, by: Time, note: Option<&str>) {
        let mut containers = roles(&view.pod).zip(&view.containers);
        let Some(((_, container), seen)) = containers.find(|((_, container), _)| container.name == name)
        else {
            return;
        };
        let Life::Running { id, .. } = &seen.life else { return };
        let Some(id) = ContainerId::parse(id) else { return };
        let again = seen.stopping.is_some();
        if !again {
            let note = note.map_or_else(|| format!("Stopping container {name}"), str::to_owned);
            self.agent.events.tell(&*view.pod, EventType::Normal, "Killing", note);
        }
        // A stop that is made shorter has begun with the hook already.
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.clone());
        let hook = hook.filter(|_| !again);
        let (this, pod, container) = (Arc::clone(self), Arc::clone(&view.pod), container.clone());
        let stopping = AbortOnDropHandle::new(tokio::spawn(async move {
            if let Some(hook) = hook
                && let Err(why) =
                    hooks::run(&*this.agent.runtime, &id, &container, &hook, millis(by, now())).await
            {
                tracing::warn!(pod = %pod.metadata.key(), container = %id, why, "the hook before the end failed");
                let note = format!("PreStopHook failed: {why}");
                this.agent.events.tell(&*pod, EventType::Warning, "FailedPreStopHook", note);
            }
            this.agent.runtime.stop(&id, millis(by, now()).max(SHORTEST_GRACE)).await;
        }));
        let stopping = Stopping { killed: by, _stopping: stopping };
        self.memories.container(uid, name, |known| known.stopping = Some(stopping));
    }

    async fn report(&self, uid: &str, pod: &Pod, status: Value) -> Then {
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
        match self.agent.cluster.patch(&Pod::API, &pod.key(), Some("status"), patch).await {
            Ok(_) => {
                self.memories.with(uid, |memory| memory.reported = Some(status));
                Then::Again
            }
            Err(error) => self.refused(uid, pod, &error, "how the pod is cannot be written"),
        }
    }

    async fn delete(&self, uid: &str, pod: &Pod) -> Then {
        let only = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        match self.agent.cluster.delete_now(&Pod::API, &pod.key(), only).await {
            Ok(()) => {
                self.memories.with(uid, |memory| memory.deleted = true);
                Then::Again
            }
            Err(error) => self.refused(uid, pod, &error, "the pod's end cannot be written"),
        }
    }

    /// The server did not take it. If that may be because the pod is gone, it is asked.
    fn refused(&self, uid: &str, pod: &Pod, error: &ApiError, what: &str) -> Then {
        match error {
            ApiError::NotFound(_) | ApiError::Conflict(_) | ApiError::Invalid(_) => {
                self.memories.with(uid, |memory| memory.there = There::Perhaps);
            }
            _ => {}
        }
        tracing::debug!(pod = %pod.key(), %error, "{what}");
        Then::End(Outcome::Retry)
    }

    /// Nothing of it runs and nothing of it is mounted: files go too.
    async fn forget(&self, uid: &str) -> Then {
        let ids = self.memories.with(uid, |memory| {
            memory.containers.values().flat_map(|known| known.lives.values().cloned()).collect::<Vec<_>>()
        });
        for id in ids.unwrap_or_default() {
            if let Err(error) = self.agent.runtime.remove(&id).await {
                tracing::warn!(pod = uid, %error, "what is left of a container cannot be removed");
                return Then::End(Outcome::Retry);
            }
        }
        clean::prune(&self.agent.root.pod(uid));
        self.memories.forget(uid);
        Then::End(Outcome::Done)
    }
}
