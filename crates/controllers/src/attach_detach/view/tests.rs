//! Which pods want a volume, and which may use it: the cases of upstream's desired_state_of_world_test and util_test.

use serde_json::{Value, json};
use wharf_model::{Monotonic, Time};

use super::super::testing::{World, object};
use super::*;

/// Whether a pod may use the volume, and how many pods want it.
fn held_and_wanted(world: &World) -> (bool, usize) {
    let view = world.view(Monotonic(0));
    let node_view = view.nodes.get("a").cloned().unwrap_or_default();
    (node_view.held_by_pod, node_view.pods.len())
}

fn container(state: Value) -> Value {
    json!({"name": "c", "state": state})
}

/// kubernetes.md 1.3 "Relevant pods".
#[test]
fn pods_count_while_a_container_may_run() {
    let run = || container(json!({"running": {}}));
    let ended = || container(json!({"terminated": {"exitCode": 0}}));
    let waits = || container(json!({"waiting": {"reason": "ContainerCreating"}}));
    let status =
        |phase: &str, kind: &str, statuses: &[Value]| json!({"status": {"phase": phase, kind: statuses}});
    let main = "containerStatuses";
    for (rule, deleted, status, live) in [
        ("new", false, json!({"status": {"phase": "Pending"}}), true),
        ("running", false, status("Running", main, &[run()]), true),
        ("restarting", false, status("Running", main, &[ended()]), true),
        ("succeeded", false, status("Succeeded", main, &[ended()]), false),
        ("failed", false, status("Failed", main, &[]), false),
        ("failed, whatever its container statuses", false, status("Failed", main, &[run()]), false),
        ("deleted before it started", true, json!({"status": {"phase": "Pending"}}), false),
        ("deleted, running", true, status("Running", main, &[ended(), run()]), true),
        ("deleted, init container running", true, status("Pending", "initContainerStatuses", &[run()]), true),
        (
            "deleted, ephemeral container running",
            true,
            status("Running", "ephemeralContainerStatuses", &[run()]),
            true,
        ),
        ("deleted, unknown container state", true, status("Running", main, &[container(json!({}))]), true),
        ("deleted, terminated", true, status("Running", main, &[ended()]), false),
        ("deleted, waiting", true, status("Running", main, &[waits()]), false),
    ] {
        let pod = match deleted {
            true => json!({"metadata": {"deletionTimestamp": Time(0).to_string()}}),
            false => json!({}),
        };
        let pod = super::super::testing::merged(pod, status);
        let world = World::exclusive().node("a").pod_with("p", "a", pod);
        assert_eq!(held_and_wanted(&world), (live, usize::from(live)), "{rule}");
    }
}

/// kubernetes.md 1.3 "Relevant volumes", "Relevant pods": only claims and volumes that reference each other, only
/// drivers that attach.
#[test]
fn bound_claims_of_scheduled_pods_want_the_volume() {
    let world = || World::exclusive().node("a").pod("p", "a");
    let with_claim = |claim: Value| {
        let mut world = world();
        let bound = json!({
            "metadata": {"namespace": "ns", "name": "claim", "uid": "claim-uid"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"},
        });
        world.objects.claims = vec![object(super::super::testing::merged(bound, claim))];
        world
    };
    let without_claim_ref = || {
        let mut world = world();
        let mut volume = (*world.objects.volumes[0]).clone();
        volume.spec.claim_ref = None;
        world.objects.volumes = vec![Arc::new(volume)];
        world
    };
    let with_driver = |driver: Value| {
        let mut world = world();
        world.objects.driver = Some(object(json!({"metadata": {"name": "d.test"}, "spec": driver})));
        world
    };
    let other = |volumes: Value| {
        World::exclusive().node("a").pod_with("p", "a", json!({"spec": {"volumes": volumes}}))
    };
    let mut without_claim = world();
    without_claim.objects.claims.clear();
    for (rule, world, held_by_pod, wanted) in [
        ("Test_AddPod_Positive_NewPodNodeExistsVolumeDoesntExist", world(), true, 1),
        ("Test_AddPod_Positive_NewPodNodeExistsVolumeExists", world().pod("q", "a"), true, 2),
        ("Test_AddPod_Positive_PodExistsNodeExistsVolumeExists", world().pod("p", "a"), true, 1),
        (
            "Test_DeletePod_Positive_NodeDoesNotExist: another node",
            World::exclusive().node("a").pod("p", "b"),
            false,
            0,
        ),
        ("not scheduled", World::exclusive().node("a").pod("p", ""), false, 0),
        (
            "claim of that name in another namespace",
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
        ("claim deleted: not attached, not detached", without_claim, true, 0),
        ("claim lost", with_claim(json!({"status": {"phase": "Lost"}})), true, 0),
        ("claim not bound yet", with_claim(json!({"status": {"phase": "Pending"}})), true, 0),
        ("another claim of that name", with_claim(json!({"metadata": {"uid": "other"}})), true, 0),
        ("claim names another volume", with_claim(json!({"spec": {"volumeName": "other"}})), true, 0),
        (
            "another claim of that name, without a volume",
            with_claim(json!({"metadata": {"uid": "other"}, "spec": {"volumeName": ""}})),
            true,
            0,
        ),
        (
            "another claim of that name, with another volume",
            with_claim(json!({"metadata": {"uid": "other"}, "spec": {"volumeName": "other"}})),
            false,
            0,
        ),
        ("volume without claimRef", without_claim_ref(), true, 0),
        ("attachRequired: false", with_driver(json!({"attachRequired": false})), true, 0),
        ("attachRequired: true", with_driver(json!({"attachRequired": true})), true, 1),
        ("attachRequired: unset", with_driver(json!({})), true, 1),
    ] {
        assert_eq!(held_and_wanted(&world), (held_by_pod, wanted), "{rule}");
    }
}

/// kubernetes.md 1.2 "Ephemeral name conflict": a claim that was created for another pod of that name is not used.
#[test]
fn ephemeral_claim_must_be_controlled_by_its_pod() {
    let owner = |uid: &str, controller: bool| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller}]);
    for (rule, owners, wanted) in [
        ("controlled by the pod", owner("p", true), 1),
        ("controlled by an earlier pod", owner("earlier", true), 0),
        ("owned, not controlled", owner("p", false), 0),
        ("no owner", json!([]), 0),
    ] {
        let volumes = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]);
        let mut world =
            World::exclusive().node("a").pod_with("p", "a", json!({"spec": {"volumes": volumes}}));
        let mut volume = (*world.objects.volumes[0]).clone();
        volume.spec.claim_ref.as_mut().unwrap().name = "p-v".into();
        world.objects.volumes = vec![Arc::new(volume)];
        world.objects.claims = vec![object(json!({
            "metadata": {"namespace": "ns", "name": "p-v", "uid": "claim-uid", "ownerReferences": owners},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"},
        }))];
        assert_eq!(held_and_wanted(&world), (true, wanted), "{rule}");
    }
}

/// Attachments that others created are ignored.
#[test]
fn foreign_attachments_are_ignored() {
    for (rule, with, expected) in [
        ("created by the controller", json!({}), true),
        ("of another name", json!({"metadata": {"name": "mine"}}), false),
        ("of another driver", json!({"spec": {"attacher": "e.test"}}), false),
    ] {
        let world = World::exclusive().node("a").attachment("a", with);
        let view = world.view(Monotonic(0));
        let node_view = view.nodes.get("a");
        assert_eq!(node_view.is_some_and(|node_view| node_view.attachment.is_some()), expected, "{rule}");
    }
}

/// Two PersistentVolumes with one handle are one volume; it is exclusive if either of them is.
#[test]
fn two_persistent_volumes_with_one_handle_are_one_volume() {
    let mut world = World::shared().node("a").pod("p", "a");
    assert!(!world.view(Monotonic(0)).exclusive);
    let mut second = (*world.objects.volumes[0]).clone();
    second.metadata.name = "second".into();
    second.spec.access_modes = vec![AccessMode::ReadWriteOnce];
    second.spec.claim_ref = None;
    world.objects.volumes.push(Arc::new(second));
    let view = world.view(Monotonic(0));
    assert!(view.exclusive);
    let node_view = &view.nodes["a"];
    assert_eq!((node_view.volume.as_deref(), view.display_name(node_view)), (Some("pv"), "pv"));
    assert_eq!(
        view.display_name(&NodeView::default()),
        "h",
        "without a pod the PersistentVolume is ambiguous"
    );
}

/// kubernetes.md 1.3 "Detach timer": the start of a wait is kept for as long as the wait lasts.
#[test]
fn wait_timers_start_and_end_with_their_condition() {
    let since = |world: World, now: i64| {
        let view = world.view(Monotonic(now));
        let state = &view.nodes["a"].state;
        (state.unwanted_since, state.waiting_since, state.blocked_since)
    };
    let all = || AttachState {
        unwanted_since: Some(Monotonic(1)),
        waiting_since: Some(Monotonic(2)),
        blocked_since: Some(Monotonic(3)),
        ..AttachState::default()
    };
    let (one, five) = (|| World::exclusive().node("a").node("b"), Some(Monotonic(5)));
    for (rule, world, started, continued) in [
        ("unwanted", one().attached("a"), (five, None, None), (Some(Monotonic(1)), None, None)),
        ("wanted", one().attached("a").pod("p", "a"), (None, None, None), (None, None, None)),
        (
            "attaching",
            one().uncertain("a").pod("p", "a"),
            (None, five, None),
            (None, Some(Monotonic(2)), None),
        ),
        (
            "detaching, but wanted again",
            one().detaching("a").pod("p", "a"),
            (None, five, None),
            (None, Some(Monotonic(2)), None),
        ),
        ("blocked", one().attached("b").pod("p", "a"), (None, None, five), (None, None, Some(Monotonic(3)))),
        ("not blocked", one().pod("p", "a"), (None, None, None), (None, None, None)),
    ] {
        assert_eq!(since(world.clone(), 5), started, "{rule}");
        assert_eq!(since(world.with_state("a", all()), 5), continued, "{rule}");
    }
}
