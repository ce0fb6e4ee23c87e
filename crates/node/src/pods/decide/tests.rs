//! Rules of a pod as tables: each case says what is known, and what is done next. The rules are kubelet's, named by what
//! they are about.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::whole::Pod;

use super::*;
use crate::pods::view::{Crash, Failed, Health, Trouble};

const PACE: CrashPace = CrashPace { start: Duration::from_secs(10), max: Duration::from_secs(300) };
const NOW: Time = Time(1_000_000);

/// A container for a table: name and role, then how it is.
#[derive(Clone)]
pub(in crate::pods) struct Row(pub(in crate::pods) Seen);

pub(in crate::pods) fn row(name: &str, role: Role) -> Row {
    Row(Seen {
        name: name.into(),
        role,
        life: Life::None,
        before: None,
        crash: Crash::default(),
        trouble: None,
        stopping: None,
        probed_start: false,
        probed_ready: false,
        health: Health::default(),
    })
}

impl Row {
    pub(in crate::pods) fn runs(mut self) -> Self {
        let attempt = self.0.next_attempt();
        self.0.life = Life::Running { id: format!("id{attempt}"), attempt, started: Time(0) };
        self
    }

    pub(in crate::pods) fn ended(mut self, code: i32) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        let finished = Some(Time(NOW.0 - 1000));
        self.0.life = Life::Ended(Ended {
            id: "id0".into(),
            code,
            reason: reason.into(),
            started: Some(Time(0)),
            finished,
            ..Ended::default()
        });
        self
    }

    /// Before the machine was last started.
    pub(in crate::pods) fn earlier(self) -> Self {
        self.with(|seen| match &mut seen.life {
            Life::Ended(ended) => ended.earlier = true,
            life => panic!("{life:?}"),
        })
    }

    pub(in crate::pods) fn with(mut self, change: impl FnOnce(&mut Seen)) -> Self {
        change(&mut self.0);
        self
    }
}

pub(in crate::pods) fn view(pod: Value, volumes: VolumesAre, rows: &[Row]) -> View {
    let containers = |main: bool| -> Vec<Value> {
        let rows = rows.iter().filter(|row| (row.0.role == Role::Main) == main);
        rows.map(|row| match row.0.role {
            Role::Sidecar => json!({"name": row.0.name, "restartPolicy": "Always"}),
            _ => json!({"name": row.0.name}),
        })
        .collect()
    };
    let mut object = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"restartPolicy": "Always", "containers": containers(true), "initContainers": containers(false)},
    });
    merge(&mut object, pod);
    let pod: Pod = serde_json::from_value(object).unwrap();
    View {
        pod: Arc::new(pod),
        gone: false,
        address: "10.0.0.1".into(),
        seen: Time(0),
        volumes,
        containers: rows.iter().map(|row| row.0.clone()).collect(),
        reported: None,
        deleted: false,
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// What is done, in a word or two. What would only be told is told first.
fn done(mut view: View) -> String {
    let mut step = decide(&view, PACE, NOW);
    if let Step::Report(status) = step {
        view.reported = Some(*status);
        step = decide(&view, PACE, NOW);
    }
    match step {
        Step::Start { container, attempt } => format!("start {container} {attempt}"),
        Step::TellBackOff { container, .. } => format!("tell {container}"),
        Step::Stop { containers, by, .. } => {
            format!("stop {} {}", containers.join(","), (by.0 - NOW.0) / 1000)
        }
        Step::Wait(pause) => format!("wait {}", pause.as_secs()),
        step => format!("{step:?}").to_lowercase(),
    }
}

fn main_(name: &str) -> Row {
    row(name, Role::Main)
}

fn init(name: &str) -> Row {
    row(name, Role::Init)
}

fn sidecar(name: &str) -> Row {
    row(name, Role::Sidecar)
}

fn policy(policy: &str) -> Value {
    json!({"spec": {"restartPolicy": policy}})
}

/// "No container is started before all volumes are there."
#[test]
fn volumes_come_first() {
    for (volumes, expected) in [
        (VolumesAre::Unasked, "wantvolumes"),
        (VolumesAre::Coming, "done"),
        (VolumesAre::Mounted, "start a 0"),
        // It was over, and is not: as for a pod whose end the server did not take.
        (VolumesAre::Released, "wantvolumes"),
    ] {
        assert_eq!(done(view(json!({}), volumes, &[main_("a")])), expected, "{volumes:?}");
    }
    // After a restart of the agent, those that run are left alone while volumes are looked at.
    assert_eq!(done(view(json!({}), VolumesAre::Coming, &[main_("a").runs(), main_("b")])), "done");
}

/// "Init containers, sidecars, then all others."
#[test]
fn the_order_of_starts() {
    let started = |row: Row| row.runs().with(|seen| (seen.probed_start, seen.health.started) = (true, true));
    let starting = |row: Row| row.runs().with(|seen| seen.probed_start = true);
    for (policy_of, rows, expected) in [
        ("Always", vec![main_("a"), main_("b")], "start a 0"),
        ("Always", vec![main_("a").runs(), main_("b")], "start b 0"),
        ("Always", vec![main_("a").runs(), main_("b").runs()], "done"),
        ("Always", vec![init("i"), init("j"), main_("a")], "start i 0"),
        ("Always", vec![init("i").runs(), init("j"), main_("a")], "done"),
        ("Always", vec![init("i").ended(0), init("j"), main_("a")], "start j 0"),
        ("Always", vec![init("i").ended(0), init("j").ended(0), main_("a")], "start a 0"),
        ("Always", vec![init("i").ended(1), main_("a")], "start i 1"),
        ("OnFailure", vec![init("i").ended(1), main_("a")], "start i 1"),
        ("Never", vec![init("i").ended(1), main_("a")], "release"),
        // Once the others were started, init containers are history, whatever became of them.
        ("Always", vec![init("i").ended(1), main_("a").runs()], "done"),
        ("Always", vec![init("i"), main_("a").ended(1)], "start a 1"),
        // Until the machine was started anew: what they did in memory is gone.
        ("Always", vec![init("i").ended(0).earlier(), main_("a").ended(137).earlier()], "start i 1"),
        ("OnFailure", vec![init("i").ended(0).earlier(), main_("a").ended(137).earlier()], "start i 1"),
        ("Never", vec![init("i").ended(0).earlier(), main_("a").ended(137).earlier()], "release"),
        ("Never", vec![init("i").ended(0).earlier(), main_("a")], "start i 1"),
        ("Always", vec![init("i").runs(), main_("a").ended(137).earlier()], "done"),
        ("Always", vec![init("i").ended(0), main_("a").ended(137).earlier()], "start a 1"),
        ("Always", vec![init("i").ended(0).earlier(), main_("a").ended(1)], "start a 1"),
        ("Always", vec![sidecar("s"), init("i"), main_("a")], "start s 0"),
        ("Always", vec![starting(sidecar("s")), init("i"), main_("a")], "done"),
        ("Always", vec![started(sidecar("s")), init("i"), main_("a")], "start i 0"),
        ("Always", vec![sidecar("s").runs(), main_("a")], "start a 0"),
        ("Always", vec![sidecar("s").runs().with(|seen| seen.health.beginning = true), main_("a")], "done"),
        // A sidecar is started again whatever the policy, also beside the others.
        ("Never", vec![sidecar("s").ended(0), main_("a").runs()], "start s 1"),
        ("Never", vec![sidecar("s").ended(0), init("i"), main_("a")], "start s 1"),
        ("Never", vec![starting(sidecar("s")), main_("a").runs(), main_("b")], "start b 0"),
    ] {
        let names: Vec<_> = rows.iter().map(|row| (row.0.name.clone(), row.0.life.clone())).collect();
        assert_eq!(
            done(view(policy(policy_of), VolumesAre::Mounted, &rows)),
            expected,
            "{policy_of} {names:?}"
        );
    }
}

/// "Restart policy."
#[test]
fn who_lives_again() {
    for (policy_of, code, expected) in [
        ("Always", 0, "start a 1"),
        ("Always", 1, "start a 1"),
        ("OnFailure", 1, "start a 1"),
        ("OnFailure", 0, "done"),
        ("Never", 1, "done"),
        ("Never", 0, "done"),
    ] {
        let rows = [main_("a").ended(code), main_("b").runs()];
        assert_eq!(done(view(policy(policy_of), VolumesAre::Mounted, &rows)), expected, "{policy_of} {code}");
    }
}

/// "CrashLoopBackOff: 10 s, doubled up to 5 min", told once.
#[test]
fn pauses() {
    let crashed = |told: bool| {
        main_("a").ended(1).with(|seen| {
            seen.crash.begin(PACE, Time(0), Time(NOW.0 - 2000));
            seen.crash.told = told.then_some(0);
        })
    };
    assert_eq!(done(view(json!({}), VolumesAre::Mounted, &[crashed(false)])), "tell a");
    assert_eq!(done(view(json!({}), VolumesAre::Mounted, &[crashed(true)])), "wait 9");
    // One that waits holds up no other.
    assert_eq!(done(view(json!({}), VolumesAre::Mounted, &[crashed(true), main_("b")])), "start b 0");
    let trouble = |again: i64| {
        let again = Time(NOW.0 + again);
        main_("a").with(|seen| {
            seen.trouble =
                Some(Trouble { reason: "CreateContainerConfigError", message: "no".into(), again, count: 1 });
        })
    };
    assert_eq!(done(view(json!({}), VolumesAre::Mounted, &[trouble(5000), crashed(true)])), "wait 5");
    assert_eq!(done(view(json!({}), VolumesAre::Mounted, &[trouble(0)])), "start a 0");
}

/// "Liveness, startup and hooks: the container is ended, and begun again as ever."
#[test]
fn who_is_not_well_is_ended() {
    let unwell = |grace: Option<u64>| {
        let grace = grace.map(Duration::from_secs);
        main_("a").runs().with(|seen| seen.health.failed = Some(Failed { note: "x".into(), grace }))
    };
    for (row, expected) in [
        (unwell(None), "stop a 30"),
        (unwell(Some(5)), "stop a 5"),
        (unwell(Some(0)), "stop a 2"),
        (unwell(None).with(|seen| seen.stopping = Some(NOW)), "done"),
    ] {
        assert_eq!(done(view(json!({}), VolumesAre::Mounted, &[row])), expected);
    }
}

fn deleted_at(seconds: i64) -> Value {
    json!({"metadata": {"deletionTimestamp": Time(NOW.0 + seconds * 1000).to_string()}})
}

/// "Graceful end: all but sidecars, then these from the last to the first, each within what is left."
#[test]
fn the_order_of_ends() {
    let stopping =
        |row: Row, seconds: i64| row.runs().with(|seen| seen.stopping = Some(Time(NOW.0 + seconds * 1000)));
    for (left, rows, expected) in [
        (30, vec![main_("a").runs(), main_("b").runs()], "stop a,b 30"),
        (30, vec![sidecar("s").runs(), main_("a").runs(), main_("b").ended(0)], "stop a 30"),
        (30, vec![sidecar("s").runs(), sidecar("t").runs(), main_("a").ended(0)], "stop t 30"),
        (30, vec![sidecar("s").runs(), sidecar("t").ended(0), main_("a").ended(0)], "stop s 30"),
        (30, vec![init("i").runs(), main_("a")], "stop i 30"),
        (30, vec![stopping(main_("a"), 30), main_("b").runs()], "stop b 30"),
        (30, vec![stopping(main_("a"), 30)], "done"),
        // Less time than before, or none.
        (5, vec![stopping(main_("a"), 30)], "stop a 5"),
        (-100, vec![stopping(main_("a"), 30)], "stop a 2"),
        (-100, vec![stopping(main_("a"), 2)], "done"),
        // Never longer.
        (60, vec![stopping(main_("a"), 30)], "done"),
        // Nothing is begun any more.
        (30, vec![main_("a"), main_("b").ended(1)], "release"),
    ] {
        let names: Vec<_> = rows.iter().map(|row| (row.0.name.clone(), row.0.stopping)).collect();
        assert_eq!(done(view(deleted_at(left), VolumesAre::Mounted, &rows)), expected, "{left} {names:?}");
    }
}

/// "Containers end, volumes go, the status is written, the pod is deleted with grace 0", in this order.
#[test]
fn the_end_of_a_pod() {
    let ended = [main_("a").ended(0)];
    for (volumes, expected) in [
        (VolumesAre::Unasked, "release"),
        (VolumesAre::Coming, "release"),
        (VolumesAre::Mounted, "release"),
        (VolumesAre::Going, "done"),
        (VolumesAre::Released, "delete"),
    ] {
        assert_eq!(done(view(deleted_at(30), volumes, &ended)), expected, "{volumes:?}");
    }
    let untold = view(deleted_at(30), VolumesAre::Released, &ended);
    assert!(matches!(decide(&untold, PACE, NOW), Step::Report(_)), "its last status comes first");
    let mut waits = view(deleted_at(30), VolumesAre::Released, &ended);
    waits.deleted = true;
    assert_eq!(done(waits), "done", "a finalizer holds it: it is deleted once");
    let mut gone = view(json!({}), VolumesAre::Released, &ended);
    gone.gone = true;
    assert_eq!(done(gone), "forget");
    let mut gone = view(json!({}), VolumesAre::Mounted, &[main_("a").runs()]);
    gone.gone = true;
    assert_eq!(done(gone), "stop a 2", "nobody waits for it any more");
}

/// "A pod that is over stays over": its sidecars end, its volumes go, and it is not deleted.
#[test]
fn a_pod_that_has_ended() {
    for (policy_of, rows, volumes, expected) in [
        ("Never", vec![main_("a").ended(0)], VolumesAre::Mounted, "release"),
        ("Never", vec![main_("a").ended(1)], VolumesAre::Released, "done"),
        ("OnFailure", vec![main_("a").ended(0)], VolumesAre::Mounted, "release"),
        ("Never", vec![sidecar("s").runs(), main_("a").ended(0)], VolumesAre::Mounted, "stop s 30"),
        ("Never", vec![main_("a").ended(0), main_("b").runs()], VolumesAre::Mounted, "done"),
    ] {
        let names: Vec<_> = rows.iter().map(|row| row.0.life.clone()).collect();
        assert_eq!(done(view(policy(policy_of), volumes, &rows)), expected, "{policy_of} {names:?}");
    }
    // The server knows of its end; the agent began anew and has forgotten.
    let over = json!({"status": {"phase": "Failed"}});
    assert_eq!(done(view(over.clone(), VolumesAre::Unasked, &[main_("a").runs()])), "stop a 30");
    assert_eq!(done(view(over.clone(), VolumesAre::Unasked, &[main_("a").ended(1)])), "release");
    assert_eq!(done(view(over, VolumesAre::Released, &[main_("a")])), "done");
}

/// "activeDeadlineSeconds."
#[test]
fn a_pod_that_runs_for_too_long() {
    let with = |seconds: i64| json!({"spec": {"activeDeadlineSeconds": seconds}});
    let running = [main_("a").runs()];
    assert_eq!(done(view(with(1010), VolumesAre::Mounted, &running)), "wait 10");
    assert_eq!(done(view(with(1000), VolumesAre::Mounted, &running)), "stop a 30");
    let ended = view(with(1000), VolumesAre::Going, &[main_("a").ended(143)]);
    let Step::Report(status) = decide(&ended, PACE, NOW) else { panic!("it is told") };
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("DeadlineExceeded")));
}
