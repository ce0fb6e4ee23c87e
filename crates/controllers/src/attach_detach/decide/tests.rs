//! The rules as tables. Cases named `Test_…` state what upstream's test of that name asserts.

use std::time::Duration;

use serde_json::json;
use wharf_cluster::Backoff;

use super::super::memory::{Failure, Memory, Unheard, take_back};
use super::super::testing::{VOLUME, World, name};
use super::*;

mod leaving;

const MINUTES_6: i64 = 360_000;
const MINUTES_2: i64 = 120_000;

fn rest(reports: &[&str], again: Option<i64>) -> Step {
    let again = again.map(|again| Duration::from_millis(again.unsigned_abs()));
    Step::Rest { reports: reports.iter().map(|&node| node.to_owned()).collect(), again }
}

fn attach(node: &str) -> Step {
    Step::Attach { node: node.into(), volume: VOLUME.into() }
}

fn detach(node: &str, proof: Proof) -> Step {
    Step::Detach { node: node.into(), attachment: name().attachment(node), uid: format!("va-{node}"), proof }
}

fn multi_attach(node: &str, others: &[&str]) -> Step {
    let nodes = others.iter().map(|&node| node.to_owned()).collect();
    Step::Tell { node: node.into(), news: News::MultiAttach { nodes } }
}

fn silence(node: &str, standing: Standing) -> Step {
    Step::Tell { node: node.into(), news: News::Silence { standing } }
}

fn unwanted() -> Memory {
    Memory { unwanted_since: Some(Time(0)), ..Memory::default() }
}

fn asked() -> Memory {
    Memory { asked_since: Some(Time(0)), ..Memory::default() }
}

fn check(cases: impl IntoIterator<Item = (&'static str, World, i64, Step)>) {
    for (rule, world, now, step) in cases {
        let now = Time(now);
        let mut view = world.view(now);
        if let Step::Detach { node, .. } = &step {
            // No end is asked for that was not announced.
            assert_eq!(decide(&view, now), Step::Announce { node: node.clone() }, "{rule}");
            view.places.get_mut(node).unwrap().memory.announced = true;
        }
        assert_eq!(decide(&view, now), step, "{rule}");
    }
}

const UNUSED: Proof = Proof::NotInUse;
const TIMEOUT: Proof = Proof::Forced(Force::Timeout);
const OUT_OF_SERVICE: Proof = Proof::Forced(Force::OutOfService);

/// kubernetes.md 1.3 "Attach", "Nodes that count", "Node gone", "Node status".
#[test]
fn what_comes() {
    let one = || World::exclusive().node("a");
    check([
        ("Test_Run_Positive_DoNothing", World::exclusive(), 0, rest(&[], None)),
        ("Test_Run_Positive_OneDesiredVolumeAttach", one().pod("p", "a"), 0, attach("a")),
        ("no annotation, no attach", one().unmanaged("a").pod("p", "a"), 0, rest(&[], None)),
        ("no Node, no attach", World::exclusive().pod("p", "a"), 0, rest(&[], None)),
        (
            "also to a node that is not well: the scheduler chose it",
            one().unready("a").pod("p", "a"),
            0,
            attach("a"),
        ),
        ("wait for the attacher", one().pod("p", "a").uncertain("a"), 0, rest(&[], Some(MINUTES_2))),
        (
            "CSI attach wait: 2 min",
            one().pod("p", "a").uncertain("a").remember("a", asked()),
            MINUTES_2,
            silence("a", Standing::Uncertain),
        ),
        ("attached: the node is told", one().pod("p", "a").attached("a"), 0, rest(&["a"], None)),
        ("attached and told", one().pod("p", "a").attached("a").reported("a"), 0, rest(&[], None)),
        (
            "VerifyVolumesAreAttached: told, and not attached any more",
            one().pod("p", "a").uncertain("a").reported("a"),
            0,
            rest(&["a"], Some(MINUTES_2)),
        ),
        (
            "VerifyVolumesAreAttached: told, and no attachment",
            one().pod("p", "a").reported("a"),
            0,
            attach("a"),
        ),
        (
            "VA with deletionTimestamp: wait for its end",
            one().pod("p", "a").going("a"),
            0,
            rest(&[], Some(MINUTES_2)),
        ),
        (
            "VA with deletionTimestamp: volume attachment is being deleted",
            one().pod("p", "a").going("a").remember("a", asked()),
            MINUTES_2,
            silence("a", Standing::Going),
        ),
        (
            "a going attachment is withdrawn",
            one().pod("p", "a").going("a").reported("a"),
            0,
            rest(&["a"], Some(MINUTES_2)),
        ),
        (
            "a Node that is away for a moment",
            World::exclusive().pod("p", "a").attached("a"),
            0,
            rest(&[], None),
        ),
        (
            "an annotation that is gone takes nothing away",
            one().unmanaged("a").pod("p", "a").attached("a").reported("a"),
            0,
            rest(&[], None),
        ),
    ]);
}

/// kubernetes.md 1.3 "Attachment fails": at once; each failure is told once.
#[test]
fn what_the_attacher_says_is_told() {
    let error = |message: &str, time: i64| {
        let error = json!({"message": message, "time": Time(time).to_string()});
        World::exclusive().node("a").pod("p", "a").attachment("a", json!({"status": {"attachError": error}}))
    };
    let told = |message: &str, time: i64| Memory {
        told_error: Some((message.to_owned(), Some(Time(time)))),
        ..asked()
    };
    let tell = |message: &str, time: i64| Step::Tell {
        node: "a".into(),
        news: News::Failed { message: message.into(), at: Some(Time(time)) },
    };
    check([
        ("new", error("no", 1000), 0, tell("no", 1000)),
        ("told", error("no", 1000).remember("a", told("no", 1000)), 0, rest(&[], None)),
        ("the attacher tried again", error("no", 2000).remember("a", told("no", 1000)), 0, tell("no", 2000)),
        ("something else", error("never", 1000).remember("a", told("no", 1000)), 0, tell("never", 1000)),
        (
            "long after: it was told",
            error("no", 1000).remember("a", told("no", 1000)),
            MINUTES_6,
            rest(&[], None),
        ),
    ]);
}

/// kubernetes.md 1.3 "Multi-Attach", "Many nodes". Test_Run_OneVolumeAttachAndDetachMultipleNodesWith….
#[test]
fn one_node_or_many() {
    let two = |world: World| world.node("a").node("b").pod("p", "a").pod("q", "b");
    let told = || Memory { told_multi_attach: true, blocked_since: Some(Time(0)), ..Memory::default() };
    check([
        ("ReadWriteMany: the first", two(World::shared()), 0, attach("a")),
        (
            "ReadWriteMany: the second beside it",
            two(World::shared()).attached("a").reported("a"),
            0,
            attach("b"),
        ),
        (
            "ReadWriteMany: both",
            two(World::shared()).attached("a").reported("a").attached("b"),
            0,
            rest(&["b"], None),
        ),
        ("ReadOnlyMany", two(World::new(&["ReadOnlyMany"])).attached("a").reported("a"), 0, attach("b")),
        (
            "many among others",
            two(World::new(&["ReadWriteOnce", "ReadOnlyMany"])).attached("a").reported("a"),
            0,
            attach("b"),
        ),
        (
            "no access modes: the driver has to know",
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
            "a mode of tomorrow is for one node",
            two(World::new(&["ReadWriteTwice"])).attached("a").reported("a"),
            0,
            multi_attach("b", &["a"]),
        ),
        (
            "ReadWriteOnce: who came first",
            World::exclusive().node("a").node("b").pod("p", "b").pod("q", "a"),
            0,
            attach("b"),
        ),
        (
            "ReadWriteOnce: the second is told at once, since the first is used",
            two(World::exclusive()).attached("a").reported("a"),
            0,
            multi_attach("b", &["a"]),
        ),
        (
            "ReadWriteOnce: the second is told once",
            two(World::exclusive()).attached("a").reported("a").remember("b", told()),
            MINUTES_6,
            rest(&[], None),
        ),
        (
            "ReadWriteOnce: the first, which is not attached yet, is in the way",
            two(World::exclusive()).uncertain("a").remember("b", told()),
            0,
            rest(&[], Some(MINUTES_2)),
        ),
        (
            "two pods on one node are no trouble",
            World::exclusive().node("a").pod("p", "a").pod("q", "a").attached("a").reported("a"),
            0,
            rest(&[], None),
        ),
        ("after the first has gone", World::exclusive().node("a").node("b").pod("q", "b"), 0, attach("b")),
    ]);
}

/// kubernetes.md 1.3 "Detach before attach"; kubernetes#96142: a move to another node is no error.
#[test]
fn a_move_to_another_node() {
    let moves = || World::exclusive().node("a").node("b").pod("q", "b");
    let blocked = || Memory { blocked_since: Some(Time(0)), ..Memory::default() };
    check([
        ("the old node is told", moves().attached("a").reported("a"), 0, rest(&["a"], Some(30_000))),
        ("the old attachment goes", moves().attached("a"), 0, detach("a", UNUSED)),
        ("the attacher works", moves().going("a"), 0, rest(&[], Some(30_000))),
        (
            "the old node still uses it",
            moves().attached("a").reported("a").in_use("a"),
            0,
            rest(&[], Some(30_000)),
        ),
        (
            "for long",
            moves().attached("a").reported("a").in_use("a").remember("b", blocked()),
            30_000,
            multi_attach("b", &["a"]),
        ),
        (
            "by upstream at once",
            moves().attached("a").reported("a").in_use("a").upstream(),
            0,
            multi_attach("b", &["a"]),
        ),
        (
            "the attacher takes long",
            moves().going("a").remember("b", blocked()),
            30_000,
            multi_attach("b", &["a"]),
        ),
        ("then the new one", moves(), 0, attach("b")),
    ]);
}

/// kubernetes.md 1.3 "Left behind", "Detach failed".
/// Test_Run_OneVolumeAttachAndDetach{Uncertain,Timeout}NodesWithReadWriteOnce: an attachment that may be there goes
/// before another comes; upstream then only tries.
#[test]
fn uncertain_attachments() {
    let world = || World::exclusive().node("a").node("b").pod("q", "b");
    let failed_end = || {
        let deleted =
            json!({"deletionTimestamp": Time(0).to_string(), "finalizers": ["external-attacher/d-test"]});
        let status = json!({"attached": true, "detachError": {"message": "no"}});
        world().attachment("a", json!({"metadata": deleted, "status": status}))
    };
    let in_way = Some(30_000);
    check([
        ("uncertain: detached first", world().uncertain("a"), 0, detach("a", UNUSED)),
        (
            "uncertain: detached first, by upstream too",
            world().uncertain("a").upstream(),
            0,
            detach("a", UNUSED),
        ),
        (
            "Test_Run_OneVolumeDetachFail…: its end failed, and it is not told again",
            failed_end(),
            0,
            rest(&[], in_way),
        ),
        ("its end failed: by upstream the other comes", failed_end().upstream(), 0, attach("b")),
        ("its end takes long", world().going("a").remember("a", unwanted()), MINUTES_2, rest(&[], in_way)),
        (
            "its end takes long: by upstream the other comes",
            world().going("a").remember("a", unwanted()).upstream(),
            MINUTES_2,
            attach("b"),
        ),
        (
            "its end does not take long, by upstream",
            world().going("a").remember("a", unwanted()).upstream(),
            MINUTES_2 - 1,
            rest(&[], Some(1)),
        ),
    ]);
}

/// kubernetes.md 1.3 "Pauses": a request that the server did not take makes its node wait, and no other.
#[test]
fn failures_hold_up_themselves_alone() {
    let failure = || Memory {
        failure: Some(Failure { at: Time(1000), pause: Duration::from_millis(500), count: 1 }),
        unwanted_since: Some(Time(0)),
        ..Memory::default()
    };
    let two = || World::shared().node("a").node("b").pod("p", "a").pod("q", "b");
    check([
        ("the other goes on", two().remember("a", failure()), 1000, attach("b")),
        ("both wait", two().remember("a", failure()).remember("b", failure()), 1100, rest(&[], Some(400))),
        ("the pause is over", two().remember("a", failure()), 1500, attach("a")),
        ("a clock that went back", two().remember("a", failure()), 0, attach("a")),
        (
            "a detach that failed",
            World::shared().node("a").attached("a").remember("a", failure()),
            1200,
            rest(&[], Some(300)),
        ),
        (
            "and is tried again",
            World::shared().node("a").attached("a").remember("a", failure()),
            1500,
            detach("a", UNUSED),
        ),
    ]);
}

/// kubernetes#77324: a request without an answer is not taken for one that did not arrive.
#[test]
fn requests_without_an_answer() {
    let unheard = |made| Memory { unheard: Some(Unheard { since: Time(0), made }), ..Memory::default() };
    let failed = |at| Memory {
        failure: Some(Failure { at: Time(at), pause: Duration::from_millis(500), count: 1 }),
        ..unheard(true)
    };
    let moved = || World::exclusive().node("a").node("b").pod("q", "b");
    let ask = || Step::Ask { node: "a".into() };
    let pod = || World::exclusive().node("a").pod("p", "a");
    check([
        ("it may be on the node", moved().remember("a", unheard(true)), 0, rest(&[], Some(30_000))),
        ("by upstream it is not", moved().remember("a", unheard(true)).upstream(), 0, attach("b")),
        ("until nothing arrives any more", moved().remember("a", unheard(true)), 59_999, rest(&[], Some(1))),
        ("then the server knows", moved().remember("a", unheard(true)), 60_000, ask()),
        ("it did not say", moved().remember("a", failed(60_000)), 60_000, rest(&[], Some(500))),
        ("it is asked again", moved().remember("a", failed(60_000)), 60_500, ask()),
        ("it is asked before the next attempt", pod().remember("a", failed(59_500)), 60_000, ask()),
        ("who still wants it asks for it again", pod().remember("a", unheard(true)), 0, attach("a")),
        ("it is there", pod().uncertain("a").remember("a", unheard(true)), 0, rest(&[], Some(MINUTES_2))),
        (
            "its end may come: the node is not told",
            pod().attached("a").remember("a", unheard(false)),
            0,
            rest(&[], Some(60_000)),
        ),
        ("its end may have come", pod().attached("a").remember("a", unheard(false)), 60_000, ask()),
        ("its end has come", pod().remember("a", unheard(false)), 0, attach("a")),
        (
            "its end is asked for again",
            World::exclusive().node("a").attached("a").remember("a", unheard(false)),
            0,
            detach("a", UNUSED),
        ),
    ]);
}

/// kubernetes.md 1.3 "Pauses": 500 ms, doubled, 2m2s.
#[test]
fn pauses_grow() {
    let backoff = Backoff { jitter: || 0.0, ..super::super::Settings::default().pace.backoff() };
    let mut memory = Memory::default();
    let pauses: Vec<u64> = (0..10)
        .map(|_| {
            memory.has_failed(backoff, Time(0));
            u64::try_from(memory.failure.unwrap().pause.as_millis()).unwrap()
        })
        .collect();
    assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
}

/// kubernetes.md 1.3 "Told first", "Detach failed". actual_state_of_world_test: Test_MarkVolumeAs…,
/// Test_RemoveVolumeFromReportAsAttached….
#[test]
fn what_a_node_is_told_of_a_volume() {
    use Report::{Hide, Keep, Show};
    let one = || World::exclusive().node("a");
    let strange = || {
        let mut world = one().pod("p", "a").attached("a");
        world.known.claims.clear();
        world
    };
    let orphaned = || {
        let mut world = one().attached("a");
        world.known.volumes.clear();
        world
    };
    for (rule, world, report) in [
        ("wanted, absent", one().pod("p", "a"), Hide),
        ("wanted, uncertain", one().pod("p", "a").uncertain("a"), Hide),
        ("wanted, going", one().pod("p", "a").going("a"), Hide),
        ("wanted, attached", one().pod("p", "a").attached("a"), Show),
        ("unwanted, absent", one().reported("a"), Hide),
        ("unwanted, uncertain", one().uncertain("a"), Hide),
        ("unwanted, going", one().going("a"), Hide),
        ("unwanted, attached, unused", one().attached("a"), Hide),
        ("unwanted, attached, in use", one().attached("a").in_use("a"), Keep),
        ("unwanted, attached, in use, not well", one().attached("a").in_use("a").unready("a"), Keep),
        (
            "unwanted, attached, in use, out of service",
            one().attached("a").in_use("a").unready("a").tainted("a"),
            Hide,
        ),
        ("the pod's claim is gone", strange(), Keep),
        ("the volume is not known", orphaned(), Keep),
    ] {
        let view = world.view_beside(Time(0), &["a"]);
        assert_eq!(super::report(&view, "a", Time(0)), report, "{rule}");
    }
}

/// While the end of an attachment is asked for, a pod that comes is not told that it is there. After that it is.
#[test]
fn what_was_announced() {
    let announced = Memory { announced: true, ..Memory::default() };
    let world = World::exclusive().node("a").pod("p", "a").attached("a").remember("a", announced);
    let mut view = world.view(Time(0));
    assert_eq!(super::report(&view, "a", Time(0)), Report::Hide);
    take_back(&mut view);
    assert_eq!(super::report(&view, "a", Time(0)), Report::Show);
}

/// Without a PersistentVolume nobody knows who wants it: it stays.
#[test]
fn an_unknown_volume_stays() {
    let mut world = World::exclusive().node("a").attached("a").remember("a", unwanted());
    world.known.volumes.clear();
    check([("nothing is detached", world, MINUTES_6 * 9, rest(&[], None))]);
}
