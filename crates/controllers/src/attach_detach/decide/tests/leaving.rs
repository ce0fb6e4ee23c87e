//! When a volume that nobody wants may go.

use super::*;

/// kubernetes.md 1.3 "Told first", "Well", "Attachment ends": first the node is told, then the attachment goes.
#[test]
fn what_leaves() {
    let one = || World::exclusive().node("a");
    check([
        (
            "Test_Run_Positive_…ThenDetachWithUnmountedVolume: told first",
            one().attached("a").reported("a"),
            0,
            rest(&["a"], None),
        ),
        ("Test_Run_Positive_…ThenDetachWithUnmountedVolume", one().attached("a"), 0, detach("a", UNUSED)),
        (
            "Test_Run_Negative_…UpdateStatusFail: not while it is told",
            one().attached("a").reported("a").remember("a", unwanted()),
            MINUTES_6 * 9,
            rest(&["a"], None),
        ),
        ("in use by a node that is well", one().attached("a").reported("a").in_use("a"), 0, rest(&[], None)),
        (
            "a healthy node is waited on forever",
            one().attached("a").in_use("a").remember("a", unwanted()),
            MINUTES_6 * 999,
            rest(&[], None),
        ),
        ("dangling, never attached", one().uncertain("a"), 0, detach("a", UNUSED)),
        (
            "dangling, attaching failed",
            one().attachment("a", json!({"status": {"attachError": {"message": "no"}}})),
            0,
            detach("a", UNUSED),
        ),
        ("its end was asked for", one().going("a"), 0, rest(&[], None)),
        (
            "its end was asked for, and the node still thinks otherwise",
            one().going("a").reported("a"),
            0,
            rest(&["a"], None),
        ),
        (
            "no attachment, and the node thinks otherwise: nothing to detach",
            one().reported("a"),
            0,
            rest(&[], None),
        ),
        ("on a node without annotation", one().unmanaged("a").attached("a"), 0, detach("a", UNUSED)),
    ]);
}

/// kubernetes.md 1.3 "Force", "Out of service", "Time of leaving", "In use"; kubernetes#105341, kubernetes#69168.
#[test]
fn what_leaves_by_force() {
    let well = || World::exclusive().node("a").attached("a").in_use("a");
    let sick = || well().unready("a");
    let disabled = |world: World| world.set(|settings| settings.disable_force_detach_on_timeout = true);
    let only = |driver: &'static str, seconds| {
        move |settings: &mut super::super::super::Settings| {
            settings.max_wait_by_driver = [(driver.to_owned(), Duration::from_secs(seconds))].into();
        }
    };
    check([
        ("Test_Run_Positive_…DetachWithMountedVolume: waits", sick(), 0, rest(&[], Some(MINUTES_6))),
        ("a moment before", sick().remember("a", unwanted()), MINUTES_6 - 1, rest(&[], Some(1))),
        (
            "Test_Run_Positive_…DetachWithMountedVolume",
            sick().remember("a", unwanted()),
            MINUTES_6,
            detach("a", TIMEOUT),
        ),
        (
            "the node is told before force too",
            sick().reported("a").remember("a", unwanted()),
            MINUTES_6,
            rest(&["a"], None),
        ),
        (
            "Test_Run_OneVolumeDetachOnUnhealthyNode: while it was well",
            well().remember("a", unwanted()),
            MINUTES_6 * 2,
            rest(&[], None),
        ),
        (
            "Test_Run_OneVolumeDetachOnUnhealthyNode: the time counts from the last pod",
            sick().remember("a", unwanted()),
            MINUTES_6 * 2,
            detach("a", TIMEOUT),
        ),
        (
            "Test_Run_…WithForceDetachOnUnmountDisabled",
            disabled(sick().remember("a", unwanted())),
            MINUTES_6 * 2,
            rest(&[], None),
        ),
        (
            "Test_Run_…WithForceDetachOnUnmountDisabled: the taint",
            disabled(sick().tainted("a").remember("a", unwanted())),
            MINUTES_6 * 2,
            detach("a", OUT_OF_SERVICE),
        ),
        (
            "Test_Run_OneVolumeDetachOnOutOfServiceTaintedNode",
            sick().tainted("a"),
            0,
            detach("a", OUT_OF_SERVICE),
        ),
        ("Test_Run_OneVolumeDetachOnNoOutOfServiceTaintedNode", sick(), 0, rest(&[], Some(MINUTES_6))),
        (
            "a tainted node that says it is well is not believed to be off",
            well().tainted("a"),
            0,
            rest(&[], None),
        ),
        ("by upstream it is", well().tainted("a").upstream(), 0, detach("a", OUT_OF_SERVICE)),
        (
            "a setting for all",
            sick().set(|settings| settings.max_wait_for_unmount = Duration::from_secs(5)),
            0,
            rest(&[], Some(5000)),
        ),
        ("a setting for the driver", sick().set(only("d.test", 7)), 0, rest(&[], Some(7000))),
        ("a setting for another driver", sick().set(only("e.test", 7)), 0, rest(&[], Some(MINUTES_6))),
        ("a gone node may use it", World::exclusive().attached("a"), 0, rest(&[], Some(MINUTES_6))),
        (
            "a gone node that used it",
            World::exclusive().attached("a").gone("a", &[name().to_string()]),
            0,
            rest(&[], Some(MINUTES_6)),
        ),
        ("a gone node that did not", World::exclusive().attached("a").gone("a", &[]), 0, detach("a", UNUSED)),
        (
            "a gone node had its time",
            World::exclusive().attached("a").remember("a", unwanted()),
            MINUTES_6,
            detach("a", TIMEOUT),
        ),
        (
            "unused after its time: asked all the same",
            World::exclusive().node("a").attached("a").remember("a", unwanted()),
            MINUTES_6,
            detach("a", UNUSED),
        ),
        (
            "by upstream not even of a node that is well",
            World::exclusive().node("a").attached("a").remember("a", unwanted()).upstream(),
            MINUTES_6,
            detach("a", TIMEOUT),
        ),
        (
            "a clock that went back",
            sick().remember("a", unwanted()),
            -1000,
            rest(&[], Some(MINUTES_6 + 1000)),
        ),
    ]);
}

/// kubernetes.md 1.3 "Well", "Force", "Out of service": in every state of the node, as upstream has it and as we do.
#[test]
fn leaving_in_every_state() {
    for bits in 0..64_u32 {
        let bit = |at: u32| bits & (1 << at) != 0;
        let (in_use, ready, tainted, expired) = (bit(0), bit(1), bit(2), bit(3));
        let (disabled, upstream) = (bit(4), bit(5));
        let mut world = World::exclusive().node("a").attached("a").remember("a", unwanted());
        world = if in_use { world.in_use("a") } else { world };
        world = if ready { world } else { world.unready("a") };
        world = if tainted { world.tainted("a") } else { world };
        world = if upstream { world.upstream() } else { world };
        let world = world.set(|settings| settings.disable_force_detach_on_timeout = disabled);
        let now = Time(if expired { MINUTES_6 } else { 0 });
        let view = world.view(now);
        let found = leave(&view, &view.places["a"], now);
        let leaves = matches!(found, Leave::Now(_));

        let force = !ready && expired && !disabled;
        let theirs = !in_use || force || tainted;
        let state = format!(
            "in_use {in_use} ready {ready} tainted {tainted} expired {expired} {disabled} {upstream}"
        );
        if upstream {
            assert_eq!(leaves, theirs, "{state}");
        } else {
            assert!(!leaves || theirs, "never sooner than upstream: {state}");
            assert!(!(leaves && in_use && ready), "never from a node that is well and uses it: {state}");
            assert_eq!(leaves, theirs && !(in_use && ready), "{state}");
        }
        let waits = !ready && !expired && !disabled && in_use && !tainted;
        assert_eq!(matches!(found, Leave::After(_)), waits, "{state}");
        let by_force = matches!(found, Leave::Now(Proof::Forced(_)));
        if !upstream {
            assert_eq!(by_force, leaves && in_use, "asked of the server unless by force: {state}");
        }
    }
}
