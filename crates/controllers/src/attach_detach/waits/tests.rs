//! Every reason to wait has a message that says who has to do what.

use serde_json::json;

use super::super::testing::{World, name};
use super::*;

#[test]
fn attach_status_names_what_it_waits_for() {
    let one = || World::exclusive().node("a").pod("p", "a");
    let moved = || World::exclusive().node("a").node("b").pod("p", "a");
    let attachment = name().attachment_name("a");
    let other = name().attachment_name("b");
    let driver = "d.test".to_owned();
    let others = |pods: &[&str], leaving: DetachStatus| {
        let pods = pods.iter().map(|pod| Key::namespaced("ns", *pod)).collect();
        AttachStatus::OtherNodes(vec![BlockingNode { node: "b".into(), pods, leaving }])
    };
    let after = Some(Duration::from_secs(360));
    for (world, waits, expected) in [
        (one().attached("a").reported("a"), AttachStatus::Attached, "status lists it"),
        (World::exclusive().node("a"), AttachStatus::Unwanted, "not attached: no running pod"),
        (World::exclusive().pod("p", "a"), AttachStatus::NodeMissing, "Node does not exist"),
        (one().unmanaged("a"), AttachStatus::NodeUnmanaged, "controller-managed-attach-detach"),
        (one(), AttachStatus::NotRequested { attachment: attachment.clone() }, "controller has to create"),
        (
            one().uncertain("a"),
            AttachStatus::Attacher { attachment: attachment.clone(), driver: driver.clone() },
            "attacher of driver d.test",
        ),
        (
            one().attachment("a", json!({"status": {"attachError": {"message": "quota"}}})),
            AttachStatus::Failed { attachment: attachment.clone(), message: "quota".into() },
            "quota",
        ),
        (
            one().detaching("a"),
            AttachStatus::EarlierAttachment(DetachStatus::Attacher { attachment, driver: driver.clone() }),
            "an earlier attachment",
        ),
        (one().attached("a"), AttachStatus::NodeStatus, "Node's status"),
        (moved().pod("q", "b").attached("b"), others(&["q"], DetachStatus::UsedByPods), "used by ns/q"),
        (moved().attached("b").in_use("b"), others(&[], DetachStatus::InUse), "volumesInUse"),
        (
            moved().attached("b").in_use("b").unready("b"),
            others(&[], DetachStatus::NodeNotReady { force_after: after }),
            "360 s after its last pod",
        ),
        (moved().attached("b").reported("b"), others(&[], DetachStatus::NodeStatus), "has to remove"),
        (
            moved().attached("b"),
            others(&[], DetachStatus::NotRequested { attachment: other.clone() }),
            "has to delete",
        ),
        (
            moved().detaching("b"),
            others(&[], DetachStatus::Attacher { attachment: other.clone(), driver }),
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
            others(&[], DetachStatus::Failed { attachment: other, message: "busy".into() }),
            "busy",
        ),
    ] {
        let found = attach_status(&name(), "a", &world.all_objects(), &world.settings);
        assert_eq!(found, waits);
        assert!(found.to_string().contains(expected), "{found}");
    }
}

#[test]
fn detach_status_names_what_it_waits_for() {
    let one = || World::exclusive().node("a");
    let mut unknown = one().attached("a");
    unknown.objects.volumes.clear();
    let never = one().attached("a").in_use("a").unready("a");
    let never = never.set(|settings| settings.disable_force_detach_on_timeout = true);
    for (world, expected) in [
        (one(), DetachStatus::Detached),
        (one().attached("a").pod("p", "a"), DetachStatus::UsedByPods),
        (unknown, DetachStatus::VolumeUnknown),
        (never, DetachStatus::NodeNotReady { force_after: None }),
        (
            one().attached("a").in_use("a").unready("a").tainted("a"),
            DetachStatus::NotRequested { attachment: name().attachment_name("a") },
        ),
    ] {
        assert_eq!(detach_status(&name(), "a", &world.all_objects(), &world.settings), expected);
    }
}
