//! Rules of the pod lifecycle as tables: each case has a state and the expected step. The rules are kubelet's.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::Pod;

use super::*;
use crate::pods::view::{Crash, Failed, Health, StartFailure};

const PACE: CrashBackoff = CrashBackoff { start: Duration::from_secs(10), max: Duration::from_secs(300) };
/// The wall clock has nothing to do with the monotonic clock.
const NOW: Time = Time(1_000_000);
const AT: Monotonic = Monotonic(3_000_000);

/// A container for a table: name and role, then its state.
#[derive(Clone)]
pub(in crate::pods) struct Row(pub(in crate::pods) ContainerView);

pub(in crate::pods) fn row(name: &str, role: Role) -> Row {
    Row(ContainerView {
        name: name.into(),
        role,
        run_state: RunState::None,
        ended_at: None,
        before: None,
        crash: Crash::default(),
        start_failure: None,
        stopping: None,
        probed_start: false,
        probed_ready: false,
        health: Health::default(),
    })
}

impl Row {
    pub(in crate::pods) fn runs(mut self) -> Self {
        let attempt = self.0.next_attempt();
        self.0.run_state = RunState::Running { id: format!("id{attempt}"), attempt, started: Time(0) };
        self
    }

    pub(in crate::pods) fn ended(mut self, code: i32) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        let finished = Some(Time(NOW.0 - 1000));
        self.0.ended_at = Some(Monotonic(AT.0 - 1000));
        self.0.run_state = RunState::Ended(Ended {
            id: "id0".into(),
            code,
            reason: reason.into(),
            started: Some(Time(0)),
            finished,
            ..Ended::default()
        });
        self
    }

    /// Exited before the last reboot.
    pub(in crate::pods) fn earlier(self) -> Self {
        self.with(|observed| match &mut observed.run_state {
            RunState::Ended(ended) => ended.earlier = true,
            run_state => panic!("{run_state:?}"),
        })
    }

    pub(in crate::pods) fn with(mut self, change: impl FnOnce(&mut ContainerView)) -> Self {
        change(&mut self.0);
        self
    }
}

pub(in crate::pods) fn view(pod: Value, volumes: VolumesState, rows: &[Row]) -> View {
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
        first_seen: Time(0),
        volumes,
        containers: rows.iter().map(|row| row.0.clone()).collect(),
        reported: None,
        deleted: false,
        evicted: None,
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

/// The next step as a short string. A status update is applied first.
fn done(mut view: View) -> String {
    let mut step = decide(&view, PACE, NOW, AT);
    if let Step::Report(status) = step {
        view.reported = Some(*status);
        step = decide(&view, PACE, NOW, AT);
    }
    match step {
        Step::Start { container, attempt } => format!("start {container} {attempt}"),
        Step::RecordBackOff { container, .. } => format!("backoff {container}"),
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
fn containers_start_after_volumes_are_mounted() {
    for (volumes, expected) in [
        (VolumesState::Unrequested, "requestvolumes"),
        (VolumesState::Requested, "done"),
        (VolumesState::Mounted, "start a 0"),
        // It was terminating, and is not any more: the API server did not accept its end.
        (VolumesState::Released, "requestvolumes"),
    ] {
        assert_eq!(done(view(json!({}), volumes, &[main_("a")])), expected, "{volumes:?}");
    }
    // After an agent restart, running containers are left alone while volumes are resolved.
    assert_eq!(done(view(json!({}), VolumesState::Requested, &[main_("a").runs(), main_("b")])), "done");
}

/// "Init containers, sidecars, then all others."
#[test]
fn init_containers_and_sidecars_start_before_main_containers() {
    let started = |row: Row| {
        row.runs().with(|observed| (observed.probed_start, observed.health.started) = (true, true))
    };
    let starting = |row: Row| row.runs().with(|observed| observed.probed_start = true);
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
        // After main containers were started, init containers do not run again, whatever their exit code.
        ("Always", vec![init("i").ended(1), main_("a").runs()], "done"),
        ("Always", vec![init("i"), main_("a").ended(1)], "start a 1"),
        // Unless the node rebooted: what they did in memory is lost.
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
        (
            "Always",
            vec![sidecar("s").runs().with(|observed| observed.health.post_start_running = true), main_("a")],
            "done",
        ),
        // A sidecar is restarted whatever the policy, also while main containers run.
        ("Never", vec![sidecar("s").ended(0), main_("a").runs()], "start s 1"),
        ("Never", vec![sidecar("s").ended(0), init("i"), main_("a")], "start s 1"),
        ("Never", vec![starting(sidecar("s")), main_("a").runs(), main_("b")], "start b 0"),
    ] {
        let names: Vec<_> = rows.iter().map(|row| (row.0.name.clone(), row.0.run_state.clone())).collect();
        assert_eq!(
            done(view(policy(policy_of), VolumesState::Mounted, &rows)),
            expected,
            "{policy_of} {names:?}"
        );
    }
}

/// "Restart policy."
#[test]
fn restart_policy_decides_restarts() {
    for (policy_of, code, expected) in [
        ("Always", 0, "start a 1"),
        ("Always", 1, "start a 1"),
        ("OnFailure", 1, "start a 1"),
        ("OnFailure", 0, "done"),
        ("Never", 1, "done"),
        ("Never", 0, "done"),
    ] {
        let rows = [main_("a").ended(code), main_("b").runs()];
        assert_eq!(
            done(view(policy(policy_of), VolumesState::Mounted, &rows)),
            expected,
            "{policy_of} {code}"
        );
    }
}

/// "CrashLoopBackOff: 10 s, doubled up to 5 min", recorded once.
#[test]
fn crash_loop_backs_off_and_records_one_event() {
    let crashed = |reported: bool| {
        main_("a").ended(1).with(|observed| {
            observed.crash.begin(PACE, Monotonic(0), Monotonic(AT.0 - 2000));
            observed.crash.reported_attempt = reported.then_some(0);
        })
    };
    assert_eq!(done(view(json!({}), VolumesState::Mounted, &[crashed(false)])), "backoff a");
    assert_eq!(done(view(json!({}), VolumesState::Mounted, &[crashed(true)])), "wait 9");
    // A container in backoff does not block others.
    assert_eq!(done(view(json!({}), VolumesState::Mounted, &[crashed(true), main_("b")])), "start b 0");
    let start_failure = |delay: i64| {
        let retry_at = Monotonic(AT.0 + delay);
        main_("a").with(|observed| {
            observed.start_failure = Some(StartFailure {
                reason: "CreateContainerConfigError",
                message: "no".into(),
                retry_at,
                count: 1,
            });
        })
    };
    assert_eq!(done(view(json!({}), VolumesState::Mounted, &[start_failure(5000), crashed(true)])), "wait 5");
    assert_eq!(done(view(json!({}), VolumesState::Mounted, &[start_failure(0)])), "start a 0");
}

/// "Liveness, startup and hooks: the container is stopped, and restarted as usual."
#[test]
fn failed_probe_or_hook_stops_the_container() {
    let unwell = |grace: Option<u64>| {
        let grace = grace.map(Duration::from_secs);
        main_("a").runs().with(|observed| observed.health.failed = Some(Failed { note: "x".into(), grace }))
    };
    for (row, expected) in [
        (unwell(None), "stop a 30"),
        (unwell(Some(5)), "stop a 5"),
        (unwell(Some(0)), "stop a 2"),
        (unwell(None).with(|observed| observed.stopping = Some(NOW)), "done"),
    ] {
        assert_eq!(done(view(json!({}), VolumesState::Mounted, &[row])), expected);
    }
}

fn deleted_at(seconds: i64) -> Value {
    json!({"metadata": {"deletionTimestamp": Time(NOW.0 + seconds * 1000).to_string()}})
}

/// "Graceful end: all but sidecars, then these from the last to the first, each within what is left."
#[test]
fn main_containers_stop_before_sidecars_within_the_grace_period() {
    let stopping = |row: Row, seconds: i64| {
        row.runs().with(|observed| observed.stopping = Some(Time(NOW.0 + seconds * 1000)))
    };
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
        // Nothing is started any more.
        (30, vec![main_("a"), main_("b").ended(1)], "release"),
    ] {
        let names: Vec<_> = rows.iter().map(|row| (row.0.name.clone(), row.0.stopping)).collect();
        assert_eq!(done(view(deleted_at(left), VolumesState::Mounted, &rows)), expected, "{left} {names:?}");
    }
}

/// "Containers exit, volumes are released, the status is written, the pod is deleted with grace 0", in this order.
#[test]
fn deleted_pod_releases_volumes_then_is_removed() {
    let ended = [main_("a").ended(0)];
    for (volumes, expected) in [
        (VolumesState::Unrequested, "release"),
        (VolumesState::Requested, "release"),
        (VolumesState::Mounted, "release"),
        (VolumesState::Releasing, "done"),
        (VolumesState::Released, "delete"),
    ] {
        assert_eq!(done(view(deleted_at(30), volumes, &ended)), expected, "{volumes:?}");
    }
    let unreported = view(deleted_at(30), VolumesState::Released, &ended);
    assert!(
        matches!(decide(&unreported, PACE, NOW, AT), Step::Report(_)),
        "its last status is written first"
    );
    let mut waits = view(deleted_at(30), VolumesState::Released, &ended);
    waits.deleted = true;
    assert_eq!(done(waits), "done", "held by a finalizer: deleted once");
    let mut gone = view(json!({}), VolumesState::Released, &ended);
    gone.gone = true;
    assert_eq!(done(gone), "dropstate");
    let mut gone = view(json!({}), VolumesState::Mounted, &[main_("a").runs()]);
    gone.gone = true;
    assert_eq!(done(gone), "stop a 2", "gone from the API: no grace period");
}

/// "A terminal phase is final": its sidecars stop, its volumes are released, and it is not deleted.
#[test]
fn terminated_pod_stops_sidecars_and_releases_volumes() {
    for (policy_of, rows, volumes, expected) in [
        ("Never", vec![main_("a").ended(0)], VolumesState::Mounted, "release"),
        ("Never", vec![main_("a").ended(1)], VolumesState::Released, "done"),
        ("OnFailure", vec![main_("a").ended(0)], VolumesState::Mounted, "release"),
        ("Never", vec![sidecar("s").runs(), main_("a").ended(0)], VolumesState::Mounted, "stop s 30"),
        ("Never", vec![main_("a").ended(0), main_("b").runs()], VolumesState::Mounted, "done"),
    ] {
        let names: Vec<_> = rows.iter().map(|row| row.0.run_state.clone()).collect();
        assert_eq!(done(view(policy(policy_of), volumes, &rows)), expected, "{policy_of} {names:?}");
    }
    // The API server has the terminal phase; the restarted agent has no state.
    let terminal = json!({"status": {"phase": "Failed"}});
    assert_eq!(done(view(terminal.clone(), VolumesState::Unrequested, &[main_("a").runs()])), "stop a 30");
    assert_eq!(done(view(terminal.clone(), VolumesState::Unrequested, &[main_("a").ended(1)])), "release");
    assert_eq!(done(view(terminal, VolumesState::Released, &[main_("a")])), "done");
}

/// "activeDeadlineSeconds."
#[test]
fn active_deadline_fails_the_pod() {
    let with = |seconds: i64| json!({"spec": {"activeDeadlineSeconds": seconds}});
    let running = [main_("a").runs()];
    assert_eq!(done(view(with(1010), VolumesState::Mounted, &running)), "wait 10");
    assert_eq!(done(view(with(1000), VolumesState::Mounted, &running)), "stop a 30");
    let ended = view(with(1000), VolumesState::Releasing, &[main_("a").ended(143)]);
    let Step::Report(status) = decide(&ended, PACE, NOW, AT) else { panic!("expected a status update") };
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("DeadlineExceeded")));
}

/// N-H2. kubelet: no grace period, then phase Failed with reason Evicted, and the message of the event.
#[test]
fn pod_over_a_limit_is_stopped_and_fails_as_evicted() {
    let evicted = |rows: &[Row], volumes| View {
        evicted: Some("Usage of EmptyDir volume".into()),
        ..view(json!({"status": {"phase": "Running"}}), volumes, rows)
    };
    let running = evicted(&[row("a", Role::Main).runs()], VolumesState::Mounted);
    match decide(&running, PACE, NOW, AT) {
        Step::Stop { containers, by, .. } => {
            assert_eq!((containers, by), (vec!["a".to_owned()], NOW.plus(MIN_GRACE)));
        }
        step => panic!("{step:?}"),
    }
    // A container that already stops is killed earlier.
    let stopping = evicted(
        &[row("a", Role::Main).runs().with(|observed| observed.stopping = Some(NOW.plus(MIN_GRACE * 10)))],
        VolumesState::Mounted,
    );
    assert!(matches!(decide(&stopping, PACE, NOW, AT), Step::Stop { .. }));
    // Not restarted, although the policy is Always.
    let exited = evicted(&[row("a", Role::Main).ended(137)], VolumesState::Mounted);
    assert_eq!(decide(&exited, PACE, NOW, AT), Step::Release);
    let released = evicted(&[row("a", Role::Main).ended(137)], VolumesState::Released);
    let Step::Report(status) = decide(&released, PACE, NOW, AT) else { panic!("no report") };
    assert_eq!(
        (&status["phase"], &status["reason"], &status["message"]),
        (&json!("Failed"), &json!("Evicted"), &json!("Usage of EmptyDir volume"))
    );
    // A deleted pod is only deleted.
    let deleted = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}});
    let deleted = View { evicted: Some("m".into()), ..view(deleted, VolumesState::Mounted, &[]) };
    assert_eq!(termination_cause(&deleted, NOW), Some(TerminationCause::Deleted));
}
