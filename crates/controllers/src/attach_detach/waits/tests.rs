//! Each thing that can be waited for is named, and says who has to do what.

use serde_json::json;

use super::super::testing::{World, name};
use super::*;

#[test]
fn what_an_attachment_waits_for() {
    let one = || World::exclusive().node("a").pod("p", "a");
    let moved = || World::exclusive().node("a").node("b").pod("p", "a");
    let attachment = name().attachment("a");
    let other = name().attachment("b");
    let driver = "d.test".to_owned();
    let others = |pods: &[&str], leaving: Leaving| {
        let pods = pods.iter().map(|pod| Key::namespaced("ns", *pod)).collect();
        Waits::Others(vec![Blocker { node: "b".into(), pods, leaving }])
    };
    let after = Some(Duration::from_secs(360));
    for (world, waits, words) in [
        (one().attached("a").reported("a"), Waits::Nothing, "the node knows"),
        (World::exclusive().node("a"), Waits::Unwanted, "not asked for"),
        (World::exclusive().pod("p", "a"), Waits::NodeMissing, "Node does not exist"),
        (one().unmanaged("a"), Waits::NodeUnmanaged, "controller-managed-attach-detach"),
        (one(), Waits::Request { attachment: attachment.clone() }, "controller has to make"),
        (
            one().uncertain("a"),
            Waits::Attacher { attachment: attachment.clone(), driver: driver.clone() },
            "attacher of driver d.test",
        ),
        (
            one().attachment("a", json!({"status": {"attachError": {"message": "quota"}}})),
            Waits::Failed { attachment: attachment.clone(), message: "quota".into() },
            "quota",
        ),
        (
            one().going("a"),
            Waits::Leaving(Leaving::Attacher { attachment, driver: driver.clone() }),
            "an earlier attachment",
        ),
        (one().attached("a"), Waits::Report, "Node's status"),
        (moved().pod("q", "b").attached("b"), others(&["q"], Leaving::Pods), "used by ns/q"),
        (moved().attached("b").in_use("b"), others(&[], Leaving::InUse), "volumesInUse"),
        (
            moved().attached("b").in_use("b").unready("b"),
            others(&[], Leaving::Unwell { force_after: after }),
            "360 s after its last pod",
        ),
        (moved().attached("b").reported("b"), others(&[], Leaving::Report), "withdraw"),
        (moved().attached("b"), others(&[], Leaving::Request { attachment: other.clone() }), "has to delete"),
        (
            moved().going("b"),
            others(&[], Leaving::Attacher { attachment: other.clone(), driver }),
            "has to finish",
        ),
        (
            moved().attachment(
                "b",
                json!({
                    "metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"},
                    "status": {"detachError": {"message": "busy"}},
                }),
            ),
            others(&[], Leaving::Failed { attachment: other, message: "busy".into() }),
            "busy",
        ),
    ] {
        let found = waits_for(&name(), "a", &world.objects(), &world.settings, Time(0));
        assert_eq!(found, waits);
        assert!(found.to_string().contains(words), "{found}");
    }
}

#[test]
fn what_a_detach_waits_for() {
    let one = || World::exclusive().node("a");
    let mut unknown = one().attached("a");
    unknown.known.volumes.clear();
    let never = one().attached("a").in_use("a").unready("a");
    let never = never.set(|settings| settings.disable_force_detach_on_timeout = true);
    for (world, wanted) in [
        (one(), Leaving::Nothing),
        (one().attached("a").pod("p", "a"), Leaving::Pods),
        (unknown, Leaving::VolumeUnknown),
        (never, Leaving::Unwell { force_after: None }),
        (
            one().attached("a").in_use("a").unready("a").tainted("a"),
            Leaving::Request { attachment: name().attachment("a") },
        ),
    ] {
        assert_eq!(leaving(&name(), "a", &world.objects(), &world.settings, Time(0)), wanted);
    }
}
