//! Words of a pod as tables.

use serde_json::json;

use super::*;
use crate::pods::decide::tests::{Row, row, view};
use crate::pods::view::{CrashPace, Trouble};
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
fn phases() {
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
        // It ends: whatever the policy, none is started again.
        ("Always", vec![main_("a").ended(0)], true, Succeeded),
        ("Always", vec![main_("a").ended(0), main_("b").ended(143)], true, Failed),
        ("OnFailure", vec![main_("a").ended(1)], true, Failed),
    ] {
        let names: Vec<_> = rows.iter().map(|row| row.0.life.clone()).collect();
        let view = view(json!({"spec": {"restartPolicy": policy}}), VolumesAre::Mounted, &rows);
        assert_eq!(phase(&view, ends), expected, "{policy} {names:?}");
    }
}

/// Each condition in a line: its name, status and, if there is one, its reason.
fn told_conditions(status: &Value) -> Vec<String> {
    let line = |condition: &Value| {
        let text = |field: &str| condition[field].as_str().unwrap_or("").to_owned();
        [text("type"), text("status"), text("reason")].join(" ").trim_end().to_owned()
    };
    status["conditions"].as_array().unwrap().iter().map(line).collect()
}

/// kubelet's conditions, in its order.
#[test]
fn conditions_of_a_pod() {
    let unready = |row: Row| row.runs().with(|seen| seen.probed_ready = true);
    let ready = |row: Row| unready(row).with(|seen| seen.health.ready = true);
    let waiting =
        ["Initialized True", "Ready False ContainersNotReady", "ContainersReady False ContainersNotReady"];
    let well = ["Initialized True", "Ready True", "ContainersReady True"];
    let done = ["Initialized True", "Ready False PodCompleted", "ContainersReady False PodCompleted"];
    let first = ["Initialized False ContainersNotInitialized", waiting[1], waiting[2]];
    for (volumes, rows, over, sandbox, expected) in [
        (VolumesAre::Coming, vec![main_("a")], None, "False", waiting),
        (VolumesAre::Mounted, vec![main_("a")], None, "True", waiting),
        (VolumesAre::Mounted, vec![main_("a").runs()], None, "True", well),
        (VolumesAre::Mounted, vec![unready(main_("a"))], None, "True", waiting),
        (VolumesAre::Mounted, vec![ready(main_("a"))], None, "True", well),
        (VolumesAre::Mounted, vec![ready(main_("a")), main_("b")], None, "True", waiting),
        (VolumesAre::Mounted, vec![init("i").runs(), main_("a")], None, "True", first),
        (VolumesAre::Mounted, vec![init("i").ended(0), main_("a").runs()], None, "True", well),
        (VolumesAre::Mounted, vec![row("s", Role::Sidecar).runs(), main_("a").runs()], None, "True", well),
        (
            VolumesAre::Mounted,
            vec![row("s", Role::Sidecar).ended(1), main_("a").runs()],
            None,
            "True",
            waiting,
        ),
        (VolumesAre::Going, vec![main_("a").ended(0)], Some(Over::Finished), "False", done),
    ] {
        let names: Vec<_> = rows.iter().map(|row| row.0.life.clone()).collect();
        let never = json!({"spec": {"restartPolicy": "Never"}});
        let status = status(&view(never, volumes, &rows), over, NOW);
        let mut all = vec![format!("PodReadyToStartContainers {sandbox}")];
        all.extend(expected.iter().map(|line| (*line).to_owned()));
        all.push("PodScheduled True".to_owned());
        assert_eq!(told_conditions(&status), all, "{names:?}");
    }
}

/// A condition that stays as it is keeps its time.
#[test]
fn since_when() {
    let before = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"},
        {"type": "ContainersReady", "status": "False", "lastTransitionTime": "1970-01-01T00:00:07Z"},
    ]}});
    let status = status(&view(before, VolumesAre::Mounted, &[main_("a").runs()]), None, NOW);
    let since = |at: usize| status["conditions"][at]["lastTransitionTime"].as_str().unwrap().to_owned();
    assert_eq!((since(2), since(3)), ("1970-01-01T00:00:07Z".to_owned(), NOW.to_string()));
}

/// kubelet's container states.
#[test]
fn states() {
    let pace = CrashPace { start: Duration::from_secs(80), max: Duration::from_secs(300) };
    let looping = main_("a").ended(3).with(|seen| {
        seen.crash.begin(pace, Time(0), Time(0));
        seen.crash.told = Some(0);
    });
    let trouble = |row: Row| {
        row.with(|seen| {
            seen.trouble = Some(Trouble {
                reason: "CreateContainerConfigError",
                message: "secret \"s\" not found".into(),
                again: NOW,
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
    for (row, first, over, state, last) in [
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
        // Nobody waits for the next life of a pod that ends.
        (looping, false, Some(Over::Deleted), ended.clone(), json!({})),
        (trouble(main_("a")), false, None, wrong.clone(), json!({})),
        (trouble(main_("a").ended(3)), false, None, wrong, ended),
    ] {
        let mut rows = vec![row];
        if first {
            rows.insert(0, init("i").runs());
        }
        let status = status(&view(json!({}), VolumesAre::Mounted, &rows), over, NOW);
        let container = &status["containerStatuses"][0];
        assert_eq!((&container["state"], &container["lastState"]), (&state, &last));
    }
    let restarted =
        main_("a").ended(3).runs().with(|seen| seen.before = Some(Ended { code: 3, ..Ended::default() }));
    let status = status(&view(json!({}), VolumesAre::Mounted, &[restarted]), None, NOW);
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["restartCount"], &container["containerID"]), (&json!(1), &json!("wharf://id1")));
    assert_eq!(container["lastState"]["terminated"]["exitCode"], json!(3));
    assert_eq!((&container["ready"], &container["started"]), (&json!(true), &json!(true)));
}

/// A pod is over only when nothing of it runs.
#[test]
fn the_phase_of_a_pod_that_ends() {
    let running = json!({"status": {"phase": "Running"}, "spec": {"restartPolicy": "Never"}});
    let sidecar = row("s", Role::Sidecar);
    let beside = view(running.clone(), VolumesAre::Mounted, &[sidecar.clone().runs(), main_("a").ended(0)]);
    assert_eq!(status(&beside, Some(Over::Finished), NOW)["phase"], json!("Running"));
    let over = view(running.clone(), VolumesAre::Mounted, &[sidecar.ended(143), main_("a").ended(0)]);
    assert_eq!(status(&over, Some(Over::Finished), NOW)["phase"], json!("Succeeded"));
    let killed = view(running, VolumesAre::Going, &[main_("a").ended(137)]);
    assert_eq!(status(&killed, Some(Over::Deleted), NOW)["phase"], json!("Failed"));
    // What somebody else said of its end is not unsaid.
    let evicted = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "full"}});
    let status = status(&view(evicted, VolumesAre::Going, &[main_("a").ended(0)]), Some(Over::Told), NOW);
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
}

#[test]
fn addresses_and_times() {
    let waiting = status(&view(json!({}), VolumesAre::Coming, &[main_("a")]), None, NOW);
    assert_eq!(
        (&waiting["hostIP"], &waiting["startTime"]),
        (&json!("10.0.0.1"), &json!("1970-01-01T00:00:00Z"))
    );
    assert!(waiting.get("podIP").is_none() && waiting.get("initContainerStatuses").is_none());
    let running = status(&view(json!({}), VolumesAre::Mounted, &[main_("a").runs()]), None, NOW);
    assert_eq!(running["podIPs"], json!([{"ip": "10.0.0.1"}]));
}
