//! When an unwanted volume may be detached.

use super::*;

/// kubernetes.md 1.3 "Node status before detach", "Ready node", "Attachment deletion": first the node's status is
/// updated, then the attachment is deleted.
#[test]
fn unwanted_volume_is_hidden_then_detached() {
    let one = || World::exclusive().node("a");
    check([
        (
            "Test_Run_Positive_…ThenDetachWithUnmountedVolume: status first",
            one().attached("a").reported("a"),
            0,
            idle(&["a"], None),
        ),
        ("Test_Run_Positive_…ThenDetachWithUnmountedVolume", one().attached("a"), 0, detach("a", UNUSED)),
        (
            "Test_Run_Negative_…UpdateStatusFail: not while it is reported",
            one().attached("a").reported("a").with_state("a", unwanted()),
            MINUTES_6 * 9,
            idle(&["a"], None),
        ),
        ("in use by a Ready node", one().attached("a").reported("a").in_use("a"), 0, idle(&[], None)),
        (
            "no timeout for a Ready node",
            one().attached("a").in_use("a").with_state("a", unwanted()),
            MINUTES_6 * 999,
            idle(&[], None),
        ),
        ("dangling, never attached", one().uncertain("a"), 0, detach("a", UNUSED)),
        (
            "dangling, attaching failed",
            one().attachment("a", json!({"status": {"attachError": {"message": "no"}}})),
            0,
            detach("a", UNUSED),
        ),
        ("already being deleted", one().detaching("a"), 0, idle(&[], None)),
        (
            "already being deleted, and still reported",
            one().detaching("a").reported("a"),
            0,
            idle(&["a"], None),
        ),
        ("no attachment, and still reported: nothing to detach", one().reported("a"), 0, idle(&[], None)),
        ("on a node without annotation", one().unmanaged("a").attached("a"), 0, detach("a", UNUSED)),
    ]);
}

/// kubernetes.md 1.3 "Forced detach", "Out of service", "Detach timer", "In use"; kubernetes#105341, kubernetes#69168.
#[test]
fn detach_is_forced_by_timeout_or_taint() {
    let healthy = || World::exclusive().node("a").attached("a").in_use("a");
    let unready = || healthy().unready("a");
    let disabled = |world: World| world.set(|settings| settings.disable_force_detach_on_timeout = true);
    let only = |driver: &'static str, seconds| {
        move |settings: &mut super::super::super::Settings| {
            settings.max_wait_by_driver = [(driver.to_owned(), Duration::from_secs(seconds))].into();
        }
    };
    check([
        ("Test_Run_Positive_…DetachWithMountedVolume: waits", unready(), 0, idle(&[], Some(MINUTES_6))),
        (
            "a moment before the timeout",
            unready().with_state("a", unwanted()),
            MINUTES_6 - 1,
            idle(&[], Some(1)),
        ),
        (
            "Test_Run_Positive_…DetachWithMountedVolume",
            unready().with_state("a", unwanted()),
            MINUTES_6,
            detach("a", TIMEOUT),
        ),
        (
            "the node's status is updated before a forced detach too",
            unready().reported("a").with_state("a", unwanted()),
            MINUTES_6,
            idle(&["a"], None),
        ),
        (
            "Test_Run_OneVolumeDetachOnUnhealthyNode: while it was Ready",
            healthy().with_state("a", unwanted()),
            MINUTES_6 * 2,
            idle(&[], None),
        ),
        (
            "Test_Run_OneVolumeDetachOnUnhealthyNode: the time counts from the last pod",
            unready().with_state("a", unwanted()),
            MINUTES_6 * 2,
            detach("a", TIMEOUT),
        ),
        (
            "Test_Run_…WithForceDetachOnUnmountDisabled",
            disabled(unready().with_state("a", unwanted())),
            MINUTES_6 * 2,
            idle(&[], None),
        ),
        (
            "Test_Run_…WithForceDetachOnUnmountDisabled: the taint",
            disabled(unready().tainted("a").with_state("a", unwanted())),
            MINUTES_6 * 2,
            detach("a", OUT_OF_SERVICE),
        ),
        (
            "Test_Run_OneVolumeDetachOnOutOfServiceTaintedNode",
            unready().tainted("a"),
            0,
            detach("a", OUT_OF_SERVICE),
        ),
        ("Test_Run_OneVolumeDetachOnNoOutOfServiceTaintedNode", unready(), 0, idle(&[], Some(MINUTES_6))),
        ("the taint on a Ready node is ignored", healthy().tainted("a"), 0, idle(&[], None)),
        ("upstream honours it", healthy().tainted("a").upstream(), 0, detach("a", OUT_OF_SERVICE)),
        (
            "setting for all drivers",
            unready().set(|settings| settings.max_wait_for_unmount = Duration::from_secs(5)),
            0,
            idle(&[], Some(5000)),
        ),
        ("setting for the driver", unready().set(only("d.test", 7)), 0, idle(&[], Some(7000))),
        ("setting for another driver", unready().set(only("e.test", 7)), 0, idle(&[], Some(MINUTES_6))),
        ("a deleted node may use it", World::exclusive().attached("a"), 0, idle(&[], Some(MINUTES_6))),
        (
            "a deleted node that used it",
            World::exclusive().attached("a").deleted_node("a", &[name().to_string()]),
            0,
            idle(&[], Some(MINUTES_6)),
        ),
        (
            "a deleted node that did not",
            World::exclusive().attached("a").deleted_node("a", &[]),
            0,
            detach("a", UNUSED),
        ),
        (
            "a deleted node after the timeout",
            World::exclusive().attached("a").with_state("a", unwanted()),
            MINUTES_6,
            detach("a", TIMEOUT),
        ),
        (
            "unused after the timeout: still verified",
            World::exclusive().node("a").attached("a").with_state("a", unwanted()),
            MINUTES_6,
            detach("a", UNUSED),
        ),
        (
            "upstream does not verify, even for a Ready node",
            World::exclusive().node("a").attached("a").with_state("a", unwanted()).upstream(),
            MINUTES_6,
            detach("a", TIMEOUT),
        ),
        ("clock set back", unready().with_state("a", unwanted()), -1000, idle(&[], Some(MINUTES_6 + 1000))),
    ]);
}

/// kubernetes.md 1.3 "Ready node", "Forced detach", "Out of service": every state of the node, with upstream's settings
/// and ours.
#[test]
fn detach_timing_in_every_node_state() {
    for bits in 0..64_u32 {
        let bit = |at: u32| bits & (1 << at) != 0;
        let (in_use, ready, tainted, expired) = (bit(0), bit(1), bit(2), bit(3));
        let (disabled, upstream) = (bit(4), bit(5));
        let mut world = World::exclusive().node("a").attached("a").with_state("a", unwanted());
        world = if in_use { world.in_use("a") } else { world };
        world = if ready { world } else { world.unready("a") };
        world = if tainted { world.tainted("a") } else { world };
        world = if upstream { world.upstream() } else { world };
        let world = world.set(|settings| settings.disable_force_detach_on_timeout = disabled);
        let now = Monotonic(if expired { MINUTES_6 } else { 0 });
        let view = world.view(now);
        let found = detach_timing(&view, &view.nodes["a"], now);
        let detaches = matches!(found, DetachTiming::Now(_));

        let force = !ready && expired && !disabled;
        let upstream_detaches = !in_use || force || tainted;
        let state = format!(
            "in_use {in_use} ready {ready} tainted {tainted} expired {expired} {disabled} {upstream}"
        );
        if upstream {
            assert_eq!(detaches, upstream_detaches, "{state}");
        } else {
            assert!(!detaches || upstream_detaches, "never sooner than upstream: {state}");
            assert!(!(detaches && in_use && ready), "never from a Ready node that uses it: {state}");
            assert_eq!(detaches, upstream_detaches && !(in_use && ready), "{state}");
        }
        let waits = !ready && !expired && !disabled && in_use && !tainted;
        assert_eq!(matches!(found, DetachTiming::After(_)), waits, "{state}");
        let by_force = matches!(found, DetachTiming::Now(DetachReason::Forced(_)));
        if !upstream {
            assert_eq!(by_force, detaches && in_use, "verified unless forced: {state}");
        }
    }
}

/// A-H1: the clock that the controller reads is set neither forward nor back, whatever happens to the wall clock.
#[test]
fn wall_clock_that_is_set_does_not_end_the_wait_for_the_node() {
    struct Clocks {
        wall: i64,
        monotonic: i64,
    }
    impl wharf_model::system::SystemOverride for Clocks {
        fn now(&mut self) -> Time {
            Time(self.wall)
        }
        fn monotonic(&mut self) -> Monotonic {
            Monotonic(self.monotonic)
        }
        fn fill_random(&mut self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }
    let world =
        World::exclusive().node("a").attached("a").unready("a").in_use("a").with_state("a", unwanted());
    for (wall, monotonic, forced) in [
        (MINUTES_6 * 9, MINUTES_6 - 1, false),
        (-MINUTES_6 * 9, MINUTES_6 - 1, false),
        (-MINUTES_6 * 9, MINUTES_6, true),
    ] {
        let _override = wharf_model::system::override_system(Clocks { wall, monotonic });
        let now = wharf_cluster::monotonic();
        let view = world.view(now);
        let timing = detach_timing(&view, &view.nodes["a"], now);
        assert_eq!(matches!(timing, DetachTiming::Now(_)), forced, "{wall} {monotonic}");
    }
}
