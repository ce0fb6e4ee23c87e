//! Pod status as tables.

use serde_json::json;
use wharf_model::Monotonic;

use super::*;
use crate::pods::decide::tests::{Row, row, view};
use crate::pods::view::{CrashBackoff, StartFailure};
use std::time::Duration;

const NOW: Time = Time(1_000_000);

fn main_(name: &str) -> Row {
    row(name, Role::Main)
}

fn init(name: &str) -> Row {
    row(name, Role::Init)
}

/// kubelet's getPhase.
#[test]
fn phase_follows_kubelets_get_phase() {
    use PodPhase::{Failed, Pending, Running, Succeeded};
    for (policy, rows, ends, expected) in [
        ("Always", vec![main_("a")], false, Pending),
        ("Always", vec![main_("a").runs(), main_("b")], false, Pending),
        ("Always", vec![main_("a").runs(), main_("b").runs()], false, Running),
        ("Always", vec![main_("a").runs(), main_("b").ended(1)], false, Running),
        ("Always", vec![main_("a").ended(0), main_("b").ended(1)], false, Running),
        ("OnFailure", vec![main_("a").ended(0), main_("b").ended(1)], false, Running),
        ("OnFailure", vec![main_("a").ended(0), main_("b").ended(0)], false, Succeeded),
        ("Never", vec![main_("a").ended(0), main_("b").ended(0)], false, Succeeded),
        ("Never", vec![main_("a").ended(0), main_("b").ended(1)], false, Failed),
        ("Never", vec![main_("a").ended(0), main_("b").runs()], false, Running),
        ("Always", vec![init("i").runs(), main_("a")], false, Pending),
        ("Always", vec![init("i").ended(1), main_("a")], false, Pending),
        ("OnFailure", vec![init("i").ended(1), main_("a")], false, Pending),
        ("Never", vec![init("i").ended(1), main_("a")], false, Failed),
        ("Never", vec![init("i").ended(1), main_("a").runs()], false, Running),
        // Terminating: whatever the policy, none is restarted.
        ("Always", vec![main_("a").ended(0)], true, Succeeded),
        ("Always", vec![main_("a").ended(0), main_("b").ended(143)], true, Failed),
        ("OnFailure", vec![main_("a").ended(1)], true, Failed),
    ] {
        let names: Vec<_> = rows.iter().map(|row| row.0.run_state.clone()).collect();
        let view = view(json!({"spec": {"restartPolicy": policy}}), VolumesState::Mounted, &rows);
        assert_eq!(phase(&view, ends), expected, "{policy} {names:?}");
    }
}

/// Each condition as a string: its type, status and reason, if any.
fn rendered_conditions(status: &Value) -> Vec<String> {
    let render = |condition: &Value| {
        let text = |field: &str| condition[field].as_str().unwrap_or("").to_owned();
        [text("type"), text("status"), text("reason")].join(" ").trim_end().to_owned()
    };
    status["conditions"].as_array().unwrap().iter().map(render).collect()
}

/// kubelet's conditions, in its order.
#[test]
fn conditions_match_kubelet() {
    let unready = |row: Row| row.runs().with(|observed| observed.probed_ready = true);
    let ready = |row: Row| unready(row).with(|observed| observed.health.ready = true);
    let waiting =
        ["Initialized True", "Ready False ContainersNotReady", "ContainersReady False ContainersNotReady"];
    let well = ["Initialized True", "Ready True", "ContainersReady True"];
    let done = ["Initialized True", "Ready False PodCompleted", "ContainersReady False PodCompleted"];
    let first = ["Initialized False ContainersNotInitialized", waiting[1], waiting[2]];
    for (volumes, rows, cause, sandbox, expected) in [
        (VolumesState::Requested, vec![main_("a")], None, "False", waiting),
        (VolumesState::Mounted, vec![main_("a")], None, "True", waiting),
        (VolumesState::Mounted, vec![main_("a").runs()], None, "True", well),
        (VolumesState::Mounted, vec![unready(main_("a"))], None, "True", waiting),
        (VolumesState::Mounted, vec![ready(main_("a"))], None, "True", well),
        (VolumesState::Mounted, vec![ready(main_("a")), main_("b")], None, "True", waiting),
        (VolumesState::Mounted, vec![init("i").runs(), main_("a")], None, "True", first),
        (VolumesState::Mounted, vec![init("i").ended(0), main_("a").runs()], None, "True", well),
        (VolumesState::Mounted, vec![row("s", Role::Sidecar).runs(), main_("a").runs()], None, "True", well),
        (
            VolumesState::Mounted,
            vec![row("s", Role::Sidecar).ended(1), main_("a").runs()],
            None,
            "True",
            waiting,
        ),
        (VolumesState::Releasing, vec![main_("a").ended(0)], Some(TerminationCause::Finished), "False", done),
    ] {
        let names: Vec<_> = rows.iter().map(|row| row.0.run_state.clone()).collect();
        let never = json!({"spec": {"restartPolicy": "Never"}});
        let status = status(&view(never, volumes, &rows), cause, NOW);
        let mut all = vec![format!("PodReadyToStartContainers {sandbox}")];
        all.extend(expected.iter().map(|line| (*line).to_owned()));
        all.push("PodScheduled True".to_owned());
        assert_eq!(rendered_conditions(&status), all, "{names:?}");
    }
}

/// An unchanged condition keeps its lastTransitionTime.
#[test]
fn unchanged_condition_keeps_its_transition_time() {
    let before = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"},
        {"type": "ContainersReady", "status": "False", "lastTransitionTime": "1970-01-01T00:00:07Z"},
    ]}});
    let status = status(&view(before, VolumesState::Mounted, &[main_("a").runs()]), None, NOW);
    let since = |at: usize| status["conditions"][at]["lastTransitionTime"].as_str().unwrap().to_owned();
    assert_eq!((since(2), since(3)), ("1970-01-01T00:00:07Z".to_owned(), NOW.to_string()));
}

/// kubelet's container states.
#[test]
fn container_states_match_kubelet() {
    let crash_backoff = CrashBackoff { start: Duration::from_secs(80), max: Duration::from_secs(300) };
    let looping = main_("a").ended(3).with(|observed| {
        observed.crash.begin(crash_backoff, Monotonic(0), Monotonic(0));
        observed.crash.reported_attempt = Some(0);
    });
    let start_failure = |row: Row| {
        row.with(|observed| {
            observed.start_failure = Some(StartFailure {
                reason: "CreateContainerConfigError",
                message: "secret \"s\" not found".into(),
                retry_at: Monotonic(0),
                count: 1,
            });
        })
    };
    let ended = json!({"terminated": {
        "exitCode": 3, "reason": "Error", "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "1970-01-01T00:16:39Z",
        "containerID": "wharf://id0",
    }});
    let wrong =
        json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"s\" not found"}});
    for (row, first, cause, state, last) in [
        (main_("a"), false, None, json!({"waiting": {"reason": "ContainerCreating"}}), json!({})),
        (main_("a"), true, None, json!({"waiting": {"reason": "PodInitializing"}}), json!({})),
        (
            main_("a").runs(),
            false,
            None,
            json!({"running": {"startedAt": "1970-01-01T00:00:00Z"}}),
            json!({}),
        ),
        (main_("a").ended(3), false, None, ended.clone(), json!({})),
        (
            looping.clone(),
            false,
            None,
            json!({"waiting": {
                "reason": "CrashLoopBackOff", "message": "back-off 1m20s restarting failed container=a pod=p_n(u)",
            }}),
            ended.clone(),
        ),
        // A terminating pod's container does not wait for a restart.
        (looping, false, Some(TerminationCause::Deleted), ended.clone(), json!({})),
        (start_failure(main_("a")), false, None, wrong.clone(), json!({})),
        (start_failure(main_("a").ended(3)), false, None, wrong, ended),
    ] {
        let mut rows = vec![row];
        if first {
            rows.insert(0, init("i").runs());
        }
        let status = status(&view(json!({}), VolumesState::Mounted, &rows), cause, NOW);
        let container = &status["containerStatuses"][0];
        assert_eq!((&container["state"], &container["lastState"]), (&state, &last));
    }
    let restarted = main_("a")
        .ended(3)
        .runs()
        .with(|observed| observed.before = Some(Ended { code: 3, ..Ended::default() }));
    let status = status(&view(json!({}), VolumesState::Mounted, &[restarted]), None, NOW);
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["restartCount"], &container["containerID"]), (&json!(1), &json!("wharf://id1")));
    assert_eq!(container["lastState"]["terminated"]["exitCode"], json!(3));
    assert_eq!((&container["ready"], &container["started"]), (&json!(true), &json!(true)));
}

/// A terminal phase is reported only when nothing of the pod runs.
#[test]
fn terminal_phase_is_reported_after_all_containers_exited() {
    let running = json!({"status": {"phase": "Running"}, "spec": {"restartPolicy": "Never"}});
    let sidecar = row("s", Role::Sidecar);
    let sidecar_running =
        view(running.clone(), VolumesState::Mounted, &[sidecar.clone().runs(), main_("a").ended(0)]);
    assert_eq!(status(&sidecar_running, Some(TerminationCause::Finished), NOW)["phase"], json!("Running"));
    let finished = view(running.clone(), VolumesState::Mounted, &[sidecar.ended(143), main_("a").ended(0)]);
    assert_eq!(status(&finished, Some(TerminationCause::Finished), NOW)["phase"], json!("Succeeded"));
    let killed = view(running, VolumesState::Releasing, &[main_("a").ended(137)]);
    assert_eq!(status(&killed, Some(TerminationCause::Deleted), NOW)["phase"], json!("Failed"));
    // An existing terminal status is not overwritten.
    let evicted = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "full"}});
    let status = status(
        &view(evicted, VolumesState::Releasing, &[main_("a").ended(0)]),
        Some(TerminationCause::Reported),
        NOW,
    );
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
}

#[test]
fn status_has_addresses_and_start_time() {
    let waiting = status(&view(json!({}), VolumesState::Requested, &[main_("a")]), None, NOW);
    assert_eq!(
        (&waiting["hostIP"], &waiting["startTime"]),
        (&json!("10.0.0.1"), &json!("1970-01-01T00:00:00Z"))
    );
    assert!(waiting.get("podIP").is_none() && waiting.get("initContainerStatuses").is_none());
    let running = status(&view(json!({}), VolumesState::Mounted, &[main_("a").runs()]), None, NOW);
    assert_eq!(running["podIPs"], json!([{"ip": "10.0.0.1"}]));
}
