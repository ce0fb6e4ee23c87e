//! What is known of a pod on this node when the next step is decided.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use wharf_model::Time;
use wharf_model::whole::Pod;
use wharf_model::whole::container::Container;
use wharf_model::whole::pod::RestartPolicy;

/// A pod, and all that its worker may look at.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// As the server last had it.
    pub(super) pod: Arc<Pod>,
    /// The server has no such pod any more.
    pub(super) gone: bool,
    /// The node's address, which its pods share.
    pub(super) address: String,
    /// Since when we know of it, if the server does not know.
    pub(super) seen: Time,
    /// How far its volumes are.
    pub(super) volumes: VolumesAre,
    /// Its containers: those that run first, then the others, each in the order of the spec.
    pub(super) containers: Vec<Seen>,
    /// What we last wrote of it.
    pub(super) reported: Option<Value>,
    /// We have told the server that nothing of it is here any more.
    pub(super) deleted: bool,
}

impl View {
    pub(super) fn policy(&self) -> RestartPolicy {
        self.pod.spec.restart_policy.unwrap_or(RestartPolicy::Always)
    }

    /// Containers that run before the others.
    pub(super) fn first(&self) -> impl DoubleEndedIterator<Item = &Seen> {
        self.containers.iter().filter(|seen| seen.role != Role::Main)
    }

    /// The others.
    pub(super) fn main(&self) -> impl Iterator<Item = &Seen> {
        self.containers.iter().filter(|seen| seen.role == Role::Main)
    }

    /// Once one of the others was started, none of the first ones is begun again, until the machine is.
    pub(super) fn is_past_init(&self) -> bool {
        self.main().any(|seen| !matches!(seen.life, Life::None | Life::Ended(Ended { earlier: true, .. })))
    }
}

/// How far the volumes of a pod are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumesAre {
    /// Nobody was asked for them.
    Unasked,
    /// They are on their way.
    Coming,
    /// All are there.
    Mounted,
    /// They are on their way out.
    Going,
    /// None is there any more.
    Released,
}

/// Which part a container plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Runs to its end before the next begins.
    Init,
    /// Begins before the others and goes on beside them.
    Sidecar,
    /// What the pod is for.
    Main,
}

/// All containers of a pod, those that run first before the others.
pub(super) fn roles(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    let first = pod.spec.init_containers.iter().map(|container| match container.restart_policy.as_str() {
        "Always" => (Role::Sidecar, container),
        _ => (Role::Init, container),
    });
    first.chain(pod.spec.containers.iter().map(|container| (Role::Main, container)))
}

/// A container, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) role: Role,
    /// Its newest life.
    pub(super) life: Life,
    /// How the one before ended.
    pub(super) before: Option<Ended>,
    /// Pauses between its lives.
    pub(super) crash: Crash,
    /// Why it could not be started.
    pub(super) trouble: Option<Trouble>,
    /// It is being stopped, and killed at this time.
    pub(super) stopping: Option<Time>,
    /// It has a probe for its start.
    pub(super) probed_start: bool,
    /// It has a probe for its use.
    pub(super) probed_ready: bool,
    /// What its probes and hooks say.
    pub(super) health: Health,
}

impl Seen {
    pub(super) fn runs(&self) -> bool {
        matches!(self.life, Life::Running { .. })
    }

    /// Runs, and its start is over.
    pub(super) fn has_started(&self) -> bool {
        self.runs() && (!self.probed_start || self.health.started)
    }

    /// Can be used.
    pub(super) fn is_ready(&self) -> bool {
        match self.role {
            Role::Init => matches!(&self.life, Life::Ended(ended) if ended.code == 0),
            Role::Sidecar | Role::Main => self.has_started() && (!self.probed_ready || self.health.ready),
        }
    }

    /// Which life would be the next.
    pub(super) fn next_attempt(&self) -> u32 {
        match &self.life {
            Life::None => 0,
            Life::Running { attempt, .. } | Life::Ended(Ended { attempt, .. }) => attempt.saturating_add(1),
        }
    }
}

/// What a container is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Life {
    /// It was never started.
    None,
    /// It runs.
    Running { id: String, attempt: u32, started: Time },
    /// It has ended.
    Ended(Ended),
}

/// How a life ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ended {
    /// Empty if there never was a process.
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) code: i32,
    /// One word: `Completed`, `Error`, `StartError`, `ContainerStatusUnknown`.
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) started: Option<Time>,
    pub(super) finished: Option<Time>,
    /// It was before the machine was last started, or nothing is left of it that would say: what it did in memory is gone.
    pub(super) earlier: bool,
}

/// What keeps a container from being started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// One word: `CreateContainerConfigError`, `RunContainerError`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// When it is tried again.
    pub(super) again: Time,
    /// How often in a row.
    pub(super) count: u32,
}

/// What probes and hooks say of the life that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Health {
    /// Its startup probe has succeeded.
    pub(super) started: bool,
    /// Its readiness probe succeeds.
    pub(super) ready: bool,
    /// It is to be ended.
    pub(super) failed: Option<Failed>,
    /// What is done after its start is not over.
    pub(super) beginning: bool,
}

/// Why a container that runs is to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// For the event: `Container c failed liveness probe, will be restarted`.
    pub(super) note: String,
    /// How long it has; none is the pod's.
    pub(super) grace: Option<Duration>,
}

/// The longest pause between two lives, and what that means for the shortest: kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CrashPace {
    pub(super) start: Duration,
    pub(super) max: Duration,
}

/// The pause between two lives of a container: none before the second, then ever longer, and short again after a life
/// of some length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Crash {
    pause: Duration,
    since: Option<Time>,
    /// The life whose pause was told of.
    pub(super) told: Option<u32>,
}

impl Crash {
    fn is_over(&self, pace: CrashPace, ended: Time) -> bool {
        self.since.is_none_or(|since| ended > since.plus(pace.max * 2))
    }

    /// How long the next life has to wait, after one that ended then.
    pub(super) fn wait(&self, pace: CrashPace, ended: Time, now: Time) -> Option<Duration> {
        if self.is_over(pace, ended) {
            return None;
        }
        let until = ended.plus(self.pause);
        // A clock that went back makes nobody wait for longer than the pause.
        let left = u64::try_from(until.0.saturating_sub(now.0)).ok().filter(|left| *left > 0)?;
        Some(Duration::from_millis(left).min(self.pause))
    }

    /// The pause that holds.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    /// The next life begins.
    pub(super) fn begin(&mut self, pace: CrashPace, ended: Time, now: Time) {
        self.pause = match self.is_over(pace, ended) {
            true => pace.start,
            false => (self.pause * 2).min(pace.max),
        };
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: CrashPace = CrashPace { start: Duration::from_secs(10), max: Duration::from_secs(300) };

    /// kubelet: at once, then 10 s, doubled up to 5 min; after 10 min of life from the beginning.
    #[test]
    fn pauses_between_lives() {
        let mut crash = Crash::default();
        let mut now = Time(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            // Each life is over after a second.
            now = now.plus(Duration::from_secs(1));
            let ended = now;
            let pause = crash.wait(PACE, ended, now).unwrap_or_default();
            pauses.push(pause.as_secs());
            now = now.plus(pause);
            assert_eq!(crash.wait(PACE, ended, now), None, "then it is over");
            crash.begin(PACE, ended, now);
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
        let ended = now.plus(Duration::from_secs(601));
        assert_eq!(crash.wait(PACE, ended, ended), None);
        crash.begin(PACE, ended, ended);
        assert_eq!(crash.pause(), Duration::from_secs(10));
        // A clock that went back.
        let earlier = Time(ended.0 - 3_600_000);
        assert_eq!(crash.wait(PACE, ended, earlier), Some(Duration::from_secs(10)));
    }
}
