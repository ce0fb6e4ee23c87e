//! The rules as tables. A case named `Test_…` asserts what upstream's test of that name asserts.

use std::time::Duration;

use serde_json::json;
use wharf_cluster::Backoff;

use super::super::state::{AttachState, Failure, UnconfirmedRequest, cancel_announcements};
use super::super::testing::{VOLUME, World, name};
use super::*;

mod detach_timing;

const MINUTES_6: i64 = 360_000;
const MINUTES_2: i64 = 120_000;

fn idle(reports: &[&str], requeue_after: Option<i64>) -> Step {
    let requeue_after =
        requeue_after.map(|requeue_after| Duration::from_millis(requeue_after.unsigned_abs()));
    Step::Idle { reports: reports.iter().map(|&node| node.to_owned()).collect(), requeue_after }
}

fn attach(node: &str) -> Step {
    Step::Attach { node: node.into(), volume: VOLUME.into() }
}

fn detach(node: &str, reason: DetachReason) -> Step {
    Step::Detach {
        node: node.into(),
        attachment: name().attachment_name(node),
        uid: format!("va-{node}"),
        reason,
    }
}

fn multi_attach(node: &str, others: &[&str]) -> Step {
    let nodes = others.iter().map(|&node| node.to_owned()).collect();
    Step::RecordEvent { node: node.into(), event: PodEvent::MultiAttach { nodes } }
}

fn timeout(node: &str, phase: AttachmentPhase) -> Step {
    Step::RecordEvent { node: node.into(), event: PodEvent::Timeout { phase } }
}

fn unwanted() -> AttachState {
    AttachState { unwanted_since: Some(Monotonic(0)), ..AttachState::default() }
}

fn waiting() -> AttachState {
    AttachState { waiting_since: Some(Monotonic(0)), ..AttachState::default() }
}

fn check(cases: impl IntoIterator<Item = (&'static str, World, i64, Step)>) {
    for (rule, world, now, step) in cases {
        let now = Monotonic(now);
        let mut view = world.view(now);
        if let Step::Detach { node, .. } = &step {
            // Every detach is announced first.
            assert_eq!(decide(&view, now), Step::Announce { node: node.clone() }, "{rule}");
            view.nodes.get_mut(node).unwrap().state.announced = true;
        }
        assert_eq!(decide(&view, now), step, "{rule}");
    }
}

const UNUSED: DetachReason = DetachReason::NotInUse;
const TIMEOUT: DetachReason = DetachReason::Forced(ForceReason::Timeout);
const OUT_OF_SERVICE: DetachReason = DetachReason::Forced(ForceReason::OutOfService);

/// kubernetes.md 1.3 "Attach", "Relevant nodes", "Node deleted", "Node status".
#[test]
fn wanted_volume_is_attached_and_reported() {
    let one = || World::exclusive().node("a");
    check([
        ("Test_Run_Positive_DoNothing", World::exclusive(), 0, idle(&[], None)),
        ("Test_Run_Positive_OneDesiredVolumeAttach", one().pod("p", "a"), 0, attach("a")),
        ("no annotation, no attach", one().unmanaged("a").pod("p", "a"), 0, idle(&[], None)),
        ("no Node, no attach", World::exclusive().pod("p", "a"), 0, idle(&[], None)),
        (
            "also to a node that is not Ready: the scheduler chose it",
            one().unready("a").pod("p", "a"),
            0,
            attach("a"),
        ),
        ("wait for the attacher", one().pod("p", "a").uncertain("a"), 0, idle(&[], Some(MINUTES_2))),
        (
            "CSI attach wait: 2 min",
            one().pod("p", "a").uncertain("a").with_state("a", waiting()),
            MINUTES_2,
            timeout("a", AttachmentPhase::Uncertain),
        ),
        ("attached: the node's status is updated", one().pod("p", "a").attached("a"), 0, idle(&["a"], None)),
        ("attached and reported", one().pod("p", "a").attached("a").reported("a"), 0, idle(&[], None)),
        (
            "VerifyVolumesAreAttached: reported, and no longer attached",
            one().pod("p", "a").uncertain("a").reported("a"),
            0,
            idle(&["a"], Some(MINUTES_2)),
        ),
        (
            "VerifyVolumesAreAttached: reported, and no attachment",
            one().pod("p", "a").reported("a"),
            0,
            attach("a"),
        ),
        (
            "VA with deletionTimestamp: wait for its deletion",
            one().pod("p", "a").detaching("a"),
            0,
            idle(&[], Some(MINUTES_2)),
        ),
        (
            "VA with deletionTimestamp: volume attachment is being deleted",
            one().pod("p", "a").detaching("a").with_state("a", waiting()),
            MINUTES_2,
            timeout("a", AttachmentPhase::Detaching),
        ),
        (
            "an attachment that is being deleted is no longer reported",
            one().pod("p", "a").detaching("a").reported("a"),
            0,
            idle(&["a"], Some(MINUTES_2)),
        ),
        ("Node missing for a moment", World::exclusive().pod("p", "a").attached("a"), 0, idle(&[], None)),
        (
            "a removed annotation detaches nothing",
            one().unmanaged("a").pod("p", "a").attached("a").reported("a"),
            0,
            idle(&[], None),
        ),
    ]);
}

/// kubernetes.md 1.3 "Attach error": an event at once, and once for each failure.
#[test]
fn attach_error_records_one_event() {
    let error = |message: &str, time: i64| {
        let error = json!({"message": message, "time": Time(time).to_string()});
        World::exclusive().node("a").pod("p", "a").attachment("a", json!({"status": {"attachError": error}}))
    };
    let reported = |message: &str, time: i64| AttachState {
        reported_error: Some((message.to_owned(), Some(Time(time)))),
        ..waiting()
    };
    let event = |message: &str, time: i64| Step::RecordEvent {
        node: "a".into(),
        event: PodEvent::AttachFailed { message: message.into(), at: Some(Time(time)) },
    };
    check([
        ("new", error("no", 1000), 0, event("no", 1000)),
        ("already recorded", error("no", 1000).with_state("a", reported("no", 1000)), 0, idle(&[], None)),
        (
            "the attacher retried",
            error("no", 2000).with_state("a", reported("no", 1000)),
            0,
            event("no", 2000),
        ),
        (
            "another error",
            error("never", 1000).with_state("a", reported("no", 1000)),
            0,
            event("never", 1000),
        ),
        (
            "long after it was recorded",
            error("no", 1000).with_state("a", reported("no", 1000)),
            MINUTES_6,
            idle(&[], None),
        ),
    ]);
}

/// kubernetes.md 1.3 "Multi-Attach", "Multi-node volumes". Test_Run_OneVolumeAttachAndDetachMultipleNodesWith….
#[test]
fn access_modes_decide_on_second_node() {
    let two = |world: World| world.node("a").node("b").pod("p", "a").pod("q", "b");
    let reported = || AttachState {
        multi_attach_reported: true,
        blocked_since: Some(Monotonic(0)),
        ..AttachState::default()
    };
    check([
        ("ReadWriteMany: the first", two(World::shared()), 0, attach("a")),
        (
            "ReadWriteMany: the second alongside it",
            two(World::shared()).attached("a").reported("a"),
            0,
            attach("b"),
        ),
        (
            "ReadWriteMany: both",
            two(World::shared()).attached("a").reported("a").attached("b"),
            0,
            idle(&["b"], None),
        ),
        ("ReadOnlyMany", two(World::new(&["ReadOnlyMany"])).attached("a").reported("a"), 0, attach("b")),
        (
            "one of several modes allows many nodes",
            two(World::new(&["ReadWriteOnce", "ReadOnlyMany"])).attached("a").reported("a"),
            0,
            attach("b"),
        ),
        (
            "no access modes: left to the driver",
            two(World::new(&[])).attached("a").reported("a"),
            0,
            attach("b"),
        ),
        (
            "ReadWriteOncePod is for one node",
            two(World::new(&["ReadWriteOncePod"])).attached("a").reported("a"),
            0,
            multi_attach("b", &["a"]),
        ),
        (
            "an unknown mode is for one node",
            two(World::new(&["ReadWriteTwice"])).attached("a").reported("a"),
            0,
            multi_attach("b", &["a"]),
        ),
        (
            "ReadWriteOnce: the oldest pod first",
            World::exclusive().node("a").node("b").pod("p", "b").pod("q", "a"),
            0,
            attach("b"),
        ),
        (
            "ReadWriteOnce: Multi-Attach event at once, since pods use the first",
            two(World::exclusive()).attached("a").reported("a"),
            0,
            multi_attach("b", &["a"]),
        ),
        (
            "ReadWriteOnce: one Multi-Attach event",
            two(World::exclusive()).attached("a").reported("a").with_state("b", reported()),
            MINUTES_6,
            idle(&[], None),
        ),
        (
            "ReadWriteOnce: the first blocks although it is not attached yet",
            two(World::exclusive()).uncertain("a").with_state("b", reported()),
            0,
            idle(&[], Some(MINUTES_2)),
        ),
        (
            "two pods on one node do not conflict",
            World::exclusive().node("a").pod("p", "a").pod("q", "a").attached("a").reported("a"),
            0,
            idle(&[], None),
        ),
        (
            "after the first was detached",
            World::exclusive().node("a").node("b").pod("q", "b"),
            0,
            attach("b"),
        ),
    ]);
}

/// kubernetes.md 1.3 "Detach before attach"; kubernetes#96142: a move to another node is not an error.
#[test]
fn volume_is_detached_before_it_moves() {
    let moves = || World::exclusive().node("a").node("b").pod("q", "b");
    let blocked = || AttachState { blocked_since: Some(Monotonic(0)), ..AttachState::default() };
    check([
        (
            "the old node's status is updated",
            moves().attached("a").reported("a"),
            0,
            idle(&["a"], Some(30_000)),
        ),
        ("the old attachment is deleted", moves().attached("a"), 0, detach("a", UNUSED)),
        ("the attacher detaches", moves().detaching("a"), 0, idle(&[], Some(30_000))),
        (
            "the old node still uses it",
            moves().attached("a").reported("a").in_use("a"),
            0,
            idle(&[], Some(30_000)),
        ),
        (
            "the old node uses it for long",
            moves().attached("a").reported("a").in_use("a").with_state("b", blocked()),
            30_000,
            multi_attach("b", &["a"]),
        ),
        (
            "upstream: event at once",
            moves().attached("a").reported("a").in_use("a").upstream(),
            0,
            multi_attach("b", &["a"]),
        ),
        (
            "the attacher takes long",
            moves().detaching("a").with_state("b", blocked()),
            30_000,
            multi_attach("b", &["a"]),
        ),
        ("then it is attached to the new node", moves(), 0, attach("b")),
    ]);
}

/// kubernetes.md 1.3 "Initial state", "Detach failed".
/// Test_Run_OneVolumeAttachAndDetach{Uncertain,Timeout}NodesWithReadWriteOnce: an uncertain attachment is deleted
/// before another is created; upstream does not wait for its deletion.
#[test]
fn uncertain_attachment_blocks_other_nodes() {
    let world = || World::exclusive().node("a").node("b").pod("q", "b");
    let failed_detach = || {
        let deleted =
            json!({"deletionTimestamp": Time(0).to_string(), "finalizers": ["external-attacher/d-test"]});
        let status = json!({"attached": true, "detachError": {"message": "no"}});
        world().attachment("a", json!({"metadata": deleted, "status": status}))
    };
    let in_way = Some(30_000);
    check([
        ("uncertain: detached first", world().uncertain("a"), 0, detach("a", UNUSED)),
        ("uncertain: upstream detaches first too", world().uncertain("a").upstream(), 0, detach("a", UNUSED)),
        (
            "Test_Run_OneVolumeDetachFail…: detach failed, the volume is not reported again",
            failed_detach(),
            0,
            idle(&[], in_way),
        ),
        ("detach failed: upstream attaches to the other node", failed_detach().upstream(), 0, attach("b")),
        (
            "detach takes long",
            world().detaching("a").with_state("a", unwanted()),
            MINUTES_2,
            idle(&[], in_way),
        ),
        (
            "detach takes long: upstream attaches to the other node",
            world().detaching("a").with_state("a", unwanted()).upstream(),
            MINUTES_2,
            attach("b"),
        ),
        (
            "detach does not take long: upstream waits",
            world().detaching("a").with_state("a", unwanted()).upstream(),
            MINUTES_2 - 1,
            idle(&[], Some(1)),
        ),
    ]);
}

/// kubernetes.md 1.3 "Backoff": a failed request backs off its own node only.
#[test]
fn failure_backs_off_its_own_node_only() {
    let failure = || AttachState {
        failure: Some(Failure { at: Monotonic(1000), backoff: Duration::from_millis(500), count: 1 }),
        unwanted_since: Some(Monotonic(0)),
        ..AttachState::default()
    };
    let two = || World::shared().node("a").node("b").pod("p", "a").pod("q", "b");
    check([
        ("the other node continues", two().with_state("a", failure()), 1000, attach("b")),
        (
            "both wait",
            two().with_state("a", failure()).with_state("b", failure()),
            1100,
            idle(&[], Some(400)),
        ),
        ("the backoff is over", two().with_state("a", failure()), 1500, attach("a")),
        ("clock set back", two().with_state("a", failure()), 0, attach("a")),
        (
            "failed detach",
            World::shared().node("a").attached("a").with_state("a", failure()),
            1200,
            idle(&[], Some(300)),
        ),
        (
            "failed detach is retried",
            World::shared().node("a").attached("a").with_state("a", failure()),
            1500,
            detach("a", UNUSED),
        ),
    ]);
}

/// kubernetes#77324: a request without a response may have taken effect.
#[test]
fn unconfirmed_request_blocks_until_checked() {
    let unconfirmed = |create| AttachState {
        unconfirmed: Some(UnconfirmedRequest { since: Monotonic(0), create }),
        ..AttachState::default()
    };
    let failed = |at| AttachState {
        failure: Some(Failure { at: Monotonic(at), backoff: Duration::from_millis(500), count: 1 }),
        ..unconfirmed(true)
    };
    let moved = || World::exclusive().node("a").node("b").pod("q", "b");
    let check_attachment = || Step::CheckAttachment { node: "a".into() };
    let pod = || World::exclusive().node("a").pod("p", "a");
    check([
        ("it may be on the node", moved().with_state("a", unconfirmed(true)), 0, idle(&[], Some(30_000))),
        ("upstream assumes it is not", moved().with_state("a", unconfirmed(true)).upstream(), 0, attach("b")),
        (
            "until the request cannot take effect any more",
            moved().with_state("a", unconfirmed(true)),
            59_999,
            idle(&[], Some(1)),
        ),
        (
            "then the API server is read",
            moved().with_state("a", unconfirmed(true)),
            60_000,
            check_attachment(),
        ),
        ("the read failed", moved().with_state("a", failed(60_000)), 60_000, idle(&[], Some(500))),
        ("the read is retried", moved().with_state("a", failed(60_000)), 60_500, check_attachment()),
        (
            "the read comes before the next attempt",
            pod().with_state("a", failed(59_500)),
            60_000,
            check_attachment(),
        ),
        ("still wanted: the create is repeated", pod().with_state("a", unconfirmed(true)), 0, attach("a")),
        (
            "the attachment exists",
            pod().uncertain("a").with_state("a", unconfirmed(true)),
            0,
            idle(&[], Some(MINUTES_2)),
        ),
        (
            "the deletion may take effect: not reported",
            pod().attached("a").with_state("a", unconfirmed(false)),
            0,
            idle(&[], Some(60_000)),
        ),
        (
            "the deletion may have taken effect",
            pod().attached("a").with_state("a", unconfirmed(false)),
            60_000,
            check_attachment(),
        ),
        ("the attachment was deleted", pod().with_state("a", unconfirmed(false)), 0, attach("a")),
        (
            "the deletion is repeated",
            World::exclusive().node("a").attached("a").with_state("a", unconfirmed(false)),
            0,
            detach("a", UNUSED),
        ),
    ]);
}

/// kubernetes.md 1.3 "Backoff": 500 ms, doubled, 2m2s.
#[test]
fn backoff_doubles_up_to_its_maximum() {
    let backoff = Backoff { jitter: || 0.0, ..super::super::Settings::default().worker_options.backoff() };
    let mut state = AttachState::default();
    let pauses: Vec<u64> = (0..10)
        .map(|_| {
            state.fail_attempt(backoff, Monotonic(0));
            u64::try_from(state.failure.unwrap().backoff.as_millis()).unwrap()
        })
        .collect();
    assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
}

/// kubernetes.md 1.3 "Node status before detach", "Detach failed". actual_state_of_world_test: Test_MarkVolumeAs…,
/// Test_RemoveVolumeFromReportAsAttached….
#[test]
fn report_follows_attachment_phase_and_use() {
    use Report::{Hide, Keep, Show};
    let one = || World::exclusive().node("a");
    let without_claim = || {
        let mut world = one().pod("p", "a").attached("a");
        world.objects.claims.clear();
        world
    };
    let without_volume = || {
        let mut world = one().attached("a");
        world.objects.volumes.clear();
        world
    };
    for (rule, world, report) in [
        ("wanted, absent", one().pod("p", "a"), Hide),
        ("wanted, uncertain", one().pod("p", "a").uncertain("a"), Hide),
        ("wanted, detaching", one().pod("p", "a").detaching("a"), Hide),
        ("wanted, attached", one().pod("p", "a").attached("a"), Show),
        ("unwanted, absent", one().reported("a"), Hide),
        ("unwanted, uncertain", one().uncertain("a"), Hide),
        ("unwanted, detaching", one().detaching("a"), Hide),
        ("unwanted, attached, unused", one().attached("a"), Hide),
        ("unwanted, attached, in use", one().attached("a").in_use("a"), Keep),
        ("unwanted, attached, in use, not Ready", one().attached("a").in_use("a").unready("a"), Keep),
        (
            "unwanted, attached, in use, out of service",
            one().attached("a").in_use("a").unready("a").tainted("a"),
            Hide,
        ),
        ("the pod's claim was deleted", without_claim(), Keep),
        ("no PersistentVolume", without_volume(), Keep),
    ] {
        let view = world.view_with_nodes(Monotonic(0), &["a"]);
        assert_eq!(super::report(&view, "a", Monotonic(0)), report, "{rule}");
    }
}

/// While an announced detach is in flight, the volume is not reported for a new pod. Once it is cancelled, it is.
#[test]
fn announced_detach_hides_the_volume_until_cancelled() {
    let announced = AttachState { announced: true, ..AttachState::default() };
    let world = World::exclusive().node("a").pod("p", "a").attached("a").with_state("a", announced);
    let mut view = world.view(Monotonic(0));
    assert_eq!(super::report(&view, "a", Monotonic(0)), Report::Hide);
    cancel_announcements(&mut view);
    assert_eq!(super::report(&view, "a", Monotonic(0)), Report::Show);
}

/// Without a PersistentVolume its users are unknown: the volume stays attached.
#[test]
fn unknown_volume_is_not_detached() {
    let mut world = World::exclusive().node("a").attached("a").with_state("a", unwanted());
    world.objects.volumes.clear();
    check([("nothing is detached", world, MINUTES_6 * 9, idle(&[], None))]);
}
