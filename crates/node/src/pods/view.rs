//! Inputs of the rules for one pod.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use wharf_model::container::Container;
use wharf_model::pod::RestartPolicy;
use wharf_model::{Monotonic, Pod, Time};

/// Everything the rules need to know about a pod.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// The pod as last received from the API server.
    pub(super) pod: Arc<Pod>,
    /// Confirmed gone from the API server.
    pub(super) gone: bool,
    /// The node's address, which its pods share.
    pub(super) address: String,
    /// When we first saw it; used as startTime if its status has none.
    pub(super) first_seen: Time,
    /// State of its volumes.
    pub(super) volumes: VolumesState,
    /// Its containers: init containers and sidecars, then main containers, each in spec order.
    pub(super) containers: Vec<ContainerView>,
    /// The last reported status.
    pub(super) reported: Option<Value>,
    /// We have deleted it from the API server.
    pub(super) deleted: bool,
    /// Why it is evicted; the message of its status.
    pub(super) evicted: Option<String>,
}

impl View {
    pub(super) fn policy(&self) -> RestartPolicy {
        self.pod.spec.restart_policy.unwrap_or(RestartPolicy::Always)
    }

    /// Init containers and sidecars.
    pub(super) fn init_and_sidecars(&self) -> impl DoubleEndedIterator<Item = &ContainerView> {
        self.containers.iter().filter(|observed| observed.role != Role::Main)
    }

    /// Main containers.
    pub(super) fn main(&self) -> impl Iterator<Item = &ContainerView> {
        self.containers.iter().filter(|observed| observed.role == Role::Main)
    }

    /// Once a main container was started, no init container runs again until the next reboot.
    pub(super) fn is_past_init(&self) -> bool {
        self.main().any(|observed| {
            !matches!(observed.run_state, RunState::None | RunState::Ended(Ended { earlier: true, .. }))
        })
    }
}

/// State of a pod's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumesState {
    /// Not requested.
    Unrequested,
    /// Requested.
    Requested,
    /// All mounted.
    Mounted,
    /// Released, still being unmounted.
    Releasing,
    /// All unmounted.
    Released,
}

/// The role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Runs to completion before the next starts.
    Init,
    /// Starts before main containers and runs alongside them.
    Sidecar,
    /// A regular container.
    Main,
}

/// All containers of a pod, init containers and sidecars first.
pub(super) fn roles(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    let first = pod.spec.init_containers.iter().map(|container| match container.restart_policy.as_str() {
        "Always" => (Role::Sidecar, container),
        _ => (Role::Init, container),
    });
    first.chain(pod.spec.containers.iter().map(|container| (Role::Main, container)))
}

/// Everything known about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerView {
    pub(super) name: String,
    pub(super) role: Role,
    /// Its newest attempt.
    pub(super) run_state: RunState,
    /// When this process noticed that its newest attempt has exited.
    pub(super) ended_at: Option<Monotonic>,
    /// How the previous attempt exited.
    pub(super) before: Option<Ended>,
    /// Its restart backoff.
    pub(super) crash: Crash,
    /// Why it could not be started.
    pub(super) start_failure: Option<StartFailure>,
    /// It is being stopped, and killed at this time.
    pub(super) stopping: Option<Time>,
    /// It has a startup probe.
    pub(super) probed_start: bool,
    /// It has a readiness probe.
    pub(super) probed_ready: bool,
    /// Results of its probes and hooks.
    pub(super) health: Health,
}

impl ContainerView {
    pub(super) fn runs(&self) -> bool {
        matches!(self.run_state, RunState::Running { .. })
    }

    /// Running, and past its startup probe.
    pub(super) fn has_started(&self) -> bool {
        self.runs() && (!self.probed_start || self.health.started)
    }

    /// Ready.
    pub(super) fn is_ready(&self) -> bool {
        match self.role {
            Role::Init => matches!(&self.run_state, RunState::Ended(ended) if ended.code == 0),
            Role::Sidecar | Role::Main => self.has_started() && (!self.probed_ready || self.health.ready),
        }
    }

    /// The next attempt's number.
    pub(super) fn next_attempt(&self) -> u32 {
        match &self.run_state {
            RunState::None => 0,
            RunState::Running { attempt, .. } | RunState::Ended(Ended { attempt, .. }) => {
                attempt.saturating_add(1)
            }
        }
    }
}

/// The state of a container's attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunState {
    /// Never started.
    None,
    /// Running.
    Running { id: String, attempt: u32, started: Time },
    /// Exited.
    Ended(Ended),
}

/// How an attempt exited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ended {
    /// Empty if there never was a process.
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) code: i32,
    /// `Completed`, `Error`, `StartError` or `ContainerStatusUnknown`.
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) started: Option<Time>,
    pub(super) finished: Option<Time>,
    /// It exited before the last reboot, or no record of it is left: what it did in memory is lost.
    pub(super) earlier: bool,
}

/// Why a container cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartFailure {
    /// `CreateContainerConfigError` or `RunContainerError`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Time of the next attempt.
    pub(super) retry_at: Monotonic,
    /// Number of consecutive failures.
    pub(super) count: u32,
}

/// Results of the probes and hooks of the running attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Health {
    /// Its startup probe has succeeded.
    pub(super) started: bool,
    /// Its readiness probe succeeds.
    pub(super) ready: bool,
    /// It has to be stopped.
    pub(super) failed: Option<Failed>,
    /// Its postStart hook is still running.
    pub(super) post_start_running: bool,
}

/// Why a running container has to be stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// For the event: `Container c failed liveness probe, will be restarted`.
    pub(super) note: String,
    /// Its grace period; `None` is the pod's.
    pub(super) grace: Option<Duration>,
}

/// Initial and maximum restart delay: kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CrashBackoff {
    pub(super) start: Duration,
    pub(super) max: Duration,
}

/// Restart backoff of a container: none before the first restart, then doubling, and reset after a long run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Crash {
    pause: Duration,
    since: Option<Monotonic>,
    /// The attempt for which a BackOff event was recorded.
    pub(super) reported_attempt: Option<u32>,
}

impl Crash {
    fn is_over(&self, crash_backoff: CrashBackoff, ended: Monotonic) -> bool {
        self.since.is_none_or(|since| ended > since.plus(crash_backoff.max * 2))
    }

    /// Remaining delay before the next attempt, after one that exited at `ended`.
    pub(super) fn wait(
        &self,
        crash_backoff: CrashBackoff,
        ended: Monotonic,
        now: Monotonic,
    ) -> Option<Duration> {
        if self.is_over(crash_backoff, ended) {
            return None;
        }
        self.pause.checked_sub(now.since(ended)).filter(|left| !left.is_zero())
    }

    /// The current delay.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    /// Records the start of the next attempt.
    pub(super) fn begin(&mut self, crash_backoff: CrashBackoff, ended: Monotonic, now: Monotonic) {
        self.pause = match self.is_over(crash_backoff, ended) {
            true => crash_backoff.start,
            false => (self.pause * 2).min(crash_backoff.max),
        };
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: CrashBackoff = CrashBackoff { start: Duration::from_secs(10), max: Duration::from_secs(300) };

    /// kubelet: immediately, then 10 s, doubled up to 5 min; reset after a run of 10 min.
    #[test]
    fn restart_delay_doubles_and_resets() {
        let mut crash = Crash::default();
        let mut now = Monotonic(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            // Each attempt exits after a second.
            now = now.plus(Duration::from_secs(1));
            let ended = now;
            let pause = crash.wait(PACE, ended, now).unwrap_or_default();
            pauses.push(pause.as_secs());
            now = now.plus(pause);
            assert_eq!(crash.wait(PACE, ended, now), None, "expired");
            crash.begin(PACE, ended, now);
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
        let ended = now.plus(Duration::from_secs(601));
        assert_eq!(crash.wait(PACE, ended, ended), None);
        crash.begin(PACE, ended, ended);
        assert_eq!(crash.pause(), Duration::from_secs(10));
    }
}
