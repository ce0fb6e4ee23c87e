//! Who wants a volume, and who may have to do with it. desired_state_of_world_test, and util_test, as facts.

use serde_json::{Value, json};
use wharf_model::Time;

use super::super::testing::{World, made};
use super::*;

/// Held by a pod, and wanted by how many.
fn seen(world: &World) -> (bool, usize) {
    let view = world.view(Time(0));
    let place = view.places.get("a").cloned().unwrap_or_default();
    (place.held, place.pods.len())
}

fn container(state: Value) -> Value {
    json!({"name": "c", "state": state})
}

/// kubernetes.md 1.3 "Pods that count".
#[test]
fn pods_that_may_run() {
    let run = || container(json!({"running": {}}));
    let ended = || container(json!({"terminated": {"exitCode": 0}}));
    let waits = || container(json!({"waiting": {"reason": "ContainerCreating"}}));
    let status =
        |phase: &str, kind: &str, statuses: &[Value]| json!({"status": {"phase": phase, kind: statuses}});
    let main = "containerStatuses";
    for (rule, deleted, status, live) in [
        ("new", false, json!({"status": {"phase": "Pending"}}), true),
        ("runs", false, status("Running", main, &[run()]), true),
        ("restarts", false, status("Running", main, &[ended()]), true),
        ("succeeded", false, status("Succeeded", main, &[ended()]), false),
        ("failed", false, status("Failed", main, &[]), false),
        ("failed, whatever its containers say", false, status("Failed", main, &[run()]), false),
        ("deleted before it began", true, json!({"status": {"phase": "Pending"}}), false),
        ("deleted, runs", true, status("Running", main, &[ended(), run()]), true),
        ("deleted, an init container runs", true, status("Pending", "initContainerStatuses", &[run()]), true),
        (
            "deleted, one that looks at it runs",
            true,
            status("Running", "ephemeralContainerStatuses", &[run()]),
            true,
        ),
        ("deleted, of unknown state", true, status("Running", main, &[container(json!({}))]), true),
        ("deleted, ended", true, status("Running", main, &[ended()]), false),
        ("deleted, waits", true, status("Running", main, &[waits()]), false),
    ] {
        let pod = match deleted {
            true => json!({"metadata": {"deletionTimestamp": Time(0).to_string()}}),
            false => json!({}),
        };
        let pod = super::super::testing::merged(pod, status);
        let world = World::exclusive().node("a").pod_with("p", "a", pod);
        assert_eq!(seen(&world), (live, usize::from(live)), "{rule}");
    }
}

/// kubernetes.md 1.3 "Volumes that count", "Pods that count": only claims bound by both ends, only drivers that
/// attach.
#[test]
fn who_wants_a_volume() {
    let world = || World::exclusive().node("a").pod("p", "a");
    let with_claim = |claim: Value| {
        let mut world = world();
        let bound = json!({
            "metadata": {"namespace": "ns", "name": "claim", "uid": "claim-uid"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"},
        });
        world.known.claims = vec![made(super::super::testing::merged(bound, claim))];
        world
    };
    let without_claim_ref = || {
        let mut world = world();
        let mut volume = (*world.known.volumes[0]).clone();
        volume.spec.claim_ref = None;
        world.known.volumes = vec![Arc::new(volume)];
        world
    };
    let with_driver = |driver: Value| {
        let mut world = world();
        world.known.driver = Some(made(json!({"metadata": {"name": "d.test"}, "spec": driver})));
        world
    };
    let other = |volumes: Value| {
        World::exclusive().node("a").pod_with("p", "a", json!({"spec": {"volumes": volumes}}))
    };
    let mut without_claim = world();
    without_claim.known.claims.clear();
    for (rule, world, held, wanted) in [
        ("Test_AddPod_Positive_NewPodNodeExistsVolumeDoesntExist", world(), true, 1),
        ("Test_AddPod_Positive_NewPodNodeExistsVolumeExists", world().pod("q", "a"), true, 2),
        ("Test_AddPod_Positive_PodExistsNodeExistsVolumeExists", world().pod("p", "a"), true, 1),
        (
            "Test_DeletePod_Positive_NodeDoesNotExist: another node's",
            World::exclusive().node("a").pod("p", "b"),
            false,
            0,
        ),
        ("not placed", World::exclusive().node("a").pod("p", ""), false, 0),
        (
            "another namespace's claim of that name",
            World::exclusive().node("a").pod_with("p", "a", json!({"metadata": {"namespace": "other"}})),
            false,
            0,
        ),
        ("no volumes", other(json!([])), false, 0),
        (
            "another claim",
            other(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}])),
            false,
            0,
        ),
        ("inline ephemeral: never", other(json!([{"name": "v", "csi": {"driver": "d.test"}}])), false, 0),
        ("the claim is gone: not attached, not taken away", without_claim, true, 0),
        ("the claim is lost", with_claim(json!({"status": {"phase": "Lost"}})), true, 0),
        ("the claim is not bound yet", with_claim(json!({"status": {"phase": "Pending"}})), true, 0),
        ("the claim is another of its name", with_claim(json!({"metadata": {"uid": "other"}})), true, 0),
        ("the claim names another volume", with_claim(json!({"spec": {"volumeName": "other"}})), true, 0),
        (
            "a namesake that is to have a volume",
            with_claim(json!({"metadata": {"uid": "other"}, "spec": {"volumeName": ""}})),
            true,
            0,
        ),
        (
            "a namesake with a volume of its own",
            with_claim(json!({"metadata": {"uid": "other"}, "spec": {"volumeName": "other"}})),
            false,
            0,
        ),
        ("the volume names no claim", without_claim_ref(), true, 0),
        ("attachRequired: false", with_driver(json!({"attachRequired": false})), true, 0),
        ("attachRequired: true", with_driver(json!({"attachRequired": true})), true, 1),
        ("attachRequired: unsaid", with_driver(json!({})), true, 1),
    ] {
        assert_eq!(seen(&world), (held, wanted), "{rule}");
    }
}

/// kubernetes.md 1.2 "Ephemeral namesake": a claim that was made for another pod of that name is not this one's.
#[test]
fn claims_made_for_pods() {
    let owner = |uid: &str, controller: bool| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller}]);
    for (rule, owners, wanted) in [
        ("its own", owner("p", true), 1),
        ("of an earlier pod", owner("earlier", true), 0),
        ("not controlled", owner("p", false), 0),
        ("of nobody", json!([]), 0),
    ] {
        let volumes = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]);
        let mut world =
            World::exclusive().node("a").pod_with("p", "a", json!({"spec": {"volumes": volumes}}));
        let mut volume = (*world.known.volumes[0]).clone();
        volume.spec.claim_ref.as_mut().unwrap().name = "p-v".into();
        world.known.volumes = vec![Arc::new(volume)];
        world.known.claims = vec![made(json!({
            "metadata": {"namespace": "ns", "name": "p-v", "uid": "claim-uid", "ownerReferences": owners},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"},
        }))];
        assert_eq!(seen(&world), (true, wanted), "{rule}");
    }
}

/// Attachments that somebody else made are theirs.
#[test]
fn whose_an_attachment_is() {
    for (rule, with, ours) in [
        ("ours", json!({}), true),
        ("of another name", json!({"metadata": {"name": "mine"}}), false),
        ("of another driver", json!({"spec": {"attacher": "e.test"}}), false),
    ] {
        let world = World::exclusive().node("a").attachment("a", with);
        let view = world.view(Time(0));
        let place = view.places.get("a");
        assert_eq!(place.is_some_and(|place| place.attachment.is_some()), ours, "{rule}");
    }
}

/// Two PersistentVolumes of one handle are one volume, for one node if either is.
#[test]
fn two_names_for_one_volume() {
    let mut world = World::shared().node("a").pod("p", "a");
    assert!(!world.view(Time(0)).exclusive);
    let mut second = (*world.known.volumes[0]).clone();
    second.metadata.name = "second".into();
    second.spec.access_modes = vec![AccessMode::ReadWriteOnce];
    second.spec.claim_ref = None;
    world.known.volumes.push(Arc::new(second));
    let view = world.view(Time(0));
    assert!(view.exclusive);
    let place = &view.places["a"];
    assert_eq!((place.volume.as_deref(), view.title(place)), (Some("pv"), "pv"));
    assert_eq!(view.title(&Place::default()), "h", "without a pod nobody knows which name is meant");
}

/// kubernetes.md 1.3 "Time of leaving": since when something is so is remembered for as long as it is so.
#[test]
fn waits_begin_and_end() {
    let since = |world: World, now: i64| {
        let view = world.view(Time(now));
        let memory = &view.places["a"].memory;
        (memory.unwanted_since, memory.asked_since, memory.blocked_since)
    };
    let all = || Memory {
        unwanted_since: Some(Time(1)),
        asked_since: Some(Time(2)),
        blocked_since: Some(Time(3)),
        ..Memory::default()
    };
    let (one, five) = (|| World::exclusive().node("a").node("b"), Some(Time(5)));
    for (rule, world, begun, going_on) in [
        ("unwanted", one().attached("a"), (five, None, None), (Some(Time(1)), None, None)),
        ("wanted", one().attached("a").pod("p", "a"), (None, None, None), (None, None, None)),
        ("asked", one().uncertain("a").pod("p", "a"), (None, five, None), (None, Some(Time(2)), None)),
        ("asked too late", one().going("a").pod("p", "a"), (None, five, None), (None, Some(Time(2)), None)),
        ("blocked", one().attached("b").pod("p", "a"), (None, None, five), (None, None, Some(Time(3)))),
        ("not blocked", one().pod("p", "a"), (None, None, None), (None, None, None)),
    ] {
        assert_eq!(since(world.clone(), 5), begun, "{rule}");
        assert_eq!(since(world.remember("a", all()), 5), going_on, "{rule}");
    }
}
