//! How a pod is, in kubelet's words: phase, conditions, and the state of each container.

use serde_json::{Map, Value, json};
use wharf_model::Time;
use wharf_model::pod::PodPhase;
use wharf_model::whole::pod::RestartPolicy;

use super::decide::lives_again;
use super::view::{Ended, Life, Role, Seen, View, VolumesAre, roles};

/// Why a pod is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Somebody deleted it.
    Deleted,
    /// The server says that it has ended.
    Told,
    /// It has run for too long.
    Deadline,
    /// Its containers have ended for good.
    Finished,
}

/// How far the pod has come, by its containers. `ends`: none of them is started again, whatever its policy.
pub(super) fn phase(view: &View, ends: bool) -> PodPhase {
    let policy = view.policy();
    let failed =
        |seen: &Seen| seen.role == Role::Init && matches!(&seen.life, Life::Ended(ended) if ended.code != 0);
    // Before its others were started, a pod waits for those that run first, or fails with them.
    if !view.is_past_init() && policy == RestartPolicy::Never && view.first().any(failed) {
        return PodPhase::Failed;
    }
    let (mut running, mut waiting, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for seen in view.main() {
        match &seen.life {
            Life::None => waiting += 1,
            Life::Running { .. } => running += 1,
            Life::Ended(ended) => {
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

/// What is written of the pod.
pub(super) fn status(view: &View, over: Option<Over>, now: Time) -> Value {
    let runs = view.containers.iter().any(Seen::runs);
    let (phase, reason, message) = told(view, over, runs);
    let sandboxed = matches!(view.volumes, VolumesAre::Mounted)
        || view.containers.iter().any(|seen| seen.runs())
        || (over.is_none() && view.containers.iter().any(|seen| !matches!(seen.life, Life::None)));
    let mut status = json!({
        "phase": phase.as_str(),
        "reason": reason,
        "message": message,
        "startTime": view.pod.status.start_time.unwrap_or(view.seen).to_string(),
        "conditions": conditions(view, phase, sandboxed && over.is_none_or(|_| runs), now),
        "containerStatuses": statuses(view, over, false),
    });
    if !view.pod.spec.init_containers.is_empty() {
        status["initContainerStatuses"] = statuses(view, over, true);
    }
    if !view.address.is_empty() {
        status["hostIP"] = view.address.as_str().into();
        status["hostIPs"] = json!([{"ip": view.address}]);
        // Pods have the node's network, from their first container on.
        if view.containers.iter().any(|seen| !matches!(seen.life, Life::None)) {
            status["podIP"] = view.address.as_str().into();
            status["podIPs"] = json!([{"ip": view.address}]);
        }
    }
    status
}

/// The phase, and why. A pod is not over while something of it runs.
fn told(view: &View, over: Option<Over>, runs: bool) -> (PodPhase, Value, Value) {
    let pod = &view.pod;
    let text = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
    let before = (pod.status.phase, text(&pod.status.reason), text(&pod.status.message));
    let Some(over) = over else { return (phase(view, false), Value::Null, Value::Null) };
    if over == Over::Told || pod.has_ended() {
        return before;
    }
    if runs {
        return match pod.status.phase {
            PodPhase::Unknown => (PodPhase::Pending, Value::Null, Value::Null),
            phase => (phase, before.1, before.2),
        };
    }
    match over {
        Over::Deadline => (
            PodPhase::Failed,
            "DeadlineExceeded".into(),
            "Pod was active on the node longer than the specified deadline".into(),
        ),
        Over::Finished => (phase(view, false), Value::Null, Value::Null),
        Over::Deleted | Over::Told => match phase(view, true) {
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

fn names<'a>(seen: impl Iterator<Item = &'a Seen>) -> String {
    seen.map(|seen| seen.name.as_str()).collect::<Vec<_>>().join(" ")
}

fn initialized(view: &View, phase: PodPhase) -> (bool, &'static str, String) {
    let finished = |seen: &&Seen| match seen.role {
        Role::Sidecar => seen.has_started(),
        _ => seen.is_ready(),
    };
    if phase == PodPhase::Succeeded {
        let reason = if view.first().next().is_some() { "PodCompleted" } else { "" };
        return (true, reason, String::new());
    }
    if view.is_past_init() || view.first().all(|seen| finished(&seen)) {
        return (true, "", String::new());
    }
    let incomplete = names(view.first().filter(|seen| !finished(seen)));
    (false, "ContainersNotInitialized", format!("containers with incomplete status: [{incomplete}]"))
}

fn ready(view: &View, phase: PodPhase) -> (bool, &'static str, String) {
    match phase {
        PodPhase::Succeeded => return (false, "PodCompleted", String::new()),
        PodPhase::Failed => return (false, "PodFailed", String::new()),
        _ => {}
    }
    let counts = |seen: &&Seen| seen.role != Role::Init && !seen.is_ready();
    let unready = names(view.containers.iter().filter(counts));
    match unready.is_empty() {
        true => (true, "", String::new()),
        false => (false, "ContainersNotReady", format!("containers with unready status: [{unready}]")),
    }
}

fn statuses(view: &View, over: Option<Over>, first: bool) -> Value {
    let containers = roles(&view.pod).zip(&view.containers);
    let of = containers.filter(|((role, _), _)| (*role != Role::Main) == first);
    of.map(|((_, spec), seen)| {
        let (state, last) = state(view, over, seen);
        let id = match &seen.life {
            Life::None => "",
            Life::Running { id, .. } | Life::Ended(Ended { id, .. }) => id,
        };
        let attempt = match &seen.life {
            Life::None => 0,
            Life::Running { attempt, .. } | Life::Ended(Ended { attempt, .. }) => *attempt,
        };
        let mut status = json!({
            "name": seen.name,
            "state": state,
            "lastState": last,
            "ready": seen.is_ready(),
            "started": seen.has_started(),
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

/// How container IDs are written.
fn with_scheme(id: &str) -> Value {
    match id {
        "" => Value::Null,
        id => format!("{}{id}", super::SCHEME).into(),
    }
}

/// What the container is doing, and what it did before.
fn state(view: &View, over: Option<Over>, seen: &Seen) -> (Value, Value) {
    let before =
        seen.before.as_ref().map_or_else(|| json!({}), |ended| json!({"terminated": terminated(ended)}));
    let waiting = |reason: &str, message: &str| {
        let mut waiting = Map::from_iter([("reason".to_owned(), reason.into())]);
        if !message.is_empty() {
            waiting.insert("message".to_owned(), message.into());
        }
        json!({"waiting": waiting})
    };
    match &seen.life {
        Life::Running { started, .. } => (json!({"running": {"startedAt": started.to_string()}}), before),
        Life::Ended(ended) => {
            let last = json!({"terminated": terminated(ended)});
            let again = over.is_none()
                && match seen.role {
                    Role::Sidecar => true,
                    Role::Init => {
                        ended.code != 0 && view.policy() != RestartPolicy::Never && !view.is_past_init()
                    }
                    Role::Main => lives_again(view.policy(), ended),
                };
            match (&seen.trouble, again) {
                (Some(trouble), true) => (waiting(trouble.reason, &trouble.message), last),
                (None, true) if seen.crash.told == Some(ended.attempt) => {
                    (waiting("CrashLoopBackOff", &back_off(view, seen)), last)
                }
                _ => (last, before),
            }
        }
        Life::None => {
            let default = if view.pod.spec.init_containers.is_empty() {
                "ContainerCreating"
            } else {
                "PodInitializing"
            };
            let state = match (&seen.trouble, over) {
                (Some(trouble), None) => waiting(trouble.reason, &trouble.message),
                _ => waiting(default, ""),
            };
            (state, before)
        }
    }
}

fn back_off(view: &View, seen: &Seen) -> String {
    let meta = &view.pod.metadata;
    format!(
        "back-off {} restarting failed container={} pod={}_{}({})",
        words(seen.crash.pause()),
        seen.name,
        meta.name,
        meta.namespace.as_deref().unwrap_or_default(),
        meta.uid
    )
}

/// As Go writes it: `10s`, `1m20s`, `5m0s`.
fn words(pause: std::time::Duration) -> String {
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
