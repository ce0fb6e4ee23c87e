//! A pod's rules: the one next thing to do for it.
//!
//! - No container is started before all volumes are there, and no volume goes before all containers have ended.
//! - Init containers run to their end one after the other, sidecars begin among them, all others begin together when
//!   these have done their part. Sidecars end last, the last one first.
//!   When the machine was started anew, so is all of this.
//! - What was started once is started again as the restart policy says, after a pause that grows.
//! - A pod that is over stays over. One that is deleted is told to be gone when nothing of it is left here.

use std::time::Duration;

use serde_json::Value;
use wharf_model::Time;
use wharf_model::pod::PodPhase;
use wharf_model::whole::pod::RestartPolicy;

use super::status::{self, Over};
use super::view::{CrashPace, Ended, Life, Role, Seen, View, VolumesAre};

/// A container gets at least so long to end by itself.
pub(super) const SHORTEST_GRACE: Duration = Duration::from_secs(2);
/// How long a container has to end if nobody says.
const USUAL_GRACE: i64 = 30;

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing until something changes.
    Done,
    /// Nothing for this long.
    Wait(Duration),
    /// Its volumes are wanted.
    WantVolumes,
    /// A container begins a life.
    Start { container: String, attempt: u32 },
    /// A container waits for its next life: people shall know.
    TellBackOff { container: String, attempt: u32 },
    /// Containers are to end, and are killed then.
    Stop { containers: Vec<String>, by: Time, note: Option<String> },
    /// Its volumes may go.
    Release,
    /// The server shall know how it is.
    Report(Box<Value>),
    /// The server shall know that it is over here.
    Delete,
    /// Nothing is known of it any more.
    Forget,
}

/// What to do next for a pod.
pub(super) fn decide(view: &View, pace: CrashPace, now: Time) -> Step {
    match over(view, now) {
        Some(over) => end(view, over, now),
        None => live(view, pace, now),
    }
}

/// Whether the pod is to end, or has.
fn over(view: &View, now: Time) -> Option<Over> {
    let pod = &view.pod;
    if view.gone || pod.metadata.is_deleting() {
        return Some(Over::Deleted);
    }
    if pod.has_ended() {
        return Some(Over::Told);
    }
    let started = pod.status.start_time.unwrap_or(view.seen);
    let deadline = pod.spec.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    if deadline.is_some_and(|seconds| now >= started.plus(Duration::from_secs(seconds))) {
        return Some(Over::Deadline);
    }
    matches!(status::phase(view, false), PodPhase::Succeeded | PodPhase::Failed).then_some(Over::Finished)
}

/// When containers that end are killed.
fn killed_at(view: &View, over: Over, now: Time) -> Time {
    let own = view.pod.spec.termination_grace_period_seconds.unwrap_or(USUAL_GRACE);
    let own = now.plus(Duration::from_secs(own.max(0).unsigned_abs()));
    let by = match (over, view.gone) {
        // Nobody waits for it any more.
        (_, true) => now,
        (Over::Deleted, false) => view.pod.metadata.deletion_timestamp.unwrap_or(own),
        _ => own,
    };
    by.max(now.plus(SHORTEST_GRACE))
}

fn end(view: &View, over: Over, now: Time) -> Step {
    let by = killed_at(view, over, now);
    let running: Vec<&Seen> = view.containers.iter().filter(|seen| seen.runs()).collect();
    if !running.is_empty() {
        let (beside, others): (Vec<&Seen>, Vec<&Seen>) =
            running.into_iter().partition(|seen| seen.role == Role::Sidecar);
        // Sidecars serve the others to the end, and those that began before them.
        let now_ending =
            if others.is_empty() { beside.last().into_iter().copied().collect() } else { others };
        // A stop that is under way is not made longer, only shorter.
        let sooner = |seen: &&Seen| seen.stopping.is_none_or(|killed| killed > by && over == Over::Deleted);
        let containers: Vec<String> =
            now_ending.iter().filter(|seen| sooner(seen)).map(|seen| seen.name.clone()).collect();
        return match containers.is_empty() {
            true => rest(view, Some(over), None, now),
            false => Step::Stop { containers, by, note: None },
        };
    }
    match view.volumes {
        VolumesAre::Unasked | VolumesAre::Coming | VolumesAre::Mounted => Step::Release,
        VolumesAre::Going => rest(view, Some(over), None, now),
        VolumesAre::Released if view.gone => Step::Forget,
        VolumesAre::Released => match rest(view, Some(over), None, now) {
            Step::Done if over == Over::Deleted && !view.deleted => Step::Delete,
            step => step,
        },
    }
}

fn live(view: &View, pace: CrashPace, now: Time) -> Step {
    match view.volumes {
        VolumesAre::Unasked | VolumesAre::Going | VolumesAre::Released => return Step::WantVolumes,
        VolumesAre::Coming => return rest(view, None, None, now),
        VolumesAre::Mounted => {}
    }
    if let Some(step) = end_the_failed(view, now) {
        return step;
    }
    let mut wait: Option<Duration> = None;
    let mut begin = |seen: &Seen| match next_life(seen, pace, now) {
        Begin::Now(step) => Some(step),
        Begin::After(pause) => {
            wait = Some(wait.map_or(pause, |wait| wait.min(pause)));
            None
        }
    };
    let past_init = view.is_past_init();
    let mut ready_for_main = true;
    for seen in view.first() {
        let done = match (seen.role, &seen.life) {
            (Role::Sidecar, Life::Running { .. }) => seen.has_started() && !seen.health.beginning,
            (Role::Sidecar, _) => {
                if let Some(step) = begin(seen) {
                    return step;
                }
                false
            }
            (_, _) if past_init => true,
            (_, Life::Running { .. }) => false,
            (_, Life::Ended(Ended { code: 0, earlier: false, .. })) => true,
            (_, Life::None | Life::Ended(_)) => {
                // That it may be started again, or the pod would be over.
                if let Some(step) = begin(seen) {
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
        for seen in view.main() {
            let wanted = match &seen.life {
                Life::None => true,
                Life::Running { .. } => false,
                Life::Ended(ended) => lives_again(view.policy(), ended),
            };
            if wanted && let Some(step) = begin(seen) {
                return step;
            }
        }
    }
    rest(view, None, wait, now)
}

/// Whether a container is started again.
pub(super) fn lives_again(policy: RestartPolicy, ended: &Ended) -> bool {
    match policy {
        RestartPolicy::Always | RestartPolicy::Unknown => true,
        RestartPolicy::OnFailure => ended.code != 0,
        RestartPolicy::Never => false,
    }
}

/// Those whose probe or hook has failed.
fn end_the_failed(view: &View, now: Time) -> Option<Step> {
    let failed = |seen: &&Seen| seen.runs() && seen.stopping.is_none();
    let (seen, failed) =
        view.containers.iter().filter(failed).find_map(|seen| Some((seen, seen.health.failed.as_ref()?)))?;
    let own = view.pod.spec.termination_grace_period_seconds.unwrap_or(USUAL_GRACE);
    let grace = failed.grace.unwrap_or(Duration::from_secs(own.max(0).unsigned_abs()));
    Some(Step::Stop {
        containers: vec![seen.name.clone()],
        by: now.plus(grace.max(SHORTEST_GRACE)),
        note: Some(failed.note.clone()),
    })
}

enum Begin {
    Now(Step),
    After(Duration),
}

/// A container that is to begin a life, now or after its pause.
fn next_life(seen: &Seen, pace: CrashPace, now: Time) -> Begin {
    let left = |until: Time| {
        let left = u64::try_from(until.0.saturating_sub(now.0)).ok().filter(|left| *left > 0);
        left.map(Duration::from_millis)
    };
    if let Some(pause) = seen.trouble.as_ref().and_then(|trouble| left(trouble.again)) {
        return Begin::After(pause);
    }
    if let Life::Ended(ended) = &seen.life
        && let Some(pause) = seen.crash.wait(pace, ended.finished.unwrap_or(now), now)
    {
        return match seen.crash.told == Some(ended.attempt) {
            true => Begin::After(pause),
            false => Begin::Now(Step::TellBackOff { container: seen.name.clone(), attempt: ended.attempt }),
        };
    }
    Begin::Now(Step::Start { container: seen.name.clone(), attempt: seen.next_attempt() })
}

/// Nothing is to be done at once: the server shall know how it is, and then we wait.
fn rest(view: &View, over: Option<Over>, wait: Option<Duration>, now: Time) -> Step {
    if !view.gone {
        let status = status::status(view, over, now);
        if view.reported.as_ref() != Some(&status) {
            return Step::Report(Box::new(status));
        }
    }
    let deadline = view.pod.spec.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let deadline = deadline.filter(|_| over.is_none()).map(|seconds| {
        let started = view.pod.status.start_time.unwrap_or(view.seen);
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
