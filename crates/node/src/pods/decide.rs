//! Rules of the pod lifecycle: given everything known about a pod, the next step.
//!
//! Pure functions, no I/O; [`decide`] is the entry point.
//!
//! - No container is started before all volumes are mounted, and no volume is released before all containers have
//!   exited.
//! - Init containers run to completion one after the other and sidecars start among them; the main containers start
//!   together after that. Sidecars stop last, in reverse order. After a reboot the sequence starts from the beginning.
//! - The restart policy determines whether a container is restarted. Restarts have a backoff.
//! - A terminal phase is final. A deleted pod is removed from the API when nothing of it is left on this node.

use std::time::Duration;

use serde_json::Value;
use wharf_model::pod::PodPhase;
use wharf_model::pod::RestartPolicy;
use wharf_model::{Monotonic, Time};

use super::status::{self, TerminationCause};
use super::view::{ContainerView, CrashBackoff, Ended, Role, RunState, View, VolumesState};

/// The shortest time between stopping and killing a container.
pub(super) const MIN_GRACE: Duration = Duration::from_secs(2);
/// Default grace period in seconds.
const DEFAULT_GRACE: i64 = 30;

/// The next step for a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Wait for a change.
    Done,
    /// Wait for this long.
    Wait(Duration),
    /// Request the pod's volumes.
    RequestVolumes,
    /// Start a container.
    Start { container: String, attempt: u32 },
    /// Record a BackOff event for a container that waits for its restart.
    RecordBackOff { container: String, attempt: u32 },
    /// Stop containers; they are killed at `by`.
    Stop { containers: Vec<String>, by: Time, note: Option<String> },
    /// Release the pod's volumes.
    Release,
    /// Update the pod's status.
    Report(Box<Value>),
    /// Delete the pod from the API with grace period 0.
    Delete,
    /// Drop all state of the pod.
    DropState,
}

/// Determines the next step for a pod. `now` is the wall time, which the pod's deadlines refer to; backoffs use
/// `monotonic`.
pub(super) fn decide(view: &View, crash_backoff: CrashBackoff, now: Time, monotonic: Monotonic) -> Step {
    match termination_cause(view, now) {
        Some(cause) => terminate(view, cause, now),
        None => advance(view, crash_backoff, now, monotonic),
    }
}

/// Why the pod has to terminate or has terminated; `None` if it continues to run.
fn termination_cause(view: &View, now: Time) -> Option<TerminationCause> {
    let pod = &view.pod;
    if view.gone || pod.metadata.is_deleting() {
        return Some(TerminationCause::Deleted);
    }
    if pod.has_ended() {
        return Some(TerminationCause::Reported);
    }
    if view.evicted.is_some() {
        return Some(TerminationCause::Evicted);
    }
    let started = pod.status.start_time.unwrap_or(view.first_seen);
    let deadline = pod.spec.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    if deadline.is_some_and(|seconds| now >= started.plus(Duration::from_secs(seconds))) {
        return Some(TerminationCause::Deadline);
    }
    matches!(status::phase(view, false), PodPhase::Succeeded | PodPhase::Failed)
        .then_some(TerminationCause::Finished)
}

/// When containers that are stopped now are killed.
fn kill_time(view: &View, cause: TerminationCause, now: Time) -> Time {
    let pod_grace = view.pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    let after_pod_grace = now.plus(Duration::from_secs(pod_grace.max(0).unsigned_abs()));
    let by = match (cause, view.gone) {
        // The pod is gone from the API: no grace period applies.
        (_, true) => now,
        // An eviction for exceeded limits has no grace period.
        (TerminationCause::Evicted, false) => now,
        (TerminationCause::Deleted, false) => view.pod.metadata.deletion_timestamp.unwrap_or(after_pod_grace),
        _ => after_pod_grace,
    };
    by.max(now.plus(MIN_GRACE))
}

fn terminate(view: &View, cause: TerminationCause, now: Time) -> Step {
    let by = kill_time(view, cause, now);
    let running: Vec<&ContainerView> = view.containers.iter().filter(|observed| observed.runs()).collect();
    if !running.is_empty() {
        let (sidecars, others): (Vec<&ContainerView>, Vec<&ContainerView>) =
            running.into_iter().partition(|observed| observed.role == Role::Sidecar);
        // A sidecar may serve the main containers and the sidecars that started after it, so the one that started last
        // is stopped first.
        let to_stop = if others.is_empty() { sidecars.last().into_iter().copied().collect() } else { others };
        // A stop in progress can be shortened, not extended.
        let needs_stop = |observed: &&ContainerView| {
            observed.stopping.is_none_or(|kill_time| {
                kill_time > by && matches!(cause, TerminationCause::Deleted | TerminationCause::Evicted)
            })
        };
        let containers: Vec<String> = to_stop
            .iter()
            .filter(|observed| needs_stop(observed))
            .map(|observed| observed.name.clone())
            .collect();
        return match containers.is_empty() {
            true => report_and_wait(view, Some(cause), None, now),
            false => Step::Stop { containers, by, note: None },
        };
    }
    match view.volumes {
        VolumesState::Unrequested | VolumesState::Requested | VolumesState::Mounted => Step::Release,
        VolumesState::Releasing => report_and_wait(view, Some(cause), None, now),
        VolumesState::Released if view.gone => Step::DropState,
        VolumesState::Released => match report_and_wait(view, Some(cause), None, now) {
            Step::Done if cause == TerminationCause::Deleted && !view.deleted => Step::Delete,
            step => step,
        },
    }
}

fn advance(view: &View, crash_backoff: CrashBackoff, now: Time, monotonic: Monotonic) -> Step {
    match view.volumes {
        VolumesState::Unrequested | VolumesState::Releasing | VolumesState::Released => {
            return Step::RequestVolumes;
        }
        VolumesState::Requested => return report_and_wait(view, None, None, now),
        VolumesState::Mounted => {}
    }
    if let Some(step) = stop_failed(view, now) {
        return step;
    }
    let mut wait: Option<Duration> = None;
    let mut start = |observed: &ContainerView| match next_attempt(observed, crash_backoff, monotonic) {
        NextAttempt::Now(step) => Some(step),
        NextAttempt::After(pause) => {
            wait = Some(wait.map_or(pause, |wait| wait.min(pause)));
            None
        }
    };
    let past_init = view.is_past_init();
    let mut ready_for_main = true;
    for observed in view.init_and_sidecars() {
        let done = match (observed.role, &observed.run_state) {
            (Role::Sidecar, RunState::Running { .. }) => {
                observed.has_started() && !observed.health.post_start_running
            }
            (Role::Sidecar, _) => {
                if let Some(step) = start(observed) {
                    return step;
                }
                false
            }
            (_, _) if past_init => true,
            (_, RunState::Running { .. }) => false,
            (_, RunState::Ended(Ended { code: 0, earlier: false, .. })) => true,
            (_, RunState::None | RunState::Ended(_)) => {
                // The restart policy allows a restart: otherwise the pod would have failed.
                if let Some(step) = start(observed) {
                    return step;
                }
                false
            }
        };
        if !done && !past_init {
            ready_for_main = false;
            break;
        }
    }
    if ready_for_main {
        for observed in view.main() {
            let wanted = match &observed.run_state {
                RunState::None => true,
                RunState::Running { .. } => false,
                RunState::Ended(ended) => is_restarted(view.policy(), ended),
            };
            if wanted && let Some(step) = start(observed) {
                return step;
            }
        }
    }
    report_and_wait(view, None, wait, now)
}

/// Whether a main container is restarted.
pub(super) fn is_restarted(policy: RestartPolicy, ended: &Ended) -> bool {
    match policy {
        RestartPolicy::Always | RestartPolicy::Unknown => true,
        RestartPolicy::OnFailure => ended.code != 0,
        RestartPolicy::Never => false,
    }
}

/// Stops a container whose probe or hook has failed.
fn stop_failed(view: &View, now: Time) -> Option<Step> {
    let can_stop = |observed: &&ContainerView| observed.runs() && observed.stopping.is_none();
    let (observed, failed) = view
        .containers
        .iter()
        .filter(can_stop)
        .find_map(|observed| Some((observed, observed.health.failed.as_ref()?)))?;
    let pod_grace = view.pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    let grace = failed.grace.unwrap_or(Duration::from_secs(pod_grace.max(0).unsigned_abs()));
    Some(Step::Stop {
        containers: vec![observed.name.clone()],
        by: now.plus(grace.max(MIN_GRACE)),
        note: Some(failed.note.clone()),
    })
}

enum NextAttempt {
    /// Perform this step now.
    Now(Step),
    /// Wait for the end of the backoff.
    After(Duration),
}

/// The next attempt to run a container: now, or after its backoff.
fn next_attempt(observed: &ContainerView, crash_backoff: CrashBackoff, now: Monotonic) -> NextAttempt {
    let retry_after = observed.start_failure.as_ref().map(|start_failure| start_failure.retry_at.since(now));
    if let Some(pause) = retry_after.filter(|pause| !pause.is_zero()) {
        return NextAttempt::After(pause);
    }
    if let RunState::Ended(ended) = &observed.run_state
        && let Some(pause) = observed.crash.wait(crash_backoff, observed.ended_at.unwrap_or(now), now)
    {
        return match observed.crash.reported_attempt == Some(ended.attempt) {
            true => NextAttempt::After(pause),
            false => NextAttempt::Now(Step::RecordBackOff {
                container: observed.name.clone(),
                attempt: ended.attempt,
            }),
        };
    }
    NextAttempt::Now(Step::Start { container: observed.name.clone(), attempt: observed.next_attempt() })
}

/// Updates the pod's status if it changed; otherwise waits. For when there is nothing else to do.
fn report_and_wait(view: &View, cause: Option<TerminationCause>, wait: Option<Duration>, now: Time) -> Step {
    if !view.gone {
        let status = status::status(view, cause, now);
        if view.reported.as_ref() != Some(&status) {
            return Step::Report(Box::new(status));
        }
    }
    let deadline = view.pod.spec.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let deadline = deadline.filter(|_| cause.is_none()).map(|seconds| {
        let started = view.pod.status.start_time.unwrap_or(view.first_seen);
        let until = started.plus(Duration::from_secs(seconds)).0.saturating_sub(now.0);
        Duration::from_millis(until.max(1).unsigned_abs())
    });
    match wait.into_iter().chain(deadline).min() {
        Some(wait) => Step::Wait(wait),
        None => Step::Done,
    }
}

#[cfg(test)]
pub(in crate::pods) mod tests;
