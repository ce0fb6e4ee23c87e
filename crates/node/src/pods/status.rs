//! Computes the pod status as kubelet does: phase, conditions, and container statuses.

use serde_json::{Map, Value, json};
use wharf_model::Time;
use wharf_model::pod::PodPhase;
use wharf_model::pod::RestartPolicy;

use super::decide::is_restarted;
use super::view::{ContainerView, Ended, Role, RunState, View, VolumesState, roles};

/// Why a pod terminates or has terminated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminationCause {
    /// It was deleted.
    Deleted,
    /// The API server has a terminal phase.
    Reported,
    /// activeDeadlineSeconds is exceeded.
    Deadline,
    /// It exceeds a limit.
    Evicted,
    /// Its containers have exited for good.
    Finished,
}

/// The phase computed from the containers. `ends`: none is restarted, whatever the policy.
pub(super) fn phase(view: &View, ends: bool) -> PodPhase {
    let policy = view.policy();
    let failed = |observed: &ContainerView| {
        observed.role == Role::Init
            && matches!(&observed.run_state, RunState::Ended(ended) if ended.code != 0)
    };
    // Before main containers were started, a failed init container fails the pod.
    if !view.is_past_init() && policy == RestartPolicy::Never && view.init_and_sidecars().any(failed) {
        return PodPhase::Failed;
    }
    let (mut running, mut waiting, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for observed in view.main() {
        match &observed.run_state {
            RunState::None => waiting += 1,
            RunState::Running { .. } => running += 1,
            RunState::Ended(ended) => {
                stopped += 1;
                succeeded += usize::from(ended.code == 0);
            }
        }
    }
    match () {
        () if waiting > 0 => PodPhase::Pending,
        () if running > 0 => PodPhase::Running,
        () if stopped == 0 => PodPhase::Pending,
        () if ends && stopped == succeeded => PodPhase::Succeeded,
        () if ends => PodPhase::Failed,
        () if policy == RestartPolicy::Always => PodPhase::Running,
        () if stopped == succeeded => PodPhase::Succeeded,
        () if policy == RestartPolicy::Never => PodPhase::Failed,
        () => PodPhase::Running,
    }
}

/// The status to write.
pub(super) fn status(view: &View, cause: Option<TerminationCause>, now: Time) -> Value {
    let runs = view.containers.iter().any(ContainerView::runs);
    let (phase, reason, message) = phase_and_reason(view, cause, runs);
    let sandboxed = matches!(view.volumes, VolumesState::Mounted)
        || view.containers.iter().any(|observed| observed.runs())
        || (cause.is_none()
            && view.containers.iter().any(|observed| !matches!(observed.run_state, RunState::None)));
    let mut status = json!({
        "phase": phase.as_str(),
        "reason": reason,
        "message": message,
        "startTime": view.pod.status.start_time.unwrap_or(view.first_seen).to_string(),
        "conditions": conditions(view, phase, sandboxed && cause.is_none_or(|_| runs), now),
        "containerStatuses": statuses(view, cause, false),
    });
    if !view.pod.spec.init_containers.is_empty() {
        status["initContainerStatuses"] = statuses(view, cause, true);
    }
    if !view.address.is_empty() {
        status["hostIP"] = view.address.as_str().into();
        status["hostIPs"] = json!([{"ip": view.address}]);
        // Pods have the node's network, from their first container on.
        if view.containers.iter().any(|observed| !matches!(observed.run_state, RunState::None)) {
            status["podIP"] = view.address.as_str().into();
            status["podIPs"] = json!([{"ip": view.address}]);
        }
    }
    status
}

/// The phase with reason and message. Not terminal while a container runs.
fn phase_and_reason(view: &View, cause: Option<TerminationCause>, runs: bool) -> (PodPhase, Value, Value) {
    let pod = &view.pod;
    let text = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
    let before = (pod.phase, text(&pod.status.reason), text(&pod.status.message));
    let Some(cause) = cause else { return (phase(view, false), Value::Null, Value::Null) };
    if cause == TerminationCause::Reported || pod.has_ended() {
        return before;
    }
    if runs {
        return match pod.phase {
            PodPhase::Unknown => (PodPhase::Pending, Value::Null, Value::Null),
            phase => (phase, before.1, before.2),
        };
    }
    match cause {
        TerminationCause::Deadline => (
            PodPhase::Failed,
            "DeadlineExceeded".into(),
            "Pod was active on the node longer than the specified deadline".into(),
        ),
        TerminationCause::Evicted => {
            (PodPhase::Failed, "Evicted".into(), view.evicted.as_deref().map_or(Value::Null, Value::from))
        }
        TerminationCause::Finished => (phase(view, false), Value::Null, Value::Null),
        TerminationCause::Deleted | TerminationCause::Reported => match phase(view, true) {
            PodPhase::Succeeded => (PodPhase::Succeeded, Value::Null, Value::Null),
            _ => (PodPhase::Failed, Value::Null, Value::Null),
        },
    }
}

fn conditions(view: &View, phase: PodPhase, sandboxed: bool, now: Time) -> Value {
    let mut conditions = Vec::new();
    let mut add = |kind: &str, holds: bool, reason: &str, message: &str| {
        let status = if holds { "True" } else { "False" };
        let before = view.pod.status.conditions.iter().find(|condition| condition.kind == kind);
        let since = before.filter(|before| before.status == status);
        let since = since.and_then(|before| before.last_transition_time).unwrap_or(now);
        let text = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        conditions.push(json!({
            "type": kind, "status": status, "reason": text(reason), "message": text(message),
            "lastProbeTime": null, "lastTransitionTime": since.to_string(),
        }));
    };
    add("PodReadyToStartContainers", sandboxed, "", "");
    let (holds, reason, message) = initialized(view, phase);
    add("Initialized", holds, reason, &message);
    let (holds, reason, message) = ready(view, phase);
    add("Ready", holds, reason, &message);
    add("ContainersReady", holds, reason, &message);
    add("PodScheduled", true, "", "");
    Value::Array(conditions)
}

fn names<'a>(observed: impl Iterator<Item = &'a ContainerView>) -> String {
    observed.map(|observed| observed.name.as_str()).collect::<Vec<_>>().join(" ")
}

fn initialized(view: &View, phase: PodPhase) -> (bool, &'static str, String) {
    let finished = |observed: &&ContainerView| match observed.role {
        Role::Sidecar => observed.has_started(),
        _ => observed.is_ready(),
    };
    if phase == PodPhase::Succeeded {
        let reason = if view.init_and_sidecars().next().is_some() { "PodCompleted" } else { "" };
        return (true, reason, String::new());
    }
    if view.is_past_init() || view.init_and_sidecars().all(|observed| finished(&observed)) {
        return (true, "", String::new());
    }
    let incomplete = names(view.init_and_sidecars().filter(|observed| !finished(observed)));
    (false, "ContainersNotInitialized", format!("containers with incomplete status: [{incomplete}]"))
}

fn ready(view: &View, phase: PodPhase) -> (bool, &'static str, String) {
    match phase {
        PodPhase::Succeeded => return (false, "PodCompleted", String::new()),
        PodPhase::Failed => return (false, "PodFailed", String::new()),
        _ => {}
    }
    let counts = |observed: &&ContainerView| observed.role != Role::Init && !observed.is_ready();
    let unready = names(view.containers.iter().filter(counts));
    match unready.is_empty() {
        true => (true, "", String::new()),
        false => (false, "ContainersNotReady", format!("containers with unready status: [{unready}]")),
    }
}

fn statuses(view: &View, cause: Option<TerminationCause>, first: bool) -> Value {
    let containers = roles(&view.pod).zip(&view.containers);
    let of = containers.filter(|((role, _), _)| (*role != Role::Main) == first);
    of.map(|((_, spec), observed)| {
        let (state, last) = state(view, cause, observed);
        let id = match &observed.run_state {
            RunState::None => "",
            RunState::Running { id, .. } | RunState::Ended(Ended { id, .. }) => id,
        };
        let attempt = match &observed.run_state {
            RunState::None => 0,
            RunState::Running { attempt, .. } | RunState::Ended(Ended { attempt, .. }) => *attempt,
        };
        let mut status = json!({
            "name": observed.name,
            "state": state,
            "lastState": last,
            "ready": observed.is_ready(),
            "started": observed.has_started(),
            "restartCount": attempt,
            "image": spec.image,
            "imageID": "",
        });
        if !id.is_empty() {
            status["containerID"] = with_scheme(id);
        }
        status
    })
    .collect()
}

/// A container ID with its scheme.
fn with_scheme(id: &str) -> Value {
    match id {
        "" => Value::Null,
        id => format!("{}{id}", super::SCHEME).into(),
    }
}

/// The container's state and lastState.
fn state(view: &View, cause: Option<TerminationCause>, observed: &ContainerView) -> (Value, Value) {
    let before =
        observed.before.as_ref().map_or_else(|| json!({}), |ended| json!({"terminated": terminated(ended)}));
    let waiting = |reason: &str, message: &str| {
        let mut waiting = Map::from_iter([("reason".to_owned(), reason.into())]);
        if !message.is_empty() {
            waiting.insert("message".to_owned(), message.into());
        }
        json!({"waiting": waiting})
    };
    match &observed.run_state {
        RunState::Running { started, .. } => (json!({"running": {"startedAt": started.to_string()}}), before),
        RunState::Ended(ended) => {
            let last = json!({"terminated": terminated(ended)});
            let will_restart = cause.is_none()
                && match observed.role {
                    Role::Sidecar => true,
                    Role::Init => {
                        ended.code != 0 && view.policy() != RestartPolicy::Never && !view.is_past_init()
                    }
                    Role::Main => is_restarted(view.policy(), ended),
                };
            match (&observed.start_failure, will_restart) {
                (Some(start_failure), true) => (waiting(start_failure.reason, &start_failure.message), last),
                (None, true) if observed.crash.reported_attempt == Some(ended.attempt) => {
                    (waiting("CrashLoopBackOff", &back_off(view, observed)), last)
                }
                _ => (last, before),
            }
        }
        RunState::None => {
            let default = if view.pod.spec.init_containers.is_empty() {
                "ContainerCreating"
            } else {
                "PodInitializing"
            };
            let state = match (&observed.start_failure, cause) {
                (Some(start_failure), None) => waiting(start_failure.reason, &start_failure.message),
                _ => waiting(default, ""),
            };
            (state, before)
        }
    }
}

fn back_off(view: &View, observed: &ContainerView) -> String {
    let meta = &view.pod.metadata;
    format!(
        "back-off {} restarting failed container={} pod={}_{}({})",
        go_duration(observed.crash.pause()),
        observed.name,
        meta.name,
        meta.namespace.as_deref().unwrap_or_default(),
        meta.uid
    )
}

/// As Go prints a duration: `10s`, `1m20s`, `5m0s`.
fn go_duration(pause: std::time::Duration) -> String {
    match (pause.as_secs() / 60, pause.as_secs() % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

fn terminated(ended: &Ended) -> Value {
    let Ended { id, code, reason, message, started, finished, .. } = ended;
    let mut terminated = json!({"exitCode": code, "reason": reason});
    for (field, time) in [("startedAt", started), ("finishedAt", finished)] {
        if let Some(time) = time {
            terminated[field] = time.to_string().into();
        }
    }
    if !message.is_empty() {
        terminated["message"] = message.as_str().into();
    }
    if !id.is_empty() {
        terminated["containerID"] = with_scheme(id);
    }
    terminated
}

#[cfg(test)]
mod tests;
